"""A provider's home: what it earned, what needs it, and what its nodes do next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Q, QuerySet
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET

from marketplace.accounts.models import Organisation
from marketplace.auction.node_cells import list_next_work
from marketplace.checks.models import SpotCheck
from marketplace.checks.reliability import WINDOW
from marketplace.common import clock
from marketplace.common.money import format_usd
from marketplace.console.earnings import load_days
from marketplace.fleet.models import Node, NodeStatus
from marketplace.fleet.selectors import (
    count_present_nodes,
    find_provider,
    list_open_join_tokens,
    list_present_nodes,
)
from marketplace.jobs.selectors import count_running_jobs
from marketplace.payments.freezes import list_freezes
from marketplace.payments.models import Payout, PayoutAccount, PayoutStatus
from marketplace.payments.selectors import Earnings, get_earnings, sum_earned
from marketplace.payments.stripe_client import is_configured
from marketplace.web.views.requests import PageRequest, page, person_page

DAYS_DRAWN = 14
WORK_SHOWN = 8
#: Nodes that the page names; the list has all.
NODES_SHOWN = 12
#: Nodes that need their provider, of which the page speaks.
NODES_NEEDY = 24
#: A node whose sale ends within this is named.
ENDS_SOON = timedelta(days=1)


@person_page
@require_GET
def open_door(request: PageRequest) -> HttpResponse:
    """Lead somebody who signed in to the home of what they do here."""
    if request.user.is_operator:
        return redirect("operator")
    return redirect("provide_home" if request.organisation.is_provider else "train_home")


@page
@require_GET
def show_home(request: PageRequest) -> HttpResponse:
    return render(
        request, "console/provide_home.html", _load_home(request.organisation, now=clock.now())
    )


def _load_home(owner: Organisation, *, now: datetime) -> dict[str, Any]:
    present = list_present_nodes(owner)
    nodes = list(present[:NODES_SHOWN])
    statuses = count_present_nodes(owner)
    midnight = timezone.localtime(now).replace(hour=0, minute=0, second=0, microsecond=0)
    earnings = get_earnings(organisation=owner)
    running = count_running_jobs(nodes)
    needs = [
        *_find_money_needs(owner, earnings),
        *_find_node_needs(_find_needy(present, now=now)[:NODES_NEEDY], now=now),
        *_find_failed_checks(present, now=now),
        *_find_open_joins(owner, now=now),
    ]
    return {
        "now": now,
        "nodes": [(node, running.get(node.pk, 0)) for node in nodes],
        "all_nodes": statuses.total(),
        "online": statuses[NodeStatus.ONLINE],
        "earned_today": sum_earned(organisation=owner, since=midnight),
        "earned_week": sum_earned(
            organisation=owner, since=midnight - timedelta(days=midnight.weekday())
        ),
        "earnings": earnings,
        "drawn": load_days(owner, days=DAYS_DRAWN, now=now),
        "needs": needs,
        "next_work": list_next_work(nodes=present, now=now, limit=WORK_SHOWN),
    }


@dataclass(frozen=True, slots=True)
class Need:
    """Something that waits for the provider, with the one place where it is dealt with."""

    #: ``bad``: money or work is lost meanwhile; ``warn``: it will be; ``info``: it is as planned.
    tone: str
    title: str
    text: str
    #: Since when, or until when where ``is_ahead``.
    at: datetime | None
    act: str
    href: str
    is_ahead: bool = False


def _find_money_needs(owner: Organisation, earnings: Earnings) -> Iterator[Need]:
    href = reverse("payouts")
    for freeze in list_freezes([owner.pk]):
        yield Need("bad", "Payouts wait", freeze.reason, freeze.since_at, "Payouts", href)
    latest = Payout.objects.filter(organisation=owner).order_by("-made_at").first()
    if latest is not None and latest.status == PayoutStatus.FAILED:
        yield Need(
            "bad",
            "A payout failed",
            latest.failure or "The bank did not take it.",
            latest.made_at,
            "Payouts",
            href,
        )
    owed = earnings.payable_micros
    if owed < settings.PAYOUT_THRESHOLD_MICROS or not is_configured():
        return
    ready = PayoutAccount.objects.filter(organisation=owner, is_ready=True).exists()
    if not ready:
        words = f"{format_usd(owed)} can be paid out, and there is no bank account for it."
        yield Need("warn", "A payout is due", words, None, "Set up payouts", href)


def _find_needy(nodes: QuerySet[Node], *, now: datetime) -> QuerySet[Node]:
    """Those of which ``_find_node_needs`` says something."""
    ends = Q(available_until_at__lte=now + ENDS_SOON, sale_opens=None)
    return nodes.filter(~Q(status=NodeStatus.ONLINE) | Q(suspended_at__isnull=False) | ends)


def _find_node_needs(nodes: Iterable[Node], *, now: datetime) -> Iterator[Need]:
    for node in nodes:
        href = reverse("node_detail", args=[node.pk])
        if node.suspended_at is not None:
            words = f"{node.suspended_reason} It runs nothing until the operator lifts that."
            yield Need(
                "bad", f"{node.name} is suspended", words, node.suspended_at, "Open node", href
            )
        elif node.status == NodeStatus.OFFLINE:
            words = "It sells nothing, and its jobs go on elsewhere. Look at the machine."
            heard = node.last_heartbeat_at or node.joined_at
            yield Need("bad", f"{node.name} is silent", words, heard, "Open node", href)
        elif node.status == NodeStatus.DRAINING:
            words = "It sells nothing more until you put it back on sale."
            yield Need("warn", f"{node.name} is drained", words, node.drained_at, "Open node", href)
        elif node.status == NodeStatus.RESTING:
            words = "It rests until its hours of sale begin."
            begins = node.available_from_at
            yield Need("info", f"{node.name} rests", words, begins, "Hours", f"{href}#hours", True)
        elif (until := node.available_until_at) and node.sale_opens is None:
            if until <= now:
                words = "What you offered is over, so it sells nothing."
                title = f"{node.name} is offered no more"
                yield Need("warn", title, words, until, "Hours", f"{href}#hours")
            elif until <= now + ENDS_SOON:
                words = "Then it sells nothing more."
                title = f"{node.name} is offered for a short time only"
                yield Need("info", title, words, until, "Hours", f"{href}#hours", True)


def _find_failed_checks(nodes: QuerySet[Node], *, now: datetime) -> Iterator[Need]:
    of_nodes = nodes.order_by().values("pk")
    failed = SpotCheck.objects.filter(slice__node__in=of_nodes, failed_at__gt=now - WINDOW)
    for check in failed.select_related("slice__node").order_by("-failed_at")[:WORK_SHOWN]:
        node = check.slice.node
        yield Need(
            "bad",
            f"{node.name} failed a check",
            "Another provider's node came to another result. Test its memory and its drivers.",
            check.failed_at,
            "See reliability",
            f"{reverse('node_detail', args=[node.pk])}#reliability",
        )


def _find_open_joins(owner: Organisation, *, now: datetime) -> Iterator[Need]:
    provider = find_provider(owner)
    if provider is None:
        return
    if provider.suspended_at is not None:
        yield Need(
            "bad",
            "You may list and sell nothing",
            provider.suspended_reason,
            provider.suspended_at,
            "Nodes",
            reverse("node_list"),
        )
    for token in list_open_join_tokens(provider, now=now)[:WORK_SHOWN]:
        yield Need(
            "info",
            "A join command is not used yet",
            f"It lists a node for {token.zone.base_model_name}.",
            token.expires_at,
            "See progress",
            reverse("node_joining", args=[token.pk]),
            True,
        )
