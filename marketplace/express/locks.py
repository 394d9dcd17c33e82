"""The only row locks of this app. Requests are locked inside the zone's lane, seats alone, prompts
last and in the order of their ids."""

from __future__ import annotations

from collections.abc import Collection

from django.db.models import QuerySet

from marketplace.express.models import BankPrompt, ExpressRequest, Seat


def lock_requests(requests: QuerySet[ExpressRequest], *, limit: int) -> list[ExpressRequest]:
    """The first of these, locked in their order."""
    return list(requests.select_for_update()[:limit])


def lock_seat(seat_id: str) -> Seat:
    return Seat.objects.select_for_update().get(pk=seat_id)


def lock_present_prompts(ids: Collection[str]) -> list[str]:
    """Those of these prompts that are still in the bank."""
    present = BankPrompt.objects.filter(pk__in=ids, withdrawn_at__isnull=True)
    return list(present.select_for_update().order_by("pk").values_list("pk", flat=True))
