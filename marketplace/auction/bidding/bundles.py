"""Bundles: one request for several jobs that differ in some settings, a sweep.

Its bids are placed together, received into the log by one entry and decided one after another with
nothing in between. With ``all_or_none`` the auction decides them as one: one limit and one hold for
all, and all of them win or none does. Without it, each stands for itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from itertools import product
from typing import Any

from django.db import transaction

from marketplace.accounts.models import User
from marketplace.auction.bidding.job_request import JobRequest
from marketplace.auction.bidding.limits import refuse_by_limits
from marketplace.auction.bidding.place import NewBid, draft_bid
from marketplace.auction.bidding.start_from import WARM
from marketplace.auction.bidding.terms import NAME_LIMIT, check_name, check_price_micros
from marketplace.auction.lane import wakeups
from marketplace.auction.models import Bid, Bundle
from marketplace.common.errors import Conflict, UserError
from marketplace.jobs.models import Dataset
from marketplace.payments.holds import HoldRequest, place_holds
from marketplace.payments.locks import lock_wallets

#: Most jobs of one bundle.
MOST_JOBS = 16
#: Settings that a sweep may have several values of, and what names call them.
SWEPT = {
    "adapter.rank": "rank",
    "adapter.alpha": "alpha",
    "adapter.dropout": "dropout",
    "training.learning_rate": "lr",
    "training.epochs": "epochs",
    "training.batch_size": "batch",
    "training.seed": "seed",
}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class NewBundle(JobRequest):
    """A bundle as it was asked for, nothing of it checked; none has a warm start."""

    placed_by: User | None
    name: str
    #: Values by setting; the jobs are all their combinations.
    sweep: Mapping[str, Sequence[Any]]
    all_or_none: bool
    #: The most that all jobs are worth, or each of them; held until decided.
    price_micros: int
    deadline_at: datetime
    #: The same key with the same request is the same bundle.
    idempotency_key: str | None
    #: The API key that it came with, whose caps it counts for.
    api_key_id: str | None = None


@dataclass(frozen=True, slots=True)
class SweptJob:
    """One combination of a sweep's values."""

    #: Such as ``rank 8, seed 2``.
    label: str
    adapter: Mapping[str, Any]
    training: Mapping[str, Any]


def place_bundle(*, asked: NewBundle, now: datetime) -> Bundle:
    """Place a bundle's bids and hold the money for them: all of it, or nothing.

    Raises
    ------
    UserError
        ``invalid_sweep``, or what refuses one of its bids; nothing was stored or held.
    Conflict
        ``idempotency_key_reused``.
    PaymentRequired
        ``insufficient_funds``.
    """
    earlier = _find_earlier(asked)
    if earlier is not None:
        return earlier
    check_price_micros(asked.price_micros)
    check_ready(asked.dataset)
    bundle = Bundle(
        zone=asked.zone,
        organisation=asked.organisation,
        placed_by=asked.placed_by,
        name=check_name(asked.name),
        all_or_none=asked.all_or_none,
        price_micros=asked.price_micros,
        deadline_at=asked.deadline_at,
        sweep={name: list(values) for name, values in asked.sweep.items()},
        idempotency_key=asked.idempotency_key,
        request_hash=asked.request_hash,
        created_at=now,
    )
    bids = [
        draft_bid(build_new_bid(asked, job), now=now)
        for job in list_jobs(
            adapter=asked.adapter, training=asked.training, sweep=asked.sweep, model=asked.model
        )
    ]
    for bid in bids:
        bid.bundle, bid.is_joint = bundle, asked.all_or_none
    if asked.all_or_none:
        _share_limit(bids, asked.price_micros)
    with transaction.atomic():
        locked = lock_wallets([asked.organisation.pk])
        # Under the lock, so that no other bundle under its key can come in between.
        earlier = _find_earlier(asked)
        if earlier is not None:
            return earlier
        _check_limits(bids, now=now)
        held = (
            [(asked.price_micros, bundle.hold_reference)]
            if asked.all_or_none
            else [(bid.price_micros, bid.hold_reference) for bid in bids]
        )
        wanted = [
            HoldRequest(
                asked.organisation.pk,
                micros,
                name,
                placed_by_id=bids[0].placed_by_id,
                api_key_id=asked.api_key_id,
            )
            for micros, name in held
        ]
        for hold in place_holds(wanted=wanted, locked=locked, now=now):
            if isinstance(hold, UserError):
                raise hold
        bundle.save(force_insert=True)
        Bid.objects.bulk_create(bids)
        wakeups.wake_lane_on_commit(zone_id=asked.zone.pk)
    return bundle


