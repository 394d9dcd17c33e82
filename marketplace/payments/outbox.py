"""The outbox: calls to the gateway that a transaction wants made once it is committed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from marketplace.common.db.bulk_writes import insert_rows
from marketplace.common.queue import enqueue
from marketplace.payments.models import CallKind, GatewayCall

RUN_CALLS = "payments.gateway_calls_run"


@dataclass(frozen=True, slots=True)
class WantedCall:
    """A call to the gateway about one row of ours."""

    kind: CallKind
    #: The row; there is one call of a kind for each.
    subject: str
    arguments: dict[str, Any] = field(default_factory=dict)


def add_calls(wanted: Iterable[WantedCall], *, now: datetime) -> list[GatewayCall]:
    """Store calls that were not asked for before. Call in the transaction that wants them made."""
    calls = [
        GatewayCall(
            kind=call.kind, subject=call.subject, arguments=call.arguments, made_at=now, due_at=now
        )
        for call in wanted
    ]
    if calls:
        insert_rows(calls)
        enqueue(RUN_CALLS)
    return calls
