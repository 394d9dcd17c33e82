"""Adapters that others give: consent, probes, royalties and withdrawal."""

from __future__ import annotations

from datetime import timedelta

import pytest

from marketplace.auction.bidding.job_request import JobRequest
from marketplace.auction.bidding.quotes import make_quote
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.models import Bid
from marketplace.auction.settlement import settle_finished
from marketplace.common.errors import Conflict, NotFound, UserError
from marketplace.fleet.models import Node
from marketplace.jobs.errands import find_errand_blob
from marketplace.jobs.models import Artifact, ErrandState, MetricPoint
from marketplace.jobs.services import dispatch_slots
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.models import Earning
from marketplace.warm.consents import set_adapter_consent, set_consent, set_dataset_consent
from marketplace.warm.models import Donor, Offer, Probe
from marketplace.warm.offers import Outlook
from marketplace.warm.probes import PROBE_S
from scheduler.merging.warm_starts import Likeness
from tests import builders
from tests import market_builders as market
from tests.audits import alter_row
from tests.builders import NOW
from tests.errand_builders import answer_errand
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
from workers.protocol.probes import ProbeResult

pytestmark = pytest.mark.django_db


def test_a_donor_that_knows_the_rows_lowers_the_price_and_earns_a_royalty(zone, owner, giver):
    node = live_node(zone)
    donor, data = ask_others(owner, zone, giver)
    probe = answer(node, 4.0, 0.4)
    assert len(probe.rows) == 16
    assert [one.scale for one in probe.adapters] == [1.0]
    offered = quote(owner, zone, data)
    start = offered.measured.start
    assert (offered.outlook, start.kind, start.job_id) == (Outlook.OFFERED, "donor", donor.pk)
    assert offered.price_micros < offered.cold_price_micros
    assert offered.parts.vendor == start.royalty_micros > 0
    bid, job = bid_warm(owner, zone, data, offered)
    assert bid.payment_micros == offered.price_micros
    assert verify_zone(zone).problems == []
    dispatch_slots(now=market.slot_at(zone, job.cells[0][0]))
    held = market.open_slice(job)
    MetricPoint.objects.create(
        job=job, slice=held, seq=1, at=NOW, step=4, epoch=0.1, valid_loss=0.3
    )
    ended(job, zone, step=start.steps, total_steps=start.steps, valid_loss_after=0.3)
    now = market.slot_at(zone, 110)
    assert settle_finished(now=now) == 2
    earning = Earning.objects.get(kind="royalty")
    assert (earning.organisation, earning.amount_micros) == (giver, start.royalty_micros)
    offer = Offer.objects.get(pk=start.offer_id)
    assert offer.job == job
    # Four steps of eight rows.
    assert offer.needed_share == 32 / 270
    assert offer.royalty_paid_micros == start.royalty_micros
    assert offer.saved_micros == 300_000 - bid.payment_micros
    bid.refresh_from_db()
    assert bid.refund_micros == 0
    assert check_ledger().balanced


def test_a_royalty_other_than_that_of_the_log_is_found(zone, owner, giver):
    node = live_node(zone)
    _, data = ask_others(owner, zone, giver)
    answer(node, 4.0, 0.4)
    bid, _ = bid_warm(owner, zone, data, quote(owner, zone, data))
    paid = bid.royalty_micros
    alter_row(
        "UPDATE auction_bid SET terms = jsonb_set(terms, '{start,royalty_micros}', %s) "
        "WHERE id = %s",
        str(paid + 1),
        bid.pk,
    )
    [problem] = verify_zone(zone).problems
    assert f"royalty_micros is {paid + 1}, the log has {paid}" in problem


