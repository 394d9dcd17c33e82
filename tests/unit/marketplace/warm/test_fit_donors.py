"""Which adapters others' jobs may begin with, what their owners earn, and who bears harm."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import WorkShare
from marketplace.auction.settlement import settle_finished
from marketplace.common.errors import NotFound
from marketplace.common.ids import new_id
from marketplace.fleet.models import Node
from marketplace.jobs.errands import find_errand_blob
from marketplace.jobs.models import Artifact, Job
from marketplace.jobs.services import dispatch_slots
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.models import Earning
from marketplace.warm.consents import set_consent
from marketplace.warm.donors import find_candidates, name_shape
from marketplace.warm.embeddings import ensure_embedding
from marketplace.warm.models import Donor, Offer, Probe
from marketplace.warm.offers import Outlook
from marketplace.warm.outcomes import record_outcome
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from tests.warm_builders import (
    LATER,
    TRAINING,
    answer,
    ask_others,
    bid_warm,
    data_of,
    ended,
    finished,
    live_node,
    quote,
)
from workers.protocol.reports import SliceEnd
from workers.protocol.starts import Drop, Start, StartKind

pytestmark = pytest.mark.django_db


def taken(zone, owner, giver) -> Job:
    """A job that another organisation's near adapter was sold for, before its first slot."""
    node = live_node(zone)
    _, data = ask_others(owner, zone, giver)
    answer(node, 4.0, 0.4)
    return bid_warm(owner, zone, data, quote(owner, zone, data))[1]


def test_what_came_of_anothers_adapter_is_no_ones_to_give_and_goes_with_its_withdrawal(
    zone, owner, giver
):
    job = taken(zone, owner, giver)
    ended(job, zone, step=job.start.steps, total_steps=job.start.steps, valid_loss_after=0.3)
    assert Donor.objects.get(job=job).builds_on_others
    # Nor what its owner makes of it next.
    now = market.slot_at(zone, 108)
    Node.objects.update(last_heartbeat_at=now)
    data = data_of(owner, zone, word="ticket")
    bid = market.bid(owner, zone, data=data, model=f"ft:{job.pk}", now=now, **TRAINING)
    decide_pending_bids(zone=zone, now=now)
    continued = ended(Job.objects.get(bid_id=bid.pk), zone)
    assert Donor.objects.get(job=continued).builds_on_others
    set_consent(organisation=owner, uses_donors=True, gives_adapters=True, now=NOW)
    set_consent(organisation=giver, uses_donors=False, gives_adapters=False, now=NOW)
    third = builders.organisation(usd="50")
    set_consent(organisation=third, uses_donors=True, gives_adapters=False, now=NOW)
    assert quote(third, zone, data_of(third, zone), now=now).outlook is Outlook.NONE
    # Its owner's own jobs begin with it.
    assert quote(owner, zone, data, now=now).measured.start.job_id == continued.pk


def test_a_job_that_did_without_anothers_adapter_is_its_owners_to_give(zone, owner, giver):
    job = taken(zone, owner, giver)
    set_consent(organisation=giver, uses_donors=False, gives_adapters=False, now=LATER)
    job.refresh_from_db()
    assert job.start.dropped is Drop.WITHDRAWN
    ended(job, zone, valid_loss_after=0.3)
    assert not Donor.objects.get(job=job).builds_on_others


def test_an_adapter_withdrawn_while_it_is_probed_is_neither_served_nor_listed(zone, owner, giver):
    live_node(zone)
    donor, data = ask_others(owner, zone, giver)
    probe, artifact = Probe.objects.get(), Artifact.objects.get(job=donor)
    # The list of the zone's donors is some seconds old by now.
    asked = {"token": probe.token, "name": artifact.pk, "now": LATER}
    assert find_errand_blob(node=probe.node, **asked).pk == artifact.pk
    set_consent(organisation=giver, uses_donors=False, gives_adapters=False, now=LATER)
    with pytest.raises(NotFound):
        find_errand_blob(node=probe.node, **asked)
    found = find_candidates(
        organisation=owner,
        zone=zone,
        shape=name_shape(donor.terms.adapter),
        vector=ensure_embedding(data),
        passes=1,
        uses_donors=True,
        now=LATER,
    )
    assert found == []


