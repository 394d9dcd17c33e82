"""What a provider earned: by day, by node, by job, each amount with what it was made of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.http import HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from marketplace.accounts.models import Organisation
from marketplace.auction.node_work import SettledWork, list_node_work, sum_node_work
from marketplace.auction.pay_rule import PAY_RULE
from marketplace.common import clock
from marketplace.common.money import count_decimals
from marketplace.console.queries_in_address import read_cursor, read_text
from marketplace.payments.models import EarningKind
from marketplace.payments.selectors import (
    EarningsDay,
    get_earnings,
    list_earning_days,
    sum_earned,
    sum_earned_by_kind,
)
from marketplace.web.views.requests import PageRequest, page

VIEWS = ("day", "node", "job")
DAYS = 30
ROWS_PER_PAGE = 25
#: What is earned with no work of a node for a job.
_OTHER = {
    EarningKind.IDLE: "Cells given back too late to be sold again",
    EarningKind.ROYALTY: "Royalties for adapters",
    EarningKind.VENDOR: "Data prepared",
}


@page
@require_GET
def show_earnings(request: PageRequest) -> HttpResponse:
    """``?by=`` day, node or job; ``node`` and ``job`` narrow the last."""
    now, owner = clock.now(), request.organisation
    by = request.GET.get("by", "day")
    node_id, job_id = read_text(request, "node"), read_text(request, "job")
    by = "job" if node_id or job_id else by if by in VIEWS else "day"
    since = now - timedelta(days=DAYS)
    context: dict[str, Any] = {
        "by": by,
        "views": VIEWS,
        "days_shown": DAYS,
        "earnings": get_earnings(organisation=owner),
        "earned": sum_earned(organisation=owner, since=since),
        "pay_rule": PAY_RULE,
        "node_id": node_id,
        "job_id": job_id,
    }
    if by == "day":
        context["days"] = load_days(owner, days=DAYS, now=now)
    elif by == "node":
        context |= _load_nodes(owner, since=since)
    else:
        context |= _load_jobs(
            owner, node_id=node_id, job_id=job_id, before=read_cursor(request, "before")
        )
    return render(request, "console/earnings.html", context)


@dataclass(frozen=True, slots=True)
class EarningBars:
    """Days with their bars, the latest last."""

    #: ``(x, y, height, day)``.
    bars: tuple[tuple[str, str, str, EarningsDay], ...]
    width: str
    #: The latest first, as a table lists them.
    rows: tuple[EarningsDay, ...]
    most_micros: int
    decimals: int

    @property
    def total_micros(self) -> int:
        return sum(day.amount_micros for day in self.rows)


def load_days(owner: Organisation, *, days: int, now: datetime) -> EarningBars:
    """What was earned on each of the last days, as days are where the visitor is."""
    here = timezone.get_current_timezone()
    rows, _ = list_earning_days(
        organisation=owner, until=timezone.localtime(now).date(), days=days, zone=here
    )
    most = max((day.amount_micros for day in rows), default=0)
    bars = [
        (
            f"{(k + 0.12) / days * 100:.2f}%",
            f"{100 - day.amount_micros / max(1, most) * 100:.1f}%",
            f"{day.amount_micros / max(1, most) * 100:.1f}%",
            day,
        )
        for k, day in enumerate(reversed(rows))
    ]
    return EarningBars(
        tuple(bars),
        f"{76 / days:.2f}%",
        tuple(rows),
        most,
        count_decimals(day.amount_micros for day in rows),
    )


def _load_nodes(owner: Organisation, *, since: datetime) -> dict[str, Any]:
    """By node, and what no node earned for a job, so that all adds up to what was earned."""
    nodes = sum_node_work(organisation=owner, since=since)
    kinds = sum_earned_by_kind(organisation=owner, since=since)
    others = [(_OTHER[kind], kinds[kind]) for kind in _OTHER if kinds.get(kind)]
    besides = kinds.get(EarningKind.PROVIDER, 0) - sum(row.paid_micros for row in nodes)
    if besides:
        others.append(("Answers, checks, exports and express", besides))
    amounts = [*(row.paid_micros for row in nodes), *(amount for _, amount in others)]
    return {
        "nodes": nodes,
        "others": others,
        "total": sum(amounts),
        "decimals": count_decimals(amounts),
    }


def _load_jobs(
    owner: Organisation, *, node_id: str, job_id: str, before: int | None
) -> dict[str, Any]:
    works = list_node_work(
        organisation=owner,
        limit=ROWS_PER_PAGE + 1,
        before=before,
        node_id=node_id or None,
        job_id=job_id or None,
    )
    shown = works[:ROWS_PER_PAGE]
    narrowed = {"by": "job", "node": node_id, "job": job_id}
    newest = {name: value for name, value in narrowed.items() if value}
    has_more = len(works) > ROWS_PER_PAGE
    return {
        "works": shown,
        "newest": f"?{urlencode(newest)}",
        "older": f"?{urlencode(newest | {'before': shown[-1].share.pk})}" if has_more else None,
        "is_later": before is not None,
        "node": _find_node(shown, node_id),
        "decimals": count_decimals(work.share.paid_micros for work in shown),
    }


def _find_node(works: list[SettledWork], node_id: str) -> Any:
    """The node that the list is narrowed to, where it has any work."""
    return works[0].share.node if node_id and works else None