def test_without_consent_on_both_sides_nobody_is_asked(zone, owner, giver):
    live_node(zone)
    donor = finished(giver, zone)
    data = data_of(owner, zone)
    assert quote(owner, zone, data).outlook is Outlook.NONE
    set_consent(organisation=owner, uses_donors=True, gives_adapters=True, now=NOW)
    set_dataset_consent(dataset=data, uses_donors=False, gives_adapters=None, now=NOW)
    assert quote(owner, zone, data).outlook is Outlook.NONE
    set_dataset_consent(dataset=data, uses_donors=None, gives_adapters=None, now=NOW)
    set_adapter_consent(organisation=giver, job_id=donor.pk, is_given=False, now=NOW)
    other = market.zone()
    live_node(other)
    assert quote(owner, other, data_of(owner, other)).outlook is Outlook.NONE
    assert not Probe.objects.exists()
    with pytest.raises(NotFound):
        set_adapter_consent(organisation=owner, job_id=donor.pk, is_given=True, now=NOW)


def test_an_adapter_that_says_its_rows_by_heart_is_nobodys_donor_but_its_owners(zone, owner, giver):
    live_node(zone)
    data = data_of(giver, zone)
    finished(giver, zone, data=data, memorised=2)
    assert Donor.objects.get().has_memorised
    set_consent(organisation=owner, uses_donors=True, gives_adapters=False, now=NOW)
    assert quote(owner, zone, data_of(owner, zone)).outlook is Outlook.NONE
    assert quote(giver, zone, data).outlook is Outlook.OFFERED


@pytest.mark.parametrize("how", ["adapter", "data set", "organisation"])
def test_a_withdrawal_ends_offers_and_leaves_no_trace_of_the_bid(zone, owner, giver, how):
    node = live_node(zone)
    donor, data = ask_others(owner, zone, giver)
    answer(node, 4.0, 0.4)
    offer_id = quote(owner, zone, data).measured.start.offer_id
    if how == "adapter":
        set_adapter_consent(organisation=giver, job_id=donor.pk, is_given=False, now=NOW)
    elif how == "data set":
        set_dataset_consent(dataset=donor.dataset, uses_donors=None, gives_adapters=False, now=NOW)
    else:
        set_consent(organisation=giver, uses_donors=False, gives_adapters=False, now=NOW)
    bids = Bid.objects.count()
    with pytest.raises(UserError) as caught:
        market.bid(owner, zone, data=data, model=f"warm:{offer_id}", now=LATER, **TRAINING)
    assert caught.value.code == "offer_ended"
    assert Bid.objects.count() == bids
    # The quote is cold again.
    again = quote(owner, zone, data)
    assert (again.outlook, again.measured.start) == (Outlook.NONE, None)


def test_an_offer_holds_for_its_settings_its_owner_and_its_time(zone, owner, giver):
    node = live_node(zone)
    _, data = ask_others(owner, zone, giver)
    answer(node, 4.0, 0.4)
    model = f"warm:{quote(owner, zone, data).measured.start.offer_id}"
    stranger = builders.organisation(usd="50")
    for terms in (
        {"owner": owner, "data": data, "epochs": 4, "now": LATER},
        {"owner": stranger, "data": data_of(stranger, zone), "epochs": 3, "now": LATER},
        {"owner": owner, "data": data, "epochs": 3, "now": LATER + timedelta(hours=1)},
    ):
        who = terms.pop("owner")
        with pytest.raises(UserError) as caught:
            market.bid(who, zone, model=model, **terms)
        assert caught.value.code == "offer_ended"


@pytest.mark.parametrize(
    ("base", "losses"), [(4.0, [3.9]), (4.0, [None]), (None, [1.0]), (4.0, [-1.0])]
)
def test_a_donor_that_knows_no_more_than_the_base_is_not_taken(zone, owner, giver, base, losses):
    node = live_node(zone)
    _, data = ask_others(owner, zone, giver)
    answer(node, base, *losses)
    found = quote(owner, zone, data)
    assert (found.outlook, found.measured.start, found.cold_price_micros) == (
        Outlook.NONE, None, None,
    )  # fmt: skip


