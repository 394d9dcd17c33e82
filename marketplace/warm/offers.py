"""Warm starts as offers: which adapter, how much less work, and what the donor gets.

1. An own adapter that was trained on the very same rows needs no probe.
2. Otherwise a warm node is asked for the losses of the base and of at most eight donors on 16 rows:
   own ones first, then those of others where both sides allow it. The one of the lowest loss is
   taken, if it is well below the base's.
3. The offer sells the share of the work that earlier starts of its kind needed, with a margin.

Without an answer in time, without rows to see the result by, without a donor, or once the market
paid too much for its owner's starts (``overruns``) there is no offer: the job is sold cold. What is
offered does not depend on any bid.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from django.db import transaction
from django.db.models import Q

from marketplace.accounts.models import Organisation
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import list_nodes_on_sale
from marketplace.jobs.models import Dataset, ErrandState
from marketplace.warm.consents import may_use_donors
from marketplace.warm.donors import (
    FORMATS,
    find_candidates,
    find_own_twin,
    has_donors,
    has_passes,
    is_trained_alike,
    is_usable,
    name_shape,
)
from marketplace.warm.embeddings import ensure_embedding
from marketplace.warm.locks import lock_offers
from marketplace.warm.models import Donor, Offer, Probe
from marketplace.warm.overruns import find_room, may_be_offered
from marketplace.warm.probes import ask_probe
from scheduler.merging.warm_starts import (
    OBSERVED_MAX,
    RELATED_SCALE,
    ROYALTY_PERCENT,
    Likeness,
    choose_start,
    find_target_loss,
    find_warm_steps,
    judge_likeness,
    quote_share,
)
from workers.protocol.job_spec import AdapterKind, AdapterSpec, TrainingSpec
from workers.protocol.row_order import count_validation_rows
from workers.protocol.starts import StartKind
from workers.protocol.wire import dumps
from workers.protocol.work import WorkPlan

#: An offer, and a probe's answer, hold for this time.
OFFER_LIFE = timedelta(hours=1)
#: After a node did not answer, no node is asked for this time.
RETRY_AFTER = timedelta(minutes=1)
#: Offers of one organisation that may be open at a time, and probes that it may cause in an hour;
#: further jobs are quoted cold.
OPEN_MAX, PROBES_MAX = 200, 30
#: Probes, and offers that no bid names, are deleted this time after their end.
KEPT_FOR = timedelta(days=1)
#: Starts of one organisation that are counted among a zone's latest, so that none makes the price.
OBSERVED_OF_ONE = 10
#: Starts count for so long. Where the latest fell behind none is offered, so none is measured
#: either: without an end the zone would never offer one again.
OBSERVED_FOR = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class ColdJob:
    """A job as it would be trained cold."""

    organisation: Organisation
    zone: Zone
    dataset: Dataset
    adapter: AdapterSpec
    training: TrainingSpec
    #: Its work, step by step.
    plan: WorkPlan
    #: Its rows go to nodes of verified providers only.
    verified_only: bool = False

    @property
    def settings_hash(self) -> str:
        return hashlib.sha256(dumps([self.adapter, self.training]).encode()).hexdigest()


class Outlook(StrEnum):
    """Whether there is a warm start for a job."""

    OFFERED = "offered"
    #: A node was asked; its answer is not there yet.
    ASKED = "asked"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class FoundOffer:
    """What there is for a job."""

    outlook: Outlook
    offer: Offer | None = None


def find_offer(job: ColdJob, *, now: datetime) -> FoundOffer:
    """The job's offer, made now if it can be; a node is asked where that is what is missing."""
    if not _can_start_warm(job) or not may_be_offered(owner_id=job.organisation.pk, now=now):
        return FoundOffer(Outlook.NONE)
    uses_donors = may_use_donors(job.dataset)
    known = _find_known(job, uses_donors=uses_donors, now=now)
    if known is not None:
        return FoundOffer(Outlook.OFFERED, known)
    shape = name_shape(job.adapter)
    twin = find_own_twin(
        organisation=job.organisation,
        zone=job.zone,
        shape=shape,
        data_sha256=job.dataset.sha256,
        training=job.training,
    )
    if twin is not None:
        return _make_offer(job, twin, Likeness.SAME_DATA, probed_loss=twin.loss_after, now=now)
    probe = _find_probe(job, shape, now=now)
    if probe is None:
        probe = _ask(job, shape, uses_donors=uses_donors, now=now)
    if probe is None:
        return FoundOffer(Outlook.NONE)
    if probe.state == ErrandState.DONE:
        return _offer_best(job, probe, uses_donors=uses_donors, now=now)
    is_asked = probe.state == ErrandState.ASKED
    is_in_time = probe.expires_at is not None and now <= probe.expires_at
    return FoundOffer(Outlook.ASKED if is_asked and is_in_time else Outlook.NONE)


