"""The market's HTTP API."""
