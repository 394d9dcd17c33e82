"""The only row locks of this app. Questions are locked before wallets."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from marketplace.fleet.models import Node
from marketplace.questions.models import AskedQuestion, QuestionStatus


def lock_waiting(
    *, node: Node, limit: int, takes_forms: bool, now: datetime
) -> list[AskedQuestion]:
    """The oldest questions that a node may take; those that another takes are passed over."""
    waiting = AskedQuestion.objects.select_for_update(of=("self",), skip_locked=True).filter(
        zone_id=node.zone_id, status=QuestionStatus.WAITING, expires_at__gt=now
    )
    if node.provider.verified_at is None:
        waiting = waiting.filter(verified_only=False)
    if not takes_forms:
        # An opening comes with a schema, and calls before what a tool said.
        waiting = waiting.filter(terms__schema="", terms__tools="").exclude(
            terms__turns__contains=[{"role": "tool"}]
        )
    return list(waiting.select_related("artifact__job").order_by("created_at", "pk")[:limit])


def lock_questions(ids: Iterable[str]) -> list[AskedQuestion]:
    """Questions by id, with what their payment needs."""
    found = AskedQuestion.objects.select_for_update(of=("self",)).filter(pk__in=list(ids))
    return list(found.select_related("zone", "node__provider").order_by("pk"))