def test_an_earlier_run_with_other_settings_does_not_say_where_this_job_would_end(zone, owner):
    node = live_node(zone)
    data = data_of(owner, zone)
    # It learnt a tenth as quickly: its loss would be an easy target.
    finished(owner, zone, data=data, **market.job_terms(**TRAINING, learning_rate=2e-5))
    terms = market.job_terms(**TRAINING, learning_rate=2e-4)
    asked = quote(owner, zone, data, **terms)
    assert asked.outlook is Outlook.ASKED
    answer(node, 4.0, 0.4)
    found = quote(owner, zone, data, **terms)
    # As near as it is, it would be sold as a related one is, which takes off no slot here.
    offer = Offer.objects.get()
    assert (offer.likeness, offer.steps, offer.scale) == (Likeness.RELATED, 30, 0.5)
    assert (found.outlook, found.measured.start) == (Outlook.NONE, None)


def test_a_probe_without_an_answer_is_asked_again_after_a_minute(zone, owner, giver):
    live_node(zone)
    _, data = ask_others(owner, zone, giver)
    for seconds, outlook in ((11, Outlook.NONE), (59, Outlook.NONE), (61, Outlook.ASKED)):
        now = LATER + timedelta(seconds=seconds)
        Node.objects.update(last_heartbeat_at=now)
        assert quote(owner, zone, data, now=now).outlook is outlook
    assert Probe.objects.count() == 2


def test_an_answer_that_comes_too_late_or_from_another_node_is_not_taken(zone, owner, giver):
    node = live_node(zone)
    _, data = ask_others(owner, zone, giver)
    late = LATER + timedelta(seconds=PROBE_S + 1)
    other = live_node(zone)
    probe = Probe.objects.get()
    with pytest.raises(NotFound):
        answer_errand(other, probe.token, ProbeResult(4.0), now=LATER)
    with pytest.raises(Conflict):
        answer(node, 4.0, 1.0, now=late)
    probe.refresh_from_db()
    assert (probe.state, probe.losses) == (ErrandState.ASKED, [])
    assert quote(owner, zone, data, now=late).outlook is Outlook.NONE


def test_adapters_are_served_to_the_node_that_probes_them_and_until_its_time_is_over(
    zone, owner, giver
):
    node = live_node(zone)
    donor, _ = ask_others(owner, zone, giver)
    probe, name = Probe.objects.get(), Artifact.objects.get(job=donor).pk
    asked = {"token": probe.token, "name": name, "now": LATER}
    assert find_errand_blob(node=node, **asked).pk == name
    for change in (
        {"node": live_node(zone)},
        {"name": "art_other"},
        {"now": LATER + timedelta(seconds=PROBE_S)},
    ):
        with pytest.raises(NotFound):
            find_errand_blob(**({"node": node} | asked | change))


def test_with_no_node_that_is_warm_the_quote_is_cold(zone, owner, giver):
    live_node(zone)
    finished(giver, zone)
    set_consent(organisation=owner, uses_donors=True, gives_adapters=False, now=NOW)
    data = data_of(owner, zone)
    silent = NOW + timedelta(hours=1)
    job = JobRequest(owner, zone, data, **market.job_terms(**TRAINING))
    found = make_quote(job, deadline_at=silent + timedelta(seconds=200), now=silent)
    assert found.outlook is Outlook.NONE
    assert not Probe.objects.exists()


def test_a_payment_above_the_cold_price_goes_back_out_of_the_royalty(zone, owner, giver):
    node = live_node(zone)
    _, data = ask_others(owner, zone, giver)
    answer(node, 4.0, 0.4)
    bid, job = bid_warm(owner, zone, data, quote(owner, zone, data))
    # As if prices had fallen between the quote and the decision.
    royalty = bid.royalty_micros
    Bid.objects.filter(pk=bid.pk).update(cold_price_micros=bid.payment_micros - royalty // 2)
    ended(job, zone, step=job.start.steps, total_steps=job.start.steps, valid_loss_after=0.3)
    settle_finished(now=market.slot_at(zone, 110))
    bid.refresh_from_db()
    assert bid.paid_micros == bid.cold_price_micros
    assert Earning.objects.get(kind="royalty").amount_micros == royalty - royalty // 2
    assert check_ledger().balanced
