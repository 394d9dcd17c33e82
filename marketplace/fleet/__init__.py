"""Providers, zones and nodes."""