def find_usable_offer(
    offer_id: str, *, organisation: Organisation, zone: Zone, dataset: Dataset, now: datetime
) -> Offer | None:
    """An offer that a bid names, if the job may still begin with it."""
    offer = (
        Offer.objects.select_related("donor__job", "donor__artifact")
        .filter(pk=offer_id, organisation=organisation, zone=zone, dataset=dataset)
        .filter(expires_at__gt=now, job=None)
        .first()
    )
    if offer is None or not may_be_offered(owner_id=organisation.pk, now=now):
        return None
    uses_donors = may_use_donors(dataset)
    usable = is_usable(offer.donor, organisation=organisation, uses_donors=uses_donors)
    return offer if usable else None


def sweep_offers(*, now: datetime) -> int:
    """Delete old offers that no bid names, and old probes; how many of both."""
    unused = Offer.objects.filter(bid_id=None, job=None, expires_at__lt=now - KEPT_FOR)
    offers, _ = unused.delete()
    _, deleted = Probe.objects.filter(expires_at__lt=now - KEPT_FOR).delete()
    return offers + deleted.get(Probe._meta.label, 0)


def find_taken_offers(offer_ids: Collection[str], *, now: datetime) -> set[str]:
    """Those of these offers that no further bid may name; the others stay free until commit.

    A bid names one already, or its owner's other starts have used up what the market may pay for
    them. Call while holding the owners' wallets.
    """
    taken: set[str] = set()
    room: dict[str, int] = {}
    for offer in lock_offers(offer_ids=offer_ids):
        owner_id = offer.organisation_id
        if owner_id not in room:
            room[owner_id] = find_room(owner_id=owner_id, now=now)
        if offer.bid_id is not None or room[owner_id] <= 0:
            taken.add(offer.pk)
        else:
            room[owner_id] -= offer.risk_micros
    return taken


def reserve_offers(bid_ids: Mapping[str, str]) -> None:
    """Give offers to the bids that name them, by offer; call after ``find_taken_offers``."""
    for offer_id, bid_id in bid_ids.items():
        Offer.objects.filter(pk=offer_id).update(bid_id=bid_id)


def release_offers(*, bid_ids: Collection[str]) -> None:
    """Give back offers whose bids did not win."""
    Offer.objects.filter(bid_id__in=bid_ids).update(bid_id=None)


def _can_start_warm(job: ColdJob) -> bool:
    held_out = count_validation_rows(rows=job.dataset.rows, share=job.training.validation_share)
    return (
        job.dataset.format in FORMATS
        and job.adapter.kind is AdapterKind.LORA
        and held_out > 0
        and job.plan.total_steps > job.plan.evaluation_interval
    )


def _find_known(job: ColdJob, *, uses_donors: bool, now: datetime) -> Offer | None:
    offers = Offer.objects.filter(
        organisation=job.organisation,
        zone=job.zone,
        dataset=job.dataset,
        settings_hash=job.settings_hash,
        expires_at__gt=now,
        bid_id=None,
        job=None,
    )
    offer = offers.select_related("donor__job").order_by("-made_at").first()
    if offer is None:
        return None
    usable = is_usable(offer.donor, organisation=job.organisation, uses_donors=uses_donors)
    return offer if usable else None


def _find_probe(job: ColdJob, shape: str, *, now: datetime) -> Probe | None:
    probes = Probe.objects.filter(
        dataset=job.dataset, zone=job.zone, shape=shape, asked_at__gt=now - OFFER_LIFE
    )
    # One that its node did not answer keeps no further quote cold for long.
    is_fresh = Q(state=ErrandState.DONE) | Q(asked_at__gt=now - RETRY_AFTER)
    return probes.filter(is_fresh).order_by("-asked_at").first()


def _ask(job: ColdJob, shape: str, *, uses_donors: bool, now: datetime) -> Probe | None:
    if not has_donors(organisation=job.organisation, zone=job.zone, shape=shape):
        # Most quotes: no file is read for them.
        return None
    asked = Probe.objects.filter(dataset__organisation=job.organisation)
    if asked.filter(asked_at__gt=now - timedelta(hours=1)).count() >= PROBES_MAX:
        return None
    donors = find_candidates(
        organisation=job.organisation,
        zone=job.zone,
        shape=shape,
        vector=ensure_embedding(job.dataset),
        passes=job.training.epochs,
        uses_donors=uses_donors,
        now=now,
    )
    if not donors:
        return None
    return ask_probe(
        zone=job.zone,
        dataset=job.dataset,
        shape=shape,
        sequence_length=job.training.sequence_length,
        donors=[(donor, 1.0) for donor in donors],
        verified_only=job.verified_only,
        now=now,
    )


