"""Bids for verified providers only: planned there, re-planned when a provider is so no more."""

from __future__ import annotations

import pytest

from marketplace.auction.bidding.job_request import JobRequest
from marketplace.auction.bidding.quotes import make_quote
from marketplace.auction.bidding.refusals import describe_bid_refusal
from marketplace.auction.book.engine_cache import discard_lane_book
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.models import Bid
from marketplace.common.errors import NotFound
from marketplace.fleet.models import Node
from marketplace.fleet.services import set_provider_verified
from marketplace.jobs.models import Job, JobEvent, Slice
from marketplace.jobs.selectors import find_lease_blob
from marketplace.jobs.services import dispatch_slots
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.selectors import get_wallet
from tests import builders
from tests import market_builders as market
from tests.builders import NOW

pytestmark = pytest.mark.django_db


@pytest.fixture
def zone():
    return market.zone()


@pytest.fixture
def owner():
    return builders.organisation(usd="100")


def verify(node: Node, *, is_verified: bool = True) -> None:
    node.provider = set_provider_verified(
        provider=node.provider, is_verified=is_verified, set_by=builders.operator(), now=NOW
    )


def decided(owner, zone, **terms) -> Bid:
    bid = market.bid(owner, zone, **terms)
    decide_pending_bids(zone=zone, now=NOW)
    bid.refresh_from_db()
    return bid


def nodes_of(bid: Bid) -> set[str]:
    return {node for _, node in Job.objects.get(bid_id=bid.pk).cells}


def test_it_gets_the_cheapest_plan_on_verified_nodes_and_the_log_verifies(zone, owner):
    cheap, known = (market.node(zone, ask_micros=asks) for asks in (400_000, 4_000_000))
    verify(known)
    strict = decided(owner, zone, epochs=3, verified_only=True)
    other = decided(owner, zone, epochs=3)
    assert (nodes_of(strict), nodes_of(other)) == ({known.pk}, {cheap.pk})
    assert Job.objects.get(bid_id=strict.pk).verified_only
    assert not Job.objects.get(bid_id=other.pk).verified_only
    # One price for each node's slots, whoever asks.
    assert strict.payment_micros == 10 * other.payment_micros
    assert verify_zone(zone).problems == []
    discard_lane_book(zone_id=zone.pk)
    refresh_zone(zone=zone, now=NOW)
    # The rows are compared with what the log says.
    Bid.objects.filter(pk=strict.pk).update(verified_only=False)
    [problem] = verify_zone(zone).problems
    assert "verified_only is False, the log has True" in problem


def test_without_a_verified_node_quote_and_refusal_say_so_in_one_sentence(zone, owner):
    market.node(zone)
    bid = decided(owner, zone, verified_only=True)
    assert (bid.status, bid.refusal) == ("refused", "verified")
    sentence = (
        "No verified provider has a node here that can run this job; ask without verified_only, "
        "or later."
    )
    assert describe_bid_refusal(bid) == sentence
    job = JobRequest(owner, zone, bid.dataset, adapter={}, training={}, verified_only=True)
    quote = make_quote(job, deadline_at=bid.deadline_at, now=NOW)
    assert (quote.price_micros, quote.refusal_text) == (None, sentence)
    assert get_wallet(organisation=owner).held_micros == 0


def test_the_organisations_choice_holds_where_a_bid_says_nothing(zone, owner):
    market.node(zone)
    owner.verified_only = True
    owner.save()
    assert decided(owner, zone).refusal == "verified"
    assert decided(owner, zone, verified_only=False).status == "admitted"


def test_a_provider_verified_no_more_loses_the_job_which_is_planned_again_for_nothing(zone, owner):
    first, second = market.node(zone), market.node(zone, ask_micros=4_000_000)
    verify(first)
    verify(second)
    bid = decided(owner, zone, epochs=3, verified_only=True)
    stays = decided(owner, zone, epochs=3)
    assert nodes_of(bid) == nodes_of(stays) == {first.pk}

    verify(first, is_verified=False)
    # Before the lane has looked, nothing is begun there and no file is given out.
    dispatch_slots(now=market.slot_at(zone, 101))
    assert not Slice.objects.filter(job__bid_id=bid.pk).exists()
    assert Slice.objects.filter(job__bid_id=stays.pk).exists()
    refresh_zone(zone=zone, now=market.slot_at(zone, 101))

    assert (nodes_of(bid) - {first.pk}, nodes_of(stays)) == ({second.pk}, {first.pk})
    job = Job.objects.get(bid_id=bid.pk)
    assert [node for slot, node in job.cells if slot > 101] == [second.pk] * 3
    # Its provider is not at fault: the operator decided it.
    assert job.blamed_nodes == []
    paid = bid.payment_micros
    bid.refresh_from_db()
    assert bid.payment_micros == paid
    told = JobEvent.objects.filter(job=job, kind="replan_wanted").values_list("message", flat=True)
    assert list(told) == [f"{first.name}: not verified any more. Looking for other nodes."]
    assert verify_zone(zone).problems == []
    assert check_ledger().balanced


def test_a_running_job_leaves_and_its_files_are_not_given_out_any_more(zone, owner):
    first = market.node(zone)
    verify(first)
    bid = decided(owner, zone, epochs=3, verified_only=True)
    dispatch_slots(now=market.slot_at(zone, 101))
    held = Slice.objects.get(job__bid_id=bid.pk)
    asked = {"lease_token": held.lease_token, "name": "dataset", "now": market.slot_at(zone, 101)}
    assert find_lease_blob(node=first, **asked).sha256 == bid.dataset.sha256
    verify(first, is_verified=False)
    with pytest.raises(NotFound):
        find_lease_blob(node=first, **asked)


def test_a_job_that_no_verified_node_can_take_over_is_refunded_whole(zone, owner):
    first = market.node(zone)
    verify(first)
    bid = decided(owner, zone, epochs=3, verified_only=True, slots=6)
    verify(first, is_verified=False)
    market.node(zone)
    refresh_zone(zone=zone, now=market.slot_at(zone, 101))
    job = Job.objects.get(bid_id=bid.pk)
    assert job.needs_replan
    for slot in (102, 107, 108):
        refresh_zone(zone=zone, now=market.slot_at(zone, slot))
    job.refresh_from_db()
    assert (job.status, job.fault) == ("failed", "system")
    assert verify_zone(zone).problems == []
