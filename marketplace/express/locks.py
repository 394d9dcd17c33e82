"""The only row locks of this app. Requests are locked inside the zone's lane, seats alone."""

from __future__ import annotations

from django.db.models import QuerySet

from marketplace.express.models import ExpressRequest, Seat


def lock_requests(requests: QuerySet[ExpressRequest], *, limit: int) -> list[ExpressRequest]:
    """The first of these, locked in their order."""
    return list(requests.select_for_update()[:limit])


def lock_seat(seat_id: str) -> Seat:
    return Seat.objects.select_for_update().get(pk=seat_id)