def _offer_best(job: ColdJob, probe: Probe, *, uses_donors: bool, now: datetime) -> FoundOffer:
    """The offer that an answered probe leads to. The same answer leads to the same offer."""
    known = Donor.objects.select_related("job").in_bulk(probe.artifact_ids)
    losses = [
        loss
        if (donor := known.get(pk)) is not None
        and has_passes(donor.job, job.training.epochs)
        and is_usable(donor, organisation=job.organisation, uses_donors=uses_donors)
        else None
        for pk, loss in zip(probe.artifact_ids, probe.losses, strict=True)
    ]
    at = None if probe.base_loss is None else choose_start(probe.base_loss, losses)
    if at is None or probe.base_loss is None:
        return FoundOffer(Outlook.NONE)
    donor, loss = known[probe.artifact_ids[at]], losses[at]
    if loss is None:
        return FoundOffer(Outlook.NONE)
    likeness = judge_likeness(probe.base_loss, loss, donor_loss=donor.loss_after)
    if not is_trained_alike(donor.job, job.training, steps=job.plan.total_steps):
        # How far it came says little of how far this job would come.
        likeness = Likeness.RELATED
    return _make_offer(job, donor, likeness, probed_loss=loss, now=now)


def _make_offer(
    job: ColdJob, donor: Donor, likeness: Likeness, *, probed_loss: float, now: datetime
) -> FoundOffer:
    plan = job.plan
    mine = Offer.objects.filter(organisation=job.organisation, bid_id=None, job=None)
    if mine.filter(expires_at__gt=now).count() >= OPEN_MAX:
        return FoundOffer(Outlook.NONE)
    # An organisation whose own starts fell behind gets no starts from others.
    share = max(
        quote_share(likeness, _list_observed(job.zone, likeness, now=now)),
        quote_share(likeness, _list_observed(job.zone, likeness, of=job.organisation, now=now)),
    )
    steps = find_warm_steps(share, total_steps=plan.total_steps)
    if steps >= plan.total_steps:
        return FoundOffer(Outlook.NONE)
    units = plan.count_ended_at(steps)
    scale = RELATED_SCALE if likeness is Likeness.RELATED else 1.0
    is_own = donor.organisation_id == job.organisation.pk
    royalty = 0 if is_own else _price_royalty(job.zone, plan.total_units - units)
    with transaction.atomic():
        offer = Offer.objects.create(
            organisation=job.organisation,
            zone=job.zone,
            dataset=job.dataset,
            donor=donor,
            settings_hash=job.settings_hash,
            kind=StartKind.OWN if is_own else StartKind.DONOR,
            likeness=likeness,
            scale=scale * donor.job.terms.adapter.alpha / job.adapter.alpha,
            target_loss=find_target_loss(
                likeness, donor_loss=donor.loss_after, probed_loss=probed_loss
            ),
            steps=steps,
            total_steps=plan.total_steps,
            units=units,
            cold_units=plan.total_units,
            royalty_micros=royalty,
            risk_micros=_estimate_risk(job.zone, sold=units, left=2 * plan.total_units - units),
            made_at=now,
            expires_at=now + OFFER_LIFE,
        )
    return FoundOffer(Outlook.OFFERED, offer)


def _list_observed(
    zone: Zone, likeness: Likeness, *, of: Organisation | None = None, now: datetime
) -> list[float]:
    """What the latest starts of the kind needed, the oldest first."""
    recent = Offer.objects.filter(measured_at__gt=now - OBSERVED_FOR)
    measured = recent.filter(zone=zone, likeness=likeness, needed_share__isnull=False)
    if of is not None:
        measured = measured.filter(organisation=of)
    latest = measured.order_by("-measured_at").values_list("organisation", "needed_share")
    counted: Counter[str] = Counter()
    shares: list[float] = []
    for organisation_id, share in latest[: OBSERVED_MAX * OBSERVED_OF_ONE]:
        counted[organisation_id] += 1
        is_counted = of is not None or counted[organisation_id] <= OBSERVED_OF_ONE
        if is_counted and share is not None:
            shares.append(share)
    return shares[:OBSERVED_MAX][::-1]


def _estimate_risk(zone: Zone, *, sold: int, left: int) -> int:
    """What the market pays if the start falls behind and begins again: at the rate of what is sold.

    That is paid by whole slots, here at the zone's lowest ask.
    """
    asks = [
        node.ask_micros * math.ceil(sold / node.compute_capacity)
        for node in list_nodes_on_sale(zone)
        if node.compute_capacity > 0
    ]
    return int(min(asks, default=0)) * left // sold


def _price_royalty(zone: Zone, saved_units: int) -> int:
    """The donor's part of what the saved work costs at the zone's lowest ask, rounded down."""
    asks = [
        node.ask_micros / node.compute_capacity
        for node in list_nodes_on_sale(zone)
        if node.compute_capacity > 0
    ]
    return int(saved_units * min(asks, default=0.0) * ROYALTY_PERCENT // 100)
