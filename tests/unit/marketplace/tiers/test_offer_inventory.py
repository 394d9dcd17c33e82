"""What could be rented is on sale before it is: without one provider a first job is sold."""

from __future__ import annotations

import pytest

from marketplace.auction.bidding.job_request import JobRequest
from marketplace.auction.bidding.quotes import make_quote
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.models import Bid, BidStatus, Reservation
from marketplace.common.errors import Conflict
from marketplace.exports.models import ExportForm
from marketplace.exports.prices import compute_price
from marketplace.fleet.models import Node, NodeStatus, Tier, Zone
from marketplace.fleet.selectors import build_node_spec, list_nodes_on_sale, list_online_nodes
from marketplace.fleet.services import join_node
from marketplace.jobs.models import Job, JobStatus
from marketplace.jobs.services import dispatch_slots
from marketplace.questions.prices import find_rate
from marketplace.tiers.machines import BOOT_LIMIT, compute_ask_micros, reconcile_machines
from marketplace.tiers.models import ListedOffer, Machine, MachineStatus, ZoneTiers
from marketplace.tiers.provisioning import MachineOffer
from marketplace.tiers.services import run_tier_tick
from tests import builders, market_builders
from tests.job_builders import SLOT, at, facts
from tests.unit.marketplace.tiers.backends import MemoryBackend, tiers
from tests.unit.marketplace.tiers.handoff import tick
from workers.protocol.messages import JoinRequest

pytestmark = pytest.mark.django_db
#: $0.36 an hour is 1,000 micro-dollars a slot of 10 s.
OFFER = MachineOffer("cheap", Tier.MARKETPLACE, 360_000, 99.0)
#: What its machines took to boot, and with the margin of half.
BOOT_S, LEAD_S = 8, 12
IDLE_S = 20


@pytest.fixture
def house(zone: Zone, backend: MemoryBackend) -> ZoneTiers:
    backend.offered = (OFFER,)
    made = tiers(zone, serverless_cap=0, serverful_cap=1, sells_offers=True)
    ZoneTiers.objects.update(idle_s=IDLE_S)
    made.refresh_from_db()
    return made


@pytest.fixture
def measured(house: ZoneTiers, backend: MemoryBackend) -> ZoneTiers:
    """One machine was rented to be measured, and given back: at 100 s nothing runs."""
    tick(0)
    backend.join(backend.only(), now=at(BOOT_S))
    tick(BOOT_S)
    for seconds in (20, 50, 60, 70, 100):
        tick(seconds)
    assert not backend.running
    return house


@pytest.fixture
def listed(measured: ZoneTiers) -> Node:
    return ListedOffer.objects.get(closed_at=None).node


def buy(zone: Zone, *, seconds: float, epochs: int = 1, slots: int = 20) -> Bid:
    owner = builders.organisation(usd="100")
    bid = market_builders.bid(owner, zone, epochs=epochs, slots=slots, now=at(seconds))
    decide_pending_bids(zone=zone, now=at(seconds))
    bid.refresh_from_db()
    return bid


def only_machine() -> Machine:
    return Machine.objects.exclude(status=MachineStatus.ENDED).get()


def test_the_first_machine_of_an_offer_is_rented_to_be_measured(house, backend) -> None:
    tick(0)
    tick(1)
    machine = Machine.objects.get()
    assert machine.reason == "To measure what its kind can do."
    assert not ListedOffer.objects.exists()


def test_an_offer_is_on_sale_as_what_its_last_machine_measured(measured, listed) -> None:
    before = Node.objects.get(status=NodeStatus.LEFT)
    assert (listed.status, listed.gpu_type, listed.tier) == (
        NodeStatus.OFFERED,
        before.gpu_type,
        OFFER.tier,
    )
    assert (listed.compute_capacity, listed.memory_gb) == (
        before.compute_capacity,
        before.memory_gb,
    )
    assert listed.boot_s == LEAD_S
    # One slot, its boot and the idle time: 1,000 * (10 + 12 + 20) / 10.
    assert listed.ask_micros == 4_200
    # Sold in slot 110, it may boot from slot 111 on and has two slots for it.
    assert build_node_spec(measured.zone, listed, slot=SLOT + 10).available_from == SLOT + 13


def test_it_is_listed_once_and_costs_nothing_while_nobody_buys(measured, backend) -> None:
    for seconds in (105, 115, 125):
        tick(seconds)
    assert Node.objects.filter(status=NodeStatus.OFFERED).count() == 1
    assert not backend.running


def test_a_market_without_a_provider_quotes_admits_rents_and_runs(
    measured, listed, backend, zone
) -> None:
    owner = builders.organisation(usd="100")
    dataset = market_builders.dataset(owner, zone)
    job = JobRequest(owner, zone, dataset, **market_builders.job_terms(epochs=1))
    quote = make_quote(job, deadline_at=at(300), now=at(101))
    assert quote.price_micros is not None
    assert {cell.node for cell in quote.cells} == {listed.pk}
    bid = buy(zone, seconds=102)
    assert bid.status == BidStatus.ADMITTED
    first = Reservation.objects.filter(bid=bid).earliest("slot")
    assert first.slot == SLOT + 13
    assert not backend.running
    # Its boot of 12 s begins in time for the slot at 130 s, and not before.
    tick(112)
    assert not backend.running
    tick(118)
    machine = only_machine()
    assert (machine.reason, machine.status) == ("Sold before it was rented.", MachineStatus.BOOTING)
    node = backend.join(machine.pk, now=at(127))
    assert (node.pk, node.status, node.joined_at) == (listed.pk, NodeStatus.ONLINE, at(127))
    tick(128)
    node.refresh_from_db()
    assert node.ask_micros == compute_ask_micros(zone, OFFER.price_micros_per_h)
    tick(131)
    job = Job.objects.get(bid_id=bid.pk)
    assert (job.status, job.needs_replan) == (JobStatus.RUNNING, False)
    assert verify_zone(zone).ok


