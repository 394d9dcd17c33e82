"""Wiring: settings, addresses, the Celery application and the servers' entrances."""

from marketplace.config.celery import app as celery_app

__all__ = ["celery_app"]
