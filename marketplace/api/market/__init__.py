"""The market's own API under ``/api/``."""