def test_the_rows_of_a_probe_are_drawn_from_all_over_the_data(zone, owner, giver):
    node = live_node(zone)
    _, data = ask_others(owner, zone, giver)
    rows = answer(node, 4.0, 0.4).rows
    with data.file.open() as file:
        lines = file.read().decode().splitlines()
    assert len(rows) == 16
    assert set(rows) <= set(lines)
    assert set(rows) != set(lines[:16])


def test_a_start_that_takes_off_no_slot_is_not_offered(zone, owner, giver):
    node = live_node(zone)
    _, data = ask_others(owner, zone, giver)
    # Of another task of its family: 30 of 36 steps, which fill as many slots.
    answer(node, 4.0, 3.0)
    found = quote(owner, zone, data)
    assert (found.outlook, found.measured.start, found.cold_price_micros) == (
        Outlook.NONE, None, None,
    )  # fmt: skip
    assert found.price_micros == 300_000
    # With the royalty on top it would have cost more than without.
    assert Offer.objects.get().royalty_micros > 0


@pytest.mark.parametrize(("steps", "spared"), [(6, 222), (20, 116), (36, 0)])
def test_a_royalty_is_paid_for_work_that_was_spared(zone, owner, giver, steps, spared):
    job = taken(zone, owner, giver)
    offer = Offer.objects.get()
    assert (offer.units, offer.cold_units, job.start.steps) == (48, 270, 6)
    ended(job, zone, step=steps, total_steps=steps, valid_loss_after=0.3)
    settle_finished(now=market.slot_at(zone, 110))
    offer.refresh_from_db()
    assert offer.royalty_paid_micros == offer.royalty_micros * spared // 222
    paid = Earning.objects.filter(kind="royalty").values_list("amount_micros", flat=True)
    assert list(paid) == ([offer.royalty_paid_micros] if spared else [])
    assert check_ledger().balanced


def test_a_start_that_falls_behind_and_ends_late_costs_its_nodes_nothing(zone, owner):
    live_node(zone)
    data = data_of(owner, zone)
    finished(owner, zone, data=data)
    settle_finished(now=LATER)
    bid, job = bid_warm(owner, zone, data, quote(owner, zone, data))
    now = market.slot_at(zone, job.cells[0][0])
    dispatch_slots(now=now)
    second = timedelta(seconds=1)
    Job.objects.filter(pk=job.pk).update(deadline_at=now + second)
    market.end_slice(
        job,
        status=SliceEnd.FINISHED,
        now=now + 2 * second,
        valid_loss_before=4.0,
        valid_loss_after=1.0,
    )
    settle_finished(now=market.slot_at(zone, 110))
    bid.refresh_from_db()
    assert bid.credit_micros == bid.payment_micros // 4
    # All 36 steps instead of the 4 sold, at their rate.
    share = WorkShare.objects.get(bid=bid)
    assert share.paid_micros == share.earned_micros == bid.payment_micros * 270 // 32
    assert check_ledger().balanced


def test_an_adapter_that_did_harm_to_two_organisations_is_no_longer_given(zone, owner, giver):
    live_node(zone)
    job = finished(giver, zone)
    donor = Donor.objects.get(job=job)
    one, other = builders.organisation(usd="50"), builders.organisation(usd="50")
    for harmed, did_harm in ((giver, False), (one, False), (one, False), (other, True)):
        fell_behind(job, donor, harmed)
        donor.refresh_from_db()
        assert donor.did_harm is did_harm
    set_consent(organisation=owner, uses_donors=True, gives_adapters=False, now=NOW)
    assert quote(owner, zone, data_of(owner, zone)).outlook is Outlook.NONE


def fell_behind(like, donor, organisation):
    """As a job of an organisation ends that began with a donor and then with the base model."""
    job = Job.objects.get(pk=like.pk)
    job.pk, job.bid_id, job.organisation = new_id("job"), new_id("bid"), organisation
    job.save(force_insert=True)
    offer = Offer.objects.create(
        organisation=organisation,
        zone=job.zone,
        dataset=job.dataset,
        donor=donor,
        settings_hash="",
        kind="donor",
        likeness="near",
        scale=1.0,
        target_loss=1.0,
        steps=1,
        total_steps=2,
        units=1,
        cold_units=2,
        royalty_micros=0,
        made_at=NOW,
        expires_at=NOW,
    )
    start = Start(StartKind.DONOR, donor.pk, donor.job_id, steps=1, offer_id=offer.pk)
    job.terms = replace(job.terms, start=replace(start, dropped=Drop.FELL_BEHIND))
    record_outcome(job=job, offer=offer, royalty_micros=0, saved_micros=0, now=LATER)
