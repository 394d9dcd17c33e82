"""Telling integrators' own systems what happened, as Standard Webhooks."""
