"""The recipe of the bundled base model and of the small data sets. It is not in the packages."""
