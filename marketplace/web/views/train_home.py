"""The home of who trains: what runs, the money, the last results, and the first steps."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET

from marketplace.accounts.models import Organisation
from marketplace.auction.models import Bid
from marketplace.auction.selectors import list_bids
from marketplace.common import clock
from marketplace.jobs.models import Artifact, Job
from marketplace.jobs.selectors import list_continuable_jobs, list_datasets
from marketplace.payments.selectors import Wallet, get_wallet
from marketplace.web.presenters.progress import compute_done_share, compute_left_s
from marketplace.web.views.requests import PageRequest, page
from marketplace.webhooks.models import Notice

RUNNING_SHOWN, RESULTS_SHOWN, NOTICES_SHOWN = 6, 5, 3


@dataclass(frozen=True, slots=True)
class FirstStep:
    """One of the things that lead to a first adapter."""

    name: str
    text: str
    href: str
    is_done: bool


@page
@require_GET
def show_home(request: PageRequest) -> HttpResponse:
    owner, now = request.organisation, clock.now()
    wallet = get_wallet(organisation=owner)
    unread = Notice.objects.filter(user=request.user, organisation=owner, read_at=None)
    context = {
        "running": _list_running(owner, now=now),
        "results": _list_results(owner),
        "steps": _list_first_steps(owner, wallet),
        "wallet": wallet,
        "notices": unread.order_by("-pk")[:NOTICES_SHOWN],
    }
    return render(request, "web/train_home.html", context)


def _list_running(owner: Organisation, *, now: datetime) -> list[dict[str, Any]]:
    """The open jobs, what is to be done first before the others."""
    jobs = Job.objects.filter(organisation=owner, settled_at=None, status__in=Job.ACTIVE)
    shown = jobs.select_related("zone").order_by("finish_planned_at", "pk")[:RUNNING_SHOWN]
    return [
        {"job": job, "share": compute_done_share(job), "left_s": compute_left_s(job, now)}
        for job in shown
    ]


def _list_results(owner: Organisation) -> list[dict[str, Any]]:
    """The jobs that ended last, with what they cost."""
    ended = Job.objects.filter(organisation=owner, finished_at__isnull=False)
    jobs = list(ended.select_related("zone").order_by("-finished_at")[:RESULTS_SHOWN])
    bids = Bid.objects.in_bulk([job.bid_id for job in jobs])
    made = set(Artifact.objects.filter(job__in=jobs).values_list("job_id", flat=True))
    return [{"job": job, "bid": bids[job.bid_id], "has_adapter": job.pk in made} for job in jobs]


def _list_first_steps(owner: Organisation, wallet: Wallet) -> list[FirstStep]:
    """The way to a first adapter; nothing for those who have one."""
    if list_continuable_jobs(owner).exists():
        return []
    has_bid = list_bids(owner).exists()
    has_money = wallet.available_micros + wallet.held_micros > 0
    has_data = list_datasets(owner).exists()
    return [
        FirstStep(
            "Upload your data",
            "Examples as JSON lines, CSV or text. They are checked line by line.",
            reverse("dataset_list"),
            has_data,
        ),
        FirstStep(
            "Put money in your wallet",
            "A bid holds its limit. You pay the posted price, never more.",
            reverse("wallet"),
            has_money or has_bid,
        ),
        FirstStep(
            "Place a bid",
            "See the price by each deadline, and get a yes or no at once.",
            reverse("bid_new"),
            has_bid,
        ),
        FirstStep(
            "Try your adapter",
            "It appears under Adapters when the job is done.",
            reverse("adapter_list"),
            False,
        ),
    ]
