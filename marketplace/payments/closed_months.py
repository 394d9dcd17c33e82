"""Closing a month: its books are checked, sealed and summed up, and nothing is booked into it."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta

from django.db import transaction

from marketplace.accounts.models import User
from marketplace.common.db.limits import allow_long_transaction
from marketplace.common.errors import Conflict, NotAllowed
from marketplace.common.locks import advisory_lock
from marketplace.payments.account_sums import sum_by_month
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.models import ClosedMonth, Entry, UnsealedEntry
from marketplace.payments.seals import find_last_seal, seal_ledger
from marketplace.payments.statements import read_month
from scheduler.public_log.entries import digest

#: So long after its end a month may still get entries, from clocks that are slow.
CLOSES_AFTER = timedelta(days=1)


def close_month(*, month: str, closed_by: User, now: datetime) -> ClosedMonth:
    """Close ``2026-03`` and all before it, for good.

    All postings are checked first, and sealed. The digest names the sums and the seal, so that a
    later reader can compute it again.

    Raises
    ------
    NotAllowed
        ``operators_only``.
    NotFound
        ``unknown_month``.
    Conflict
        ``month_open``: it has not ended a day ago. ``month_closed``: it, or a later one, is.
        ``books_unbalanced``: the books are wrong.
    """
    if not closed_by.is_operator:
        raise NotAllowed("operators_only", "Only an operator closes a month.")
    _, ends_at = read_month(month)
    if now < ends_at + CLOSES_AFTER:
        raise Conflict("month_open", "A month can be closed from the second day of the next on.")
    with transaction.atomic(), advisory_lock("payments", "close_month", wait=True):
        if ClosedMonth.objects.filter(ends_at__gte=ends_at).exists():
            raise Conflict("month_closed", "This month's books are closed already.")
        # All postings there are.
        allow_long_transaction()
        seal_ledger(now=now)
        seal = find_last_seal()
        if seal is None or not check_ledger().balanced:
            raise Conflict(
                "books_unbalanced", "The books do not balance. Run ledger_check --whole."
            )
        if UnsealedEntry.objects.filter(entry__booked_at__lt=ends_at).exists():
            raise Conflict("month_open", "Its last entries are being sealed. Try again.")
        sums = sum_accounts(until=month)
        return ClosedMonth.objects.create(
            month=month,
            ends_at=ends_at,
            sums=sums,
            seal=seal.number,
            digest=compute_month_digest(month, sums, seal.digest),
            closed_by=closed_by,
            closed_at=now,
        )


def sum_accounts(*, until: str) -> dict[str, int]:
    """By kind of account, what was booked in ``2026-03`` and all months before."""
    sums: defaultdict[str, int] = defaultdict(int)
    for (kind, month), amount in sum_by_month().items():
        if month <= until:
            sums[kind] += amount
    return sums


def compute_month_digest(month: str, sums: dict[str, int], seal_digest: str) -> str:
    """SHA-256 over canonical JSON (RFC 8785), in hex; amounts as text."""
    text = {name: str(amount) for name, amount in sorted(sums.items())}
    body = {"month": month, "sums": text, "seal": seal_digest}
    return digest(body)


def list_closed_months() -> list[ClosedMonth]:
    """The latest first."""
    return list(ClosedMonth.objects.select_related("closed_by").order_by("-ends_at"))


def find_next_to_close(*, now: datetime) -> str | None:
    """The earliest month with entries that may be closed now, like ``2026-03``."""
    closed = ClosedMonth.objects.order_by("-ends_at").values_list("ends_at", flat=True).first()
    entries = Entry.objects.all() if closed is None else Entry.objects.filter(booked_at__gte=closed)
    first = entries.order_by("booked_at").values_list("booked_at", flat=True).first()
    if first is None:
        return None
    month = f"{first:%Y-%m}"
    return month if now >= read_month(month)[1] + CLOSES_AFTER else None