def _check_limits(bids: Sequence[Bid], *, now: datetime) -> None:
    """Refuse the bundle where one of its bids is too much."""
    drafts = dict(enumerate(bids))
    refused = refuse_by_limits(drafts, now=now)
    for refusal in refused.values():
        raise refusal


def list_jobs(
    *,
    adapter: Mapping[str, Any],
    training: Mapping[str, Any],
    sweep: Mapping[str, Sequence[Any]],
    model: str = "",
) -> list[SweptJob]:
    """All combinations of a sweep's values.

    Raises
    ------
    UserError
        ``invalid_sweep``.
    """
    if model.startswith(WARM):
        raise _invalid("A warm start is for one job. Begin all of them with the base model.")
    for name, values in sweep.items():
        if name not in SWEPT:
            raise _invalid(f"{name!r} cannot be swept; choose of {', '.join(SWEPT)}.")
        if not values or any(isinstance(value, dict | list) for value in values):
            raise _invalid(f"Give {name} one value or more.")
        if len({json.dumps(value) for value in values}) < len(values):
            raise _invalid(f"A value of {name} stands there twice.")
    count = 1
    for values in sweep.values():
        count *= len(values)
    if not 2 <= count <= MOST_JOBS:
        raise _invalid(
            f"These values make {count} job{'' if count == 1 else 's'}; "
            f"a bundle has 2 to {MOST_JOBS}."
        )
    return [
        _build_job(adapter, training, dict(zip(sweep, values, strict=True)))
        for values in product(*sweep.values())
    ]


def check_ready(dataset: Dataset) -> None:
    """Refuse data that a vendor must prepare: it prepares them for one job, not for several.

    Raises
    ------
    UserError
        ``needs_preparation``.
    """
    if dataset.needs_preparation:
        raise UserError(
            "needs_preparation",
            "No line of this file can be used for training as it is. Bid for one job with a "
            "preparation first. The data set that its job trains on can then be swept.",
            param="dataset_id",
        )


def _build_job(
    adapter: Mapping[str, Any], training: Mapping[str, Any], values: Mapping[str, Any]
) -> SweptJob:
    groups = {"adapter": dict(adapter), "training": dict(training)}
    for name, value in values.items():
        group, _, setting = name.partition(".")
        groups[group][setting] = value
    label = ", ".join(f"{SWEPT[name]} {value}" for name, value in values.items())
    return SweptJob(label, groups["adapter"], groups["training"])


def _invalid(sentence: str) -> UserError:
    return UserError("invalid_sweep", sentence, param="sweep")


def build_new_bid(asked: NewBundle, job: SweptJob) -> NewBid:
    """The bid for one job of a bundle."""
    # The name is shortened, not the label, so that the jobs of a bundle stay distinct.
    name = asked.name.strip()[: max(NAME_LIMIT - len(job.label) - 2, 8)]
    asked_for_each = {each.name: getattr(asked, each.name) for each in fields(JobRequest)}
    asked_for_each |= {"adapter": job.adapter, "training": job.training}
    return NewBid(
        placed_by=asked.placed_by,
        name=f"{name}, {job.label}"[:NAME_LIMIT],
        price_micros=asked.price_micros,
        deadline_at=asked.deadline_at,
        idempotency_key=None,
        **asked_for_each,
    )


def _share_limit(bids: Sequence[Bid], price_micros: int) -> None:
    """Give each bid its part of a limit by its work; the parts add up to the limit.

    What the parts are decides nothing: the auction compares their sum with the sum of prices.

    Raises
    ------
    UserError
        ``invalid_price``: there is not a micro-dollar for each.
    """
    if price_micros < len(bids):
        raise UserError("invalid_price", "The limit is too small for so many jobs.", param="price")
    work = sum(bid.compute_demand for bid in bids)
    left = price_micros
    for place, bid in enumerate(bids):
        rest = len(bids) - place - 1
        share = left if rest == 0 else int(price_micros * bid.compute_demand / work)
        bid.price_micros = min(max(share, 1), left - rest)
        left -= bid.price_micros


def _find_earlier(asked: NewBundle) -> Bundle | None:
    """The bundle placed before under the same key.

    Raises
    ------
    Conflict
        ``idempotency_key_reused``.
    """
    if asked.idempotency_key is None:
        return None
    found = Bundle.objects.filter(
        organisation=asked.organisation, idempotency_key=asked.idempotency_key
    ).first()
    if found is not None and found.request_hash != asked.request_hash:
        raise Conflict(
            "idempotency_key_reused",
            f"The idempotency key was used for {found.pk} with another request. "
            "Send a new key with a new request.",
            extra={"bundle_id": found.pk},
        )
    return found
