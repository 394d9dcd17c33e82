"""Work of people on the rows of one data set: a list, one row at a time, and handing in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from django.contrib import messages
from django.db.models import Q
from django.db.models.functions import Left
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from marketplace.common import clock
from marketplace.common.errors import Conflict, UserError
from marketplace.vendors.access import note_first_look
from marketplace.vendors.models import Preparation, RowState, WorkRow
from marketplace.vendors.people import (
    RowDecision,
    accept_rows,
    count_progress,
    decide_row,
    find_work,
    hand_in,
    undo,
)
from marketplace.vendors.row_leases import lease_next_row, lease_row
from marketplace.vendors.wishes import parse_wish
from marketplace.web.views.requests import PageRequest, page

ROWS_PER_PAGE = 50
EXCERPT_CHARS = 120
ROLES = ("system", "user", "assistant")


@page
@require_GET
def show_work(request: PageRequest, preparation_id: str) -> HttpResponse:
    work = find_work(preparation_id=preparation_id, user=request.user)
    now = clock.now()
    # A row may be as long as a line of an upload.
    rows = (
        WorkRow.objects.filter(preparation=work)
        .defer("raw", "proposal", "value")
        .annotate(excerpt=Left("raw", EXCERPT_CHARS), is_proposed=~Q(proposal=""))
        .order_by("number")
    )
    chosen = request.GET.get("show", "")
    chosen = chosen if chosen in RowState.values else ""
    shown = rows.filter(state=chosen) if chosen else rows
    total = shown.count()
    start = min(_read_number(request.GET.get("from")), max(0, total - 1))
    on_page = list(shown.select_related("leased_by")[start : start + ROWS_PER_PAGE])
    if on_page:
        note_first_look(work, request.user, now=now)
    context = {
        "work": work,
        "wish": parse_wish(work.wish),
        "progress": count_progress(work),
        "rows": on_page,
        "states": RowState.choices,
        "chosen": chosen,
        "total": total,
        "first": start + 1,
        "last": start + len(on_page),
        "earlier": max(0, start - ROWS_PER_PAGE) if start else None,
        "later": start + ROWS_PER_PAGE if start + ROWS_PER_PAGE < total else None,
        "sound": _count_sound(on_page),
        "now": now,
    }
    return render(request, "console/vendor_work.html", context)


def _count_sound(rows: Sequence[Any]) -> int:
    """Open rows that can be accepted together."""
    return sum(row.state == RowState.OPEN and row.is_proposed and not row.notes for row in rows)


def _read_number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 9 else 0


@page
@require_GET
def take_next(request: PageRequest, preparation_id: str) -> HttpResponse:
    """To the next open row without a lease, or back to the list."""
    work = find_work(preparation_id=preparation_id, user=request.user)
    after = _read_number(request.GET.get("after"))
    row = lease_next_row(preparation=work, user=request.user, after=after, now=clock.now())
    if row is None:
        messages.success(request, "No row is open for you. Others may still edit some.")
        return redirect("vendor_work", preparation_id=work.pk)
    return redirect("vendor_row", preparation_id=work.pk, number=row.number)


@page
@require_http_methods(["GET", "POST"])
def edit_row(request: PageRequest, preparation_id: str, number: int) -> HttpResponse:
    """One row, leased to the person who looks at it; ``do`` says what becomes of it."""
    work = find_work(preparation_id=preparation_id, user=request.user)
    now = clock.now()
    error: UserError | None = None
    value = ""
    if request.method == "POST":
        value = read_value(request)
        try:
            decide_row(
                preparation=work,
                user=request.user,
                number=number,
                decision=_read_decision(request),
                version=_read_number(request.POST.get("version")),
                value=value,
                now=now,
            )
        except Conflict as conflict:
            messages.error(request, conflict.message)
            return redirect("vendor_work", preparation_id=work.pk)
        except UserError as refusal:
            error = refusal
        else:
            row = lease_next_row(preparation=work, user=request.user, after=number, now=now)
            if row is None:
                return redirect("vendor_work", preparation_id=work.pk)
            return redirect("vendor_row", preparation_id=work.pk, number=row.number)
    try:
        row = lease_row(preparation=work, user=request.user, number=number, now=now)
    except Conflict as conflict:
        messages.error(request, conflict.message)
        return redirect("vendor_work", preparation_id=work.pk)
    text = value or row.value or row.proposal
    context = {
        "work": work,
        "wish": parse_wish(work.wish),
        "progress": count_progress(work),
        "row": row,
        "error": error,
        "text": text or EMPTY_ROW,
        "turns": read_turns(text or EMPTY_ROW),
        "roles": ROLES,
    }
    status = 200 if error is None else error.status
    return render(request, "console/vendor_row.html", context, status=status)


EMPTY_ROW = json.dumps(
    {"messages": [{"role": "user", "content": ""}] + [{"role": "assistant", "content": ""}]}
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a chat, as the editor has it."""

    role: str
    content: str


