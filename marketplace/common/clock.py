"""The only reading of the clock; entrances call it and pass ``now`` on."""

from datetime import datetime

from django.utils import timezone


def now() -> datetime:
    """The present moment, aware, in UTC."""
    return timezone.now()
