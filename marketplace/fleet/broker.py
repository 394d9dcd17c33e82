"""The address at which a node fetches its work."""

from __future__ import annotations

from django.conf import settings


def node_broker_url() -> str:
    """The broker as nodes reach it; ``NODE_BROKER_URL`` when that is another address than ours."""
    return getattr(settings, "NODE_BROKER_URL", "") or settings.CELERY_BROKER_URL
