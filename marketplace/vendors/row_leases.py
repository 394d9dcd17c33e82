"""Who edits which row of a preparation: leases of five minutes."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q, QuerySet

from marketplace.accounts.models import User
from marketplace.common.errors import Conflict, NotFound
from marketplace.vendors.access import is_of_vendor, note_first_look
from marketplace.vendors.handover import has_work
from marketplace.vendors.locks import lock_first_row, lock_row, share_preparation
from marketplace.vendors.models import Preparation, RowState, VendorKind, WorkRow

#: How long a row is one person's, from their last look at it.
LEASE = timedelta(minutes=5)


def lease_next_row(
    *, preparation: Preparation, user: User, after: int = 0, now: datetime
) -> WorkRow | None:
    """Lease the next free open row to a person; None when there is none."""
    with transaction.atomic():
        check_can_work(share_preparation(preparation.pk), user)
        free = WorkRow.objects.filter(preparation=preparation, state=RowState.OPEN).filter(
            is_free(user, now)
        )
        row = lock_first_row(free.filter(number__gt=after).order_by("number"))
        row = row or lock_first_row(free.order_by("number"))
        if row is not None:
            _lease(row, user, now=now)
    if row is not None:
        note_first_look(preparation, user, now=now)
    return row


def lease_row(*, preparation: Preparation, user: User, number: int, now: datetime) -> WorkRow:
    """One row, which is the person's now; a row that they have goes on being theirs.

    Raises
    ------
    NotFound
        ``unknown_row``.
    Conflict
        ``row_taken``: somebody else edits it. ``work_over``: nothing can be changed any more.
    """
    with transaction.atomic():
        check_can_work(share_preparation(preparation.pk), user)
        row = lock_row(preparation.pk, number)
        if row is None:
            raise NotFound("unknown_row", f"There is no row {number}.")
        check_free(row, user, now)
        _lease(row, user, now=now)
    note_first_look(preparation, user, now=now)
    return row


def is_free(user: User, now: datetime) -> Q:
    """Rows that a person may take, as a condition."""
    return Q(leased_by=None) | Q(leased_by=user) | Q(leased_until__lte=now)


def is_others(row: WorkRow, user: User, now: datetime) -> bool:
    """Whether another person edits a row now."""
    is_leased = row.leased_until is not None and row.leased_until > now
    return is_leased and row.leased_by_id != user.pk


def check_free(row: WorkRow, user: User, now: datetime) -> None:
    """Refuse a row that another person edits now."""
    if is_others(row, user, now):
        assert row.leased_by is not None
        who = row.leased_by.get_short_name()
        raise Conflict("row_taken", f"{who} edits row {row.number} now. Take another one.")


def _lease(row: WorkRow, user: User, *, now: datetime) -> None:
    """Make a row the person's, and no other of this work. Call while holding it."""
    others: QuerySet[WorkRow] = WorkRow.objects.filter(
        preparation=row.preparation_id, leased_by=user
    )
    others.exclude(pk=row.pk).update(leased_by=None, leased_until=None)
    row.leased_by, row.leased_until = user, now + LEASE
    row.save(update_fields=["leased_by", "leased_until"])


def check_can_work(held: Preparation, user: User) -> None:
    """Refuse work on rows that are with somebody else now. Call while holding the preparation."""
    if not is_of_vendor(user, held.vendor):
        raise NotFound("unknown_work", "There is no such work for you, or not any more.")
    is_open = has_work(held) and held.vendor.kind == VendorKind.HUMAN
    if not is_open or held.handed_over_at is None or held.submitted_at is not None:
        raise Conflict("work_over", "These rows cannot be changed now.")
