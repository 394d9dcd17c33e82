"""Durable work, done where a test wants it."""

from __future__ import annotations

from datetime import datetime

from marketplace.common import clock
from marketplace.common.durable.kinds import HeldWork, get_kinds
from marketplace.common.durable.run import run_due_work
from marketplace.common.durable.services import NewWork
from marketplace.payments.outbox import MAKE_CALL
from marketplace.payments.webhooks import APPLY_EVENT


def do_work(kind: str, *, now: datetime) -> int:
    """Do all that is due of a kind; how many pieces were taken."""
    done = 0
    while taken := run_due_work(get_kinds()[kind], clock=lambda: now):
        done += taken
    return done


def make_calls(*, now: datetime) -> int:
    """Make the calls to the gateway that are due."""
    return do_work(MAKE_CALL, now=now)


def apply_events(*, now: datetime) -> int:
    """Apply the gateway's events that are due."""
    return do_work(APPLY_EVENT, now=now)


def do_at_once(*works: NewWork) -> None:
    """Do work in the caller's own transaction, in place of ``enqueue_work``."""
    for work in works:
        kind = get_kinds()[work.kind]
        held = HeldWork(
            id=0,
            kind=work.kind,
            key=work.key,
            payload=work.payload,
            attempt=1,
            follows_lost=False,
            token="",
            lease=kind.lease,
            begun_at=clock.now(),
        )
        loaded = kind.load(held)
        kind.apply(held, loaded, kind.do(held, loaded), now=clock.now())
