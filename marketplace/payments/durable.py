"""The durable work of this app."""

from datetime import timedelta

from marketplace.common.backoff import build_backoff
from marketplace.common.durable.kinds import WorkKind, register_kind
from marketplace.payments.gateway_calls import end_call, load_call, make_call, note_fault
from marketplace.payments.movements import (
    BOOK_MOVEMENT,
    book_movement,
    check_charge,
    load_movement,
)
from marketplace.payments.outbox import MAKE_CALL
from marketplace.payments.webhooks import APPLY_EVENT, apply_event, ask_about_event, load_event

#: The gateway comes back.
_BACKOFF = build_backoff(first=timedelta(seconds=2), most=timedelta(hours=1), attempts=None)

register_kind(
    WorkKind(
        name=MAKE_CALL,
        load=load_call,
        do=make_call,
        apply=end_call,
        fail=note_fault,
        backoff=_BACKOFF,
        # Longer than a call may take.
        lease=timedelta(minutes=2),
    )
)
register_kind(
    WorkKind(
        name=BOOK_MOVEMENT,
        load=load_movement,
        do=check_charge,
        apply=book_movement,
        backoff=build_backoff(first=timedelta(minutes=1), most=timedelta(hours=12), attempts=None),
        lease=timedelta(minutes=2),
    )
)
register_kind(
    WorkKind(
        name=APPLY_EVENT,
        load=load_event,
        do=ask_about_event,
        apply=apply_event,
        backoff=_BACKOFF,
        # Longer than the calls of one event may take.
        lease=timedelta(minutes=5),
    )
)
