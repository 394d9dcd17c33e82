"""The job owner's pages."""
