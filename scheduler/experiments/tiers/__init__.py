"""The simulator of the tier policies and its experiments."""