def test_a_machine_that_does_not_come_up_loses_its_cells_and_its_job_gets_another(
    measured, listed, backend, zone
) -> None:
    bid = buy(zone, seconds=102, slots=55)
    tick(118)
    backend.running.clear()
    tick(160)
    listed.refresh_from_db()
    assert listed.status == NodeStatus.LEFT
    refresh_zone(zone=zone, now=at(161))
    assert Job.objects.get(bid_id=bid.pk).needs_replan
    # An offer whose machine did not come up is left alone for five minutes.
    tick(455)
    assert not backend.running
    tick(465)
    assert only_machine().reason == "Demand exceeds capacity."
    other = backend.join(backend.only(), now=at(473))
    refresh_zone(zone=zone, now=at(474))
    job = Job.objects.get(bid_id=bid.pk)
    ahead = {node for slot, node in job.cells if slot > SLOT + 47}
    assert (job.needs_replan, ahead) == (False, {other.pk})


def test_a_boot_that_never_ends_is_given_up_and_its_node_is_lost(
    measured, listed, backend, zone
) -> None:
    buy(zone, seconds=102)
    tick(118)
    reconcile_machines(now=at(118) + BOOT_LIMIT + (at(1) - at(0)))
    listed.refresh_from_db()
    assert listed.status == NodeStatus.LEFT


def test_another_gpu_than_was_sold_does_not_join_in_its_place(
    measured, listed, backend, zone
) -> None:
    buy(zone, seconds=102)
    tick(118)
    machine = only_machine()
    request = JoinRequest(
        token=backend.secrets[machine.pk],
        name=machine.pk,
        facts=facts(hostname="other", gpu_type="T4"),
    )
    with pytest.raises(Conflict, match="but a cpu was sold") as refused:
        join_node(request=request, now=at(125))
    assert refused.value.code == "other_gpu"
    listed.refresh_from_db()
    assert listed.status == NodeStatus.OFFERED


def test_a_job_is_not_sent_to_a_machine_that_is_not_there(measured, listed, backend, zone) -> None:
    bid = buy(zone, seconds=102)
    assert bid.status == BidStatus.ADMITTED
    dispatch_slots(now=at(131))
    job = Job.objects.get(bid_id=bid.pk)
    assert (job.status, job.needs_replan) == (JobStatus.QUEUED, True)


def test_the_cap_counts_what_is_sold_ahead(measured, listed, zone, backend) -> None:
    buy(zone, seconds=102, epochs=4)
    tick(105)
    assert not Node.objects.filter(status=NodeStatus.OFFERED).exclude(pk=listed.pk).exists()
    tick(118)
    tick(119)
    assert len(backend.running) == 1


def test_a_price_that_moves_is_asked_at_once_and_what_is_sold_keeps_its_own(
    measured, listed, zone, backend
) -> None:
    bid = buy(zone, seconds=102)
    paid = Bid.objects.get(pk=bid.pk).price_micros
    ZoneTiers.objects.update(serverful_cap=2)
    tick(104)
    [other] = Node.objects.filter(status=NodeStatus.OFFERED).exclude(pk=listed.pk)
    backend.offered = (MachineOffer("cheap", Tier.MARKETPLACE, 720_000, 99.0),)
    tick(106)
    other.refresh_from_db()
    listed.refresh_from_db()
    assert (other.ask_micros, listed.ask_micros) == (8_400, 4_200)
    assert Bid.objects.get(pk=bid.pk).price_micros == paid


def test_a_machine_that_is_not_rented_answers_nothing_and_prices_no_answer(listed, zone) -> None:
    assert list(list_nodes_on_sale(zone)) == [listed]
    assert not list_online_nodes(zone).exists()
    assert (find_rate(zone), compute_price(zone, ExportForm.MERGED)) == (None, None)


def test_switched_off_it_is_taken_off_sale_first_and_then_out_of_the_market(
    measured, listed, zone, backend
) -> None:
    ZoneTiers.objects.update(sells_offers=False)
    run_tier_tick(now=at(110))
    listed.refresh_from_db()
    assert (listed.status, listed.available_until_at) == (NodeStatus.OFFERED, at(110))
    assert buy(zone, seconds=111).status == BidStatus.REFUSED
    run_tier_tick(now=at(112))
    listed.refresh_from_db()
    assert listed.status == NodeStatus.LEFT
    assert ListedOffer.objects.get().closed_at == at(112)


def test_what_was_sold_while_it_was_taken_off_sale_is_rented(
    measured, listed, zone, backend
) -> None:
    bid = buy(zone, seconds=102)
    ZoneTiers.objects.update(is_on=False)
    for seconds in (110, 112, 118):
        tick(seconds)
    node = backend.join(only_machine().pk, now=at(126))
    tick(131)
    assert node.pk == listed.pk
    assert Job.objects.get(bid_id=bid.pk).status == JobStatus.RUNNING
