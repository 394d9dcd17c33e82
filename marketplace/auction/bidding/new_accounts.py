"""Bids of new organisations that have as many jobs as they may."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from django.conf import settings

from marketplace.accounts.new_accounts import filter_new
from marketplace.auction.models import Bid, BidStatus
from marketplace.common.errors import UserError
from marketplace.jobs.models import Job


def refuse_crowds(drafts: Mapping[int, Bid], *, now: datetime) -> dict[int, UserError]:
    """Refuse those bids that would give a new organisation more jobs at a time than it may.

    Call while holding the organisations' wallets, so that no two are placed at once. Bids that
    wait count as jobs; code: ``new_account_jobs``.
    """
    left = count_job_room({bid.organisation_id for bid in drafts.values()}, now=now)
    refused: dict[int, UserError] = {}
    for index, bid in drafts.items():
        owner = bid.organisation_id
        if owner not in left:
            continue
        if left[owner] <= 0:
            refused[index] = build_crowd_refusal()
        else:
            left[owner] -= 1
    return refused


def count_job_room(organisation_ids: Iterable[str], *, now: datetime) -> dict[str, int]:
    """Count how many more jobs each new organisation may have; others have no limit."""
    new = filter_new(organisation_ids, now=now)
    return {owner: settings.NEW_ACCOUNT_JOBS - _count_jobs(owner) for owner in sorted(new)}


def build_crowd_refusal() -> UserError:
    return UserError(
        "new_account_jobs",
        f"In its first {settings.NEW_ACCOUNT_DAYS} days an organisation may have "
        f"{settings.NEW_ACCOUNT_JOBS} jobs at a time. Ask again when one is done, or ask the "
        "operator of this market.",
        status=429,
    )


def _count_jobs(organisation_id: str) -> int:
    waiting = Bid.objects.filter(organisation=organisation_id, status=BidStatus.PENDING)
    jobs = Job.objects.filter(organisation=organisation_id, status__in=Job.ACTIVE)
    return waiting.count() + jobs.count()
