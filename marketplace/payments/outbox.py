"""The outbox: calls to the gateway that a transaction wants made once it is committed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from marketplace.common.durable.services import NewWork, enqueue_work
from marketplace.payments.models import CallKind, GatewayCall

#: The kind of work that making a call is.
MAKE_CALL = "payments.gateway_call"


@dataclass(frozen=True, slots=True)
class WantedCall:
    """A call to the gateway about one row of ours."""

    kind: CallKind
    #: The row; there is one call of a kind for each.
    subject: str
    arguments: dict[str, Any] = field(default_factory=dict)


def add_calls(wanted: Iterable[WantedCall], *, now: datetime) -> list[GatewayCall]:
    """Store calls that were not asked for before. Call in the transaction that wants them made."""
    calls = {
        (call.kind.value, call.subject): GatewayCall(
            kind=call.kind, subject=call.subject, arguments=call.arguments, made_at=now
        )
        for call in wanted
    }
    if not calls:
        return []
    asked = GatewayCall.objects.filter(
        kind__in={kind for kind, _ in calls}, subject__in={subject for _, subject in calls}
    )
    for pair in asked.values_list("kind", "subject"):
        calls.pop(pair, None)
    new = list(calls.values())
    GatewayCall.objects.bulk_create(new)
    enqueue_work(*(NewWork(MAKE_CALL, call.pk, due_at=now) for call in new))
    return new
