"""Rows that people work on: leased one at a time, accepted, edited, left out, undone, handed in."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

from django.db import transaction
from django.db.models import Count

from marketplace.accounts.models import User
from marketplace.common.errors import Conflict, NotFound, UserError
from marketplace.common.ids import new_id
from marketplace.vendors.access import has_trust, is_of_vendor, note_first_look
from marketplace.vendors.handover import store_submission
from marketplace.vendors.locks import (
    lock_free_rows,
    lock_preparation,
    lock_row,
    lock_rows,
    share_preparation,
)
from marketplace.vendors.models import Preparation, RowEdit, RowState, VendorKind, WorkRow
from marketplace.vendors.row_leases import check_can_work, check_free, is_free, is_others
from workers.protocol.record_formats import ValueRefusal, parse_row_object

#: Rows that are accepted together at most.
BULK_MAX = 1_000
VALUE_CHARS_MAX = 1_000_000
_MESSAGES_MAX = 1_000
_EXCERPT_CHARS = 200


class RowDecision(StrEnum):
    ACCEPT = "accept"
    SAVE = "save"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class WorkProgress:
    """How far the rows of a preparation are."""

    rows: int
    open: int
    accepted: int
    edited: int
    dropped: int

    @property
    def done(self) -> int:
        return self.rows - self.open

    @property
    def share(self) -> float:
        return self.done / self.rows if self.rows else 0.0


def find_work(*, preparation_id: str, user: User) -> Preparation:
    """A preparation that the person's organisation does by hand.

    Raises
    ------
    NotFound
        ``unknown_work``: also for those whom it does not concern.
    """
    found = (
        Preparation.objects.select_related("vendor", "source", "job__zone")
        .filter(pk=preparation_id.replace("\0", ""), vendor__kind=VendorKind.HUMAN)
        .first()
    )
    is_theirs = found is not None and is_of_vendor(user, found.vendor)
    if found is None or not is_theirs or not has_trust(found.vendor):
        raise NotFound("unknown_work", "There is no such work for you, or not any more.")
    return found


def count_progress(preparation: Preparation) -> WorkProgress:
    """How many rows are in which state."""
    counts = dict(
        WorkRow.objects.filter(preparation=preparation).values_list("state").annotate(Count("pk"))
    )
    of = {state: counts.get(state.value, 0) for state in RowState}
    return WorkProgress(
        rows=sum(of.values()),
        open=of[RowState.OPEN],
        accepted=of[RowState.ACCEPTED],
        edited=of[RowState.EDITED],
        dropped=of[RowState.DROPPED],
    )


def decide_row(
    *,
    preparation: Preparation,
    user: User,
    number: int,
    decision: RowDecision,
    version: int,
    value: str = "",
    now: datetime,
) -> WorkRow:
    """Accept a row as proposed, save it as edited, or leave it out; then its lease ends.

    Parameters
    ----------
    version
        Of the row that the person saw.
    value
        What to save, a JSON object.

    Raises
    ------
    UserError
        ``invalid_row``: no row to train on. ``no_proposal``: nothing to accept.
    Conflict
        ``row_taken``, ``row_changed`` or ``work_over``. Nothing is stored.
    """
    text = read_row(value) if decision is RowDecision.SAVE else ""
    with transaction.atomic():
        check_can_work(share_preparation(preparation.pk), user)
        row = lock_row(preparation.pk, number)
        if row is None:
            raise NotFound("unknown_row", f"There is no row {number}.")
        check_free(row, user, now)
        if row.version != version:
            raise Conflict("row_changed", "The row was changed since you opened it. Look again.")
        if decision is RowDecision.ACCEPT and not row.proposal:
            raise UserError("no_proposal", "This row has no proposal. Write it, or leave it out.")
        state, text = {
            RowDecision.ACCEPT: (RowState.ACCEPTED, row.proposal),
            RowDecision.SAVE: (RowState.EDITED, text),
            RowDecision.DROP: (RowState.DROPPED, ""),
        }[decision]
        _change([row], [(state, text)], user=user, now=now)
    note_first_look(preparation, user, now=now)
    return row


def accept_rows(
    *, preparation: Preparation, user: User, first: int, last: int, now: datetime
) -> int:
    """Accept the proposals of all open rows from one number to another; how many.

    Rows that somebody else edits, or that need a person's eye, stay open: those with something
    repaired or wrong.
    """
    if not 0 <= last - first < BULK_MAX:
        raise UserError("too_many_rows", f"Accept at most {BULK_MAX:,} rows at once.")
    with transaction.atomic():
        check_can_work(share_preparation(preparation.pk), user)
        rows = lock_free_rows(
            WorkRow.objects.filter(
                preparation=preparation,
                state=RowState.OPEN,
                number__range=(first, last),
                notes=[],
            )
            .exclude(proposal="")
            .filter(is_free(user, now))
        )
        _change(rows, [(RowState.ACCEPTED, row.proposal) for row in rows], user=user, now=now)
    note_first_look(preparation, user, now=now)
    return len(rows)


def undo(*, preparation: Preparation, user: User, now: datetime) -> list[int]:
    """Take back the person's last change, or the last ones made together; numbers of the rows.

    Rows that were changed again since, or that somebody else edits, stay as they are.

    Raises
    ------
    Conflict
        ``nothing_to_undo``.
    """
    with transaction.atomic():
        check_can_work(share_preparation(preparation.pk), user)
        own = RowEdit.objects.filter(
            row__preparation=preparation, edited_by=user, undone_at__isnull=True
        )
        batch = own.order_by("-pk").values_list("batch", flat=True).first()
        edits = {edit.row_id: edit for edit in own.filter(batch=batch)}
        rows = lock_rows(edits)
        back = [
            row
            for row in rows.values()
            if row.version == edits[row.pk].version and not is_others(row, user, now)
        ]
        RowEdit.objects.filter(pk__in=[edit.pk for edit in edits.values()]).update(undone_at=now)
        for row in back:
            edit = edits[row.pk]
            row.state, row.value = edit.before_state, edit.before_value
            row.version += 1
        WorkRow.objects.bulk_update(back, ["state", "value", "version"])
    if not back:
        raise Conflict("nothing_to_undo", "There is no change of yours left to take back.")
    return sorted(row.number for row in back)


def hand_in(*, preparation: Preparation, user: User, now: datetime) -> Preparation:
    """Hand the rows in; the worker checks them, and no row can be edited until it is done.

    Raises
    ------
    Conflict
        ``rows_open``, ``all_dropped``, ``work_over`` or ``delivered_already``.
    """
    with transaction.atomic():
        held = lock_preparation(preparation.pk)
        check_can_work(held, user)
        progress = count_progress(held)
        if progress.open:
            raise Conflict("rows_open", f"{progress.open:,} rows are open still.")
        if progress.dropped == progress.rows:
            raise Conflict("all_dropped", "Every row is left out; there is nothing to train on.")
        with tempfile.TemporaryFile() as file:
            for row in _iter_delivered(held):
                traced = json.loads(row.value) | {"row_id": row.number}
                file.write(json.dumps(traced, ensure_ascii=False).encode() + b"\n")
            file.seek(0)
            store_submission(held, file, now=now)
    return held


def write_changes(preparation: Preparation, path: Path) -> None:
    """Every row that is not as it was found, with the reason, a JSON object a line."""
    with path.open("w", encoding="utf-8") as out:
        rows = WorkRow.objects.filter(preparation=preparation).order_by("number")
        for row in rows.iterator(chunk_size=500):
            if row.state == RowState.ACCEPTED and not row.notes:
                continue
            is_dropped = row.state == RowState.DROPPED
            change = {
                "line": row.line,
                "step": "people",
                "action": "dropped" if is_dropped else "changed",
                "reasons": _explain(row),
                "before": row.raw[:_EXCERPT_CHARS],
                "after": row.value[:_EXCERPT_CHARS],
            }
            out.write(json.dumps(change, ensure_ascii=False) + "\n")


def _explain(row: WorkRow) -> list[str]:
    by_hand = {
        RowState.EDITED: ["A person changed the row."],
        RowState.DROPPED: ["A person left the row out."],
    }
    return [*row.notes, *by_hand.get(RowState(row.state), [])]


def _iter_delivered(held: Preparation) -> Iterator[WorkRow]:
    rows = WorkRow.objects.filter(preparation=held).exclude(state=RowState.DROPPED)
    yield from rows.order_by("number").iterator(chunk_size=500)


def _change(
    rows: Sequence[WorkRow],
    results: Sequence[tuple[RowState, str]],
    *,
    user: User,
    now: datetime,
) -> None:
    """Write new states, with what is needed to take them back. Call while holding the rows."""
    batch = new_id("batch")
    edits: list[RowEdit] = []
    for row, (state, value) in zip(rows, results, strict=True):
        edits.append(
            RowEdit(
                row=row,
                batch=batch,
                before_state=row.state,
                before_value=row.value,
                version=row.version + 1,
                edited_by=user,
                edited_at=now,
            )
        )
        row.state, row.value = state, value
        row.version += 1
        row.leased_by, row.leased_until = None, None
    RowEdit.objects.bulk_create(edits)
    WorkRow.objects.bulk_update(
        rows, ["state", "value", "version", "leased_by", "leased_until"], batch_size=500
    )


def read_row(text: str) -> str:
    """A row to train on, on one line.

    Raises
    ------
    UserError
        ``invalid_row``.
    """
    if len(text) > VALUE_CHARS_MAX:
        raise _invalid(f"A row has at most {VALUE_CHARS_MAX:,} signs.")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _invalid("It is not a JSON object.") from error
    if not isinstance(value, dict):
        raise _invalid("It is not a JSON object.")
    row = cast(dict[str, Any], value)
    try:
        written = json.dumps(row, ensure_ascii=False)
        written.encode()
        parse_row_object(row, line=1, data_format=None, max_messages=_MESSAGES_MAX)
    except ValueRefusal as refusal:
        raise _invalid(refusal.message) from refusal
    except (RecursionError, UnicodeEncodeError) as error:
        raise _invalid("It holds what no text can.") from error
    return written


def _invalid(reason: str) -> UserError:
    return UserError("invalid_row", f"This is no row to train on. {reason}", param="value")