def read_turns(text: str) -> list[Turn]:
    """The messages of a row; none where it is no plain chat, which is edited as JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
        return []
    turns: list[Turn] = []
    for message in cast(list[Any], value["messages"]):
        if not isinstance(message, dict) or set(message) != {"role", "content"}:
            return []
        if message["role"] not in ROLES or not isinstance(message["content"], str):
            return []
        turns.append(Turn(message["role"], message["content"]))
    return turns


def read_value(request: PageRequest) -> str:
    """What the editor holds, as JSON: its messages, or the text itself."""
    roles, contents = request.POST.getlist("role"), request.POST.getlist("content")
    text = request.POST.get("value", "")
    if not roles or len(roles) != len(contents):
        return text
    said = [
        # A browser ends lines as the wire wants them; the row has them as people write.
        {"role": role, "content": content.replace("\r\n", "\n")}
        for role, content in zip(roles, contents, strict=True)
        if content.strip()
    ]
    try:
        others = json.loads(text)
    except (ValueError, RecursionError):
        others = {}
    if not isinstance(others, dict):
        others = {}
    return json.dumps({**others, "messages": said}, ensure_ascii=False)


def _read_decision(request: PageRequest) -> RowDecision:
    try:
        return RowDecision(request.POST.get("do", ""))
    except ValueError:
        raise UserError("invalid_decision", "Accept the row, save it, or leave it out.") from None


@page
@require_POST
def accept_many(request: PageRequest, preparation_id: str) -> HttpResponse:
    """Accept all sound rows between two numbers."""
    work = find_work(preparation_id=preparation_id, user=request.user)
    count = accept_rows(
        preparation=work,
        user=request.user,
        first=_read_number(request.POST.get("first")),
        last=_read_number(request.POST.get("last")),
        now=clock.now(),
    )
    messages.success(request, f"{count:,} row{'' if count == 1 else 's'} accepted.")
    return redirect("vendor_work", preparation_id=work.pk)


@page
@require_POST
def undo_last(request: PageRequest, preparation_id: str) -> HttpResponse:
    work = find_work(preparation_id=preparation_id, user=request.user)
    try:
        numbers = undo(preparation=work, user=request.user, now=clock.now())
    except Conflict as conflict:
        messages.error(request, conflict.message)
        return redirect("vendor_work", preparation_id=work.pk)
    if len(numbers) == 1:
        return redirect("vendor_row", preparation_id=work.pk, number=numbers[0])
    messages.success(request, f"{len(numbers):,} rows are as they were.")
    return redirect("vendor_work", preparation_id=work.pk)


@page
@require_POST
def hand_in_rows(request: PageRequest, preparation_id: str) -> HttpResponse:
    work: Preparation = find_work(preparation_id=preparation_id, user=request.user)
    try:
        hand_in(preparation=work, user=request.user, now=clock.now())
    except Conflict as conflict:
        messages.error(request, conflict.message)
    else:
        messages.success(request, "Handed in. It is checked, which takes a moment.")
    return redirect("vendor_work", preparation_id=work.pk)
