"""Data prepared by a vendor between a bid and its job: the work, the plan and the money."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from unittest.mock import patch

import pytest
import time_machine
from django.db.models import F
from django.test import Client

from marketplace.auction import preparations
from marketplace.auction.bidding.job_request import JobRequest
from marketplace.auction.bidding.measure import measure_job
from marketplace.auction.bidding.quotes import make_quote
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.cancelling import cancel_sold_job
from marketplace.auction.exposure import EXPOSURE, find_exposure_left
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.enter import enter_lane
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.models import Bid, BidStatus, Reservation
from marketplace.auction.preparations import conclude_preparations
from marketplace.auction.resold import settle_rents
from marketplace.auction.settlement import settle_finished
from marketplace.common.clock import now as read_clock
from marketplace.common.durable.kinds import get_kinds
from marketplace.common.durable.locks import take_due_work
from marketplace.common.durable.run import run_due_work
from marketplace.common.durable.services import NewWork, enqueue_work
from marketplace.common.errors import Conflict, UserError
from marketplace.common.locks import lock_number
from marketplace.common.models import DurableWork
from marketplace.fleet.models import Node
from marketplace.fleet.slots import slot_starts_at
from marketplace.jobs.models import Dataset, FaultOf, Job, JobStatus, Slice
from marketplace.jobs.services import cancel_job, dispatch_slots, fail_job
from marketplace.jobs.work import Work
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.models import Earning
from marketplace.payments.selectors import get_earnings, get_house_balances, get_wallet
from marketplace.vendors import preparing
from marketplace.vendors.acceptance import accept, refuse_delivery
from marketplace.vendors.deliveries import check_delivery
from marketplace.vendors.handed_files import Delivery
from marketplace.vendors.handover import PREPARE
from marketplace.vendors.kinds import WORK
from marketplace.vendors.kinds.automatic import AutomaticWork
from marketplace.vendors.models import Preparation, PreparationStatus, VendorKind
from marketplace.vendors.selectors import sum_extra_pay, sum_unsold_rent
from tests import builders
from tests import market_builders as market
from tests import vendor_builders as build
from tests.builders import NOW
from tests.unit.marketplace.auction.test_resold import check_log
from tests.unit.marketplace.common.threads import at_once, in_between
from tests.vendor_builders import chat, clock, prepare_next, sell, upload
from tests.world.lock_order import LockOrder, watch_locks
from workers.protocol.reports import SliceEnd

pytestmark = pytest.mark.django_db


@pytest.fixture
def zone():
    return build.zone()


@pytest.fixture
def owner():
    return builders.organisation(usd="10")


def test_a_messy_set_is_sold_prepared_and_trained_on_at_no_more_than_its_price(zone, owner):
    market.node(zone)
    vendor = build.vendor(zone)
    bid, job = sell(owner, zone)
    # 100 lines are 100 rows until they are prepared: 270 samples, three cells after two slots.
    assert bid.parts["vendor"] == 20_000.0
    assert bid.payment_micros == 320_000
    assert [slot for slot, _ in bid.cells] == [103, 104, 105]
    assert job.awaits_data
    Node.objects.update(last_heartbeat_at=market.slot_at(zone, 103))
    dispatch_slots(now=market.slot_at(zone, 103))
    assert not Slice.objects.exists()

    assert prepare_next(clock=clock)
    assert not prepare_next(clock=clock)
    made = Preparation.objects.get(bid_id=bid.pk)
    assert (made.status, made.rows_in, made.rows_out) == (PreparationStatus.ACCEPTED, 100, 50)
    assert made.report["dropped"] == {"duplicates": 50}
    assert made.report["changed"] == {"repair": 10}
    with made.changes.open("rb") as changes:
        assert sum("reasons" in json.loads(line) for line in changes) == 60
    job.refresh_from_db()
    assert (job.dataset_id, job.dataset.rows, job.awaits_data) == (made.prepared_id, 50, False)
    assert made.source_id == bid.dataset_id

    assert conclude_preparations(now=clock()) == 1
    assert conclude_preparations(now=clock()) == 0
    made.refresh_from_db()
    job.refresh_from_db()
    # Half the rows: one of three cells is not needed, and its share goes back.
    assert [slot for slot, _ in job.cells] == [103, 104]
    assert made.refund_micros == 100_000
    assert get_wallet(organisation=owner).available_micros == 10_000_000 - 320_000 + 100_000
    assert get_earnings(organisation=vendor.organisation).pending_micros == 20_000
    assert Reservation.objects.filter(bid=bid, released_at=None).count() == 2

    dispatch_slots(now=market.slot_at(zone, 103))
    market.end_slice(job, status=SliceEnd.FINISHED, now=market.slot_at(zone, 104))
    assert settle_finished(now=market.slot_at(zone, 104)) == 1
    bid.refresh_from_db()
    assert (bid.refund_micros, bid.paid_micros) == (100_000, 220_000)
    assert job.events.order_by("seq").last().message == "Settled: $0.22 of $0.32 was used."
    node = Slice.objects.get().node
    assert get_earnings(organisation=node.provider.organisation).pending_micros == 200_000
    assert check_ledger().balanced
    assert verify_zone(zone).problems == []


def _prepare_and_finish(zone, *, operational: float, job) -> None:
    """Prepare, cut the plan from three cells to two, and train to the end."""
    bid = Bid.objects.get(pk=job.bid_id)
    Bid.objects.update(parts=bid.parts | {"operational": operational})
    Node.objects.update(last_heartbeat_at=market.slot_at(zone, 103))
    assert prepare_next(clock=clock)
    assert conclude_preparations(now=clock()) == 1
    dispatch_slots(now=market.slot_at(zone, 103))
    job.refresh_from_db()
    market.end_slice(job, status=SliceEnd.FINISHED, now=market.slot_at(zone, 104))
    assert settle_finished(now=market.slot_at(zone, 104)) == 1


def test_cells_that_are_not_needed_give_back_their_share_of_the_whole_price(zone, owner):
    """Of 300,000 beside the vendor's price, 30,000 are asks and the rest congestion."""
    node = market.node(zone)
    build.vendor(zone)
    bid, job = sell(owner, zone)
    _prepare_and_finish(zone, operational=30_000.0, job=job)
    bid.refresh_from_db()
    assert bid.refund_micros == 100_000
    assert get_earnings(organisation=node.provider.organisation).pending_micros == 20_000
    assert get_house_balances()["revenue"] == 180_000
    assert check_ledger().balanced


def test_an_owners_own_vendor_frees_its_cells_at_their_value(zone, owner):
    market.node(zone)
    vendor = build.vendor(zone)
    member = vendor.organisation.memberships.first().user
    owner.memberships.create(user=member, role="owner")
    bid, job = sell(owner, zone)
    _prepare_and_finish(zone, operational=300_000.0, job=job)
    bid.refresh_from_db()
    assert bid.refund_micros == 98_000
    assert check_ledger().balanced


def test_data_made_small_by_an_own_vendor_make_no_cheap_way_to_give_a_job_back(zone, owner):
    node = market.node(zone)
    vendor = build.vendor(zone)
    owner.memberships.create(user=vendor.organisation.memberships.first().user, role="owner")
    bid, job = sell(owner, zone)
    assert prepare_next(clock=clock)
    # While one of three cells goes back, room costs half of what it did.
    market.node(zone, ask_micros=node.ask_micros // 2)
    refresh_zone(zone=zone, now=clock())
    assert conclude_preparations(now=clock()) == 1
    made = Preparation.objects.get()
    assert (made.spared_micros, made.refund_micros) == (100_000, 49_000)
    client = Client()
    client.force_login(builders.owner_of(owner))
    with time_machine.travel(clock(), tick=False):
        page = client.get(f"/jobs/{job.pk}/cancel").content.decode()
    assert re.findall(r"<dt>([^<]*)</dt><dd>\$([0-9.]+)</dd>", page) == [
        ("Paid", "0.32"),
        ("Returned before", "0.049"),
        ("Kept before", "0.051"),
        ("For what was done", "0.02"),
        ("Kept", "0.102"),
        ("You get back", "0.098"),
    ]
    job.refresh_from_db()
    cancel_sold_job(job=job, cancelled_by=None, now=clock())
    assert settle_finished(now=clock()) == 1
    bid.refresh_from_db()
    # And of the 200,000 for the two that are left, what two cost now.
    assert bid.refund_micros == 49_000 + 98_000
    balances = get_house_balances()
    assert (balances["congestion"], balances["revenue"]) == (51_000 + 102_000, 0)
    assert check_ledger().balanced
    assert verify_zone(zone).problems == []


@pytest.mark.parametrize("is_taken_off", [False, True])
def test_the_rent_of_cells_that_an_own_vendor_spares_waits_to_be_sold_again(
    zone, owner, is_taken_off
):
    node = market.node(zone)
    vendor = build.vendor(zone)
    owner.memberships.create(user=vendor.organisation.memberships.first().user, role="owner")
    market.price_rent(zone, node)
    bid, job = sell(owner, zone)
    assert bid.payment_micros == 620_000
    assert prepare_next(clock=clock)
    # The last of three cells begins four slots later.
    now = market.slot_at(zone, 101)
    Node.objects.update(last_heartbeat_at=now)
    assert conclude_preparations(now=now) == 1
    made = Preparation.objects.get()
    # Half of the cell's price is rent.
    assert (made.spared_micros, made.refund_micros, made.waits_micros) == (200_000, 98_000, 98_000)
    if is_taken_off:
        # Nobody can buy it then, and its owner keeps nothing from anybody.
        Node.objects.update(available_until_at=slot_starts_at(zone, 105))
    now = market.slot_at(zone, 103)
    Node.objects.update(last_heartbeat_at=now)
    dispatch_slots(now=now)
    job.refresh_from_db()
    market.end_slice(job, status=SliceEnd.FINISHED, now=market.slot_at(zone, 104))
    assert settle_finished(now=market.slot_at(zone, 104)) == 1
    bid.refresh_from_db()
    assert (bid.refund_micros, bid.rent_due_micros) == (98_000, 98_000)
    assert settle_rents(now=market.slot_at(zone, 104)) == 0
    for slot in (103, 104, 105):
        refresh_zone(zone=zone, now=market.slot_at(zone, slot))
    assert settle_rents(now=market.slot_at(zone, 105)) == 1
    bid = Bid.objects.get()
    assert (bid.refund_micros, bid.rent_due_micros) == (98_000 + 98_000 * is_taken_off, None)
    idle = Earning.objects.filter(kind="idle").values_list("amount_micros", flat=True)
    assert list(idle) == ([] if is_taken_off else [98_000])
    assert check_ledger().balanced


@pytest.mark.parametrize(
    ("bears", "first"), [(25_000_000, 98_000), (98_000, 98_000), (30_000, 30_000), (0, 0)]
)
@pytest.mark.parametrize("is_taken_off", [False, True])
def test_small_data_of_a_friends_vendor_give_back_so_much_late_rent_a_day_at_once(
    zone, owner, settings, bears, first, is_taken_off
):
    """No record says who is a friend: the rent of what others spare is bounded, and then waits."""
    settings.HOUSE_BEARS_MICROS_PER_DAY = bears
    node, vendor = market.node(zone), build.vendor(zone)
    market.price_rent(zone, node)
    sell(owner, zone)
    assert prepare_next(clock=clock)
    now = market.slot_at(zone, 101)
    Node.objects.update(last_heartbeat_at=now)
    assert conclude_preparations(now=now) == 1
    made = Preparation.objects.get()
    waits = 98_000 - first
    # All of the cell's share but that; nothing is kept as from who gives a job back.
    assert (made.spared_micros, made.refund_micros) == (200_000, 200_000 - waits)
    assert (made.waits_micros, made.unsold_rent_micros) == (waits, first)
    left = find_exposure_left(organisation_id=vendor.organisation_id, now=now)
    assert left == bears - first
    tomorrow = now + timedelta(days=1)
    assert find_exposure_left(organisation_id=vendor.organisation_id, now=tomorrow) == bears
    if is_taken_off:
        Node.objects.update(available_until_at=slot_starts_at(zone, 105))
    now = market.slot_at(zone, 103)
    Node.objects.update(last_heartbeat_at=now)
    dispatch_slots(now=now)
    job = Job.objects.get()
    market.end_slice(job, status=SliceEnd.FINISHED, now=market.slot_at(zone, 104))
    assert settle_finished(now=market.slot_at(zone, 104)) == 1
    for slot in (103, 104, 105):
        refresh_zone(zone=zone, now=market.slot_at(zone, slot))
    settle_rents(now=market.slot_at(zone, 105))
    bid = Bid.objects.get()
    assert bid.refund_micros == 200_000 - waits * (not is_taken_off)
    idle = Earning.objects.filter(kind="idle").values_list("amount_micros", flat=True)
    assert list(idle) == ([waits] if waits and not is_taken_off else [])
    assert check_ledger().balanced
    check_log(zone)


def test_what_the_market_bears_for_a_failed_job_takes_nothing_of_the_rent_that_waits(
    zone, owner, settings
):
    node, vendor = market.node(zone), build.vendor(zone)
    shared = owner.memberships.create(
        user=vendor.organisation.memberships.first().user, role="owner"
    )
    market.price_rent(zone, node)
    bid, job = sell(owner, zone)
    assert prepare_next(clock=clock)
    Node.objects.update(last_heartbeat_at=market.slot_at(zone, 101))
    assert conclude_preparations(now=market.slot_at(zone, 101)) == 1
    # Strangers since; of the vendor's 20,000 the market bears a half for the node's fault.
    shared.delete()
    settings.HOUSE_BEARS_MICROS_PER_DAY = 10_000
    Job.objects.update(blamed_nodes=[node.pk])
    job.refresh_from_db()
    now = market.slot_at(zone, 104)
    fail_job(job=job, fault=FaultOf.SYSTEM, reason="It is gone.", now=now)
    assert settle_finished(now=now) == 1
    bid.refresh_from_db()
    assert (bid.refund_micros, bid.rent_due_micros) == (98_000 + 400_000 + 10_000, 98_000)
    assert check_ledger().balanced


def test_a_job_that_runs_on_fewer_cells_than_were_sold_is_given_back_by_those_it_has(zone, owner):
    market.node(zone)
    build.vendor(zone)
    bid, job = sell(owner, zone)
    assert prepare_next(clock=clock)
    assert conclude_preparations(now=clock()) == 1
    now = market.slot_at(zone, 103)
    Node.objects.update(last_heartbeat_at=now)
    dispatch_slots(now=now)
    cancel_sold_job(job=job, cancelled_by=None, now=now)
    assert settle_finished(now=now) == 1
    bid.refresh_from_db()
    # 100,000 for the cell that went back with the data, and all that is left but a fiftieth.
    assert bid.refund_micros == 100_000 + 196_000
    assert verify_zone(zone).problems == []


def test_what_a_late_vendor_loses_goes_to_the_owner_who_waited(zone, owner):
    market.node(zone)
    vendor = build.vendor(zone)
    _, job = sell(owner, zone)
    Preparation.objects.update(price_micros=15_000)
    _prepare_and_finish(zone, operational=300_000.0, job=job)
    assert get_wallet(organisation=owner).available_micros == 10_000_000 - 320_000 + 105_000
    assert get_earnings(organisation=vendor.organisation).pending_micros == 15_000
    assert get_house_balances()["revenue"] == 0
    returned = [e.message for e in job.events.filter(kind="refunded").order_by("seq")]
    assert returned == [
        "Cells that the prepared data do not need: $0.10 went back.",
        "The vendor cost less than was sold: $0.005 went back.",
    ]
    assert check_ledger().balanced


def test_the_cheapest_vendor_in_time_gets_the_work_and_the_curve_shows_it(zone, owner):
    market.node(zone)
    slow = build.vendor(zone, "Slow", base_s=100, minimum_micros=1_000)
    quick = build.vendor(zone, "Quick", base_s=5, minimum_micros=90_000)
    data = upload(owner, zone)

    def quote(slots):
        job = JobRequest(owner, zone, data, **market.job_terms(epochs=1), preparation={})
        return make_quote(job, deadline_at=slot_starts_at(zone, 101 + slots), now=NOW)

    near, far = quote(5), quote(30)
    assert (near.vendor.name, near.price_micros) == ("Quick", 190_000)
    assert (far.vendor.name, far.price_micros) == ("Slow", 101_000)
    assert far.vendor.ready_at == slot_starts_at(zone, 111)
    assert [point.price_micros for point in near.curve] == [190_000, 101_000]
    bid, _ = sell(owner, zone, data=data, epochs=1, slots=5, preparation={})
    assert bid.payment_micros == 190_000
    assert Preparation.objects.get().vendor == quick
    assert Preparation.objects.get().other_offers == [[slow.pk, 1_000, 10, 10]]


def test_rows_that_a_vendor_holds_out_are_paid_for_as_they_are_evaluated(zone, owner):
    data = upload(owner, zone)

    def measure(**wish) -> Work:
        job = JobRequest(owner, zone, data, **market.job_terms(epochs=1), preparation=wish)
        return measure_job(job, now=NOW).work

    none, some = measure(validation_share=0), measure(validation_share=0.5)
    # Half of the rows are trained on once, and evaluated again and again.
    assert some.compute_demand > none.compute_demand
    many = JobRequest(
        owner,
        zone,
        data,
        **market.job_terms(epochs=50),
        preparation={"validation_share": 0.5},
    )
    all_trained = replace(many, preparation={"validation_share": 0})
    # A vendor may hold out less than was asked for: the work is never sold as less than all of it.
    assert (
        measure_job(many, now=NOW).work.compute_demand
        >= measure_job(all_trained, now=NOW).work.compute_demand
    )


def test_a_bid_that_no_vendor_may_serve_is_refused_and_leaves_no_trace(zone, owner):
    market.node(zone)
    build.vendor(zone, kind=VendorKind.HUMAN)
    with pytest.raises(UserError) as refused:
        sell(owner, zone, preparation={"kinds": ["automatic"]})
    assert refused.value.code == "no_vendor"
    with pytest.raises(UserError) as refused:
        sell(owner, zone, preparation={"validation_share": 0.9})
    assert (refused.value.code, refused.value.param) == (
        "invalid_preparation",
        "preparation.validation_share",
    )
    assert not Bid.objects.exists()
    assert get_wallet(organisation=owner).held_micros == 0


def test_data_that_nothing_trains_on_as_they_are_are_sold_with_their_preparation(zone, owner):
    market.node(zone)
    build.vendor(zone)
    text = "\n".join(chat(n)[:-1] + ",}" for n in range(40))
    data = upload(owner, zone, text, faulty=0)
    data.needs_preparation = True
    data.save()
    with pytest.raises(UserError) as refused:
        sell(owner, zone, data=data, preparation=None)
    assert (refused.value.code, Bid.objects.count()) == ("needs_preparation", 0)
    wish = {"plan": build.confirmed_plan(owner, data), "validation_share": 0.0}
    _, job = sell(owner, zone, data=data, preparation=wish)
    assert prepare_next(clock=clock)
    assert conclude_preparations(now=clock()) == 1
    job.refresh_from_db()
    assert (job.dataset.rows, job.awaits_data) == (40, False)
    assert verify_zone(zone).problems == []


def test_rows_that_were_left_out_for_their_length_are_prepared_and_paid_for_too(zone, owner):
    market.node(zone)
    build.vendor(zone)
    text = "\n".join(map(chat, range(10)))
    data = upload(owner, zone, text, faulty=3)
    data.faulty, data.left_out_long, data.faulty_lines = 0, 3, [8, 9, 10]
    data.save()
    bid, job = sell(owner, zone, data=data, epochs=1)
    # A tenth is held out: six of seven rows are trained on, and eight of ten.
    assert bid.samples == 8
    assert prepare_next(clock=clock)
    job.refresh_from_db()
    assert (job.dataset.rows, job.awaits_data) == (10, False)


def test_a_vendor_with_room_for_one_set_prepares_the_second_after_the_first(zone, owner):
    market.node(zone)
    build.vendor(zone, rows_per_slot=50)
    first, _ = sell(owner, zone, epochs=1)
    second, _ = sell(owner, zone, epochs=1)
    ready = dict(Preparation.objects.values_list("bid_id", "ready_slot"))
    assert (ready[first.pk], ready[second.pk]) == (103, 105)
    tight, _ = sell(owner, zone, epochs=1, slots=5)
    assert tight.status == BidStatus.REFUSED
    assert verify_zone(zone).problems == []


def test_a_late_vendor_is_replaced_and_the_last_failure_refunds_everything(zone, owner):
    market.node(zone)
    cheap = build.vendor(zone, "Cheap", kind=VendorKind.HUMAN)
    other = build.vendor(zone, "Other", kind=VendorKind.HUMAN, minimum_micros=70_000)
    bid, job = sell(owner, zone, preparation={"kinds": ["human"]})
    made = Preparation.objects.get()
    assert made.vendor == cheap

    late = slot_starts_at(zone, 103)
    assert conclude_preparations(now=late - timedelta(seconds=1)) == 0
    assert conclude_preparations(now=late) == 1
    made.refresh_from_db()
    job.refresh_from_db()
    assert (made.vendor, made.ready_slot, made.price_micros) == (other, 106, 70_000)
    assert made.missed == [{"vendor": cheap.pk, "reason": "The vendor did not deliver in time."}]
    # The slot that runs stays as it was; nothing runs in it before the data are there.
    assert [slot for slot, _ in job.cells] == [103, 106, 107, 108]
    assert job.price_micros == bid.payment_micros == 320_000

    now = slot_starts_at(zone, 106)
    assert conclude_preparations(now=now) == 1
    made.refresh_from_db()
    job.refresh_from_db()
    assert (made.status, job.status) == (PreparationStatus.FAILED, JobStatus.FAILED)
    assert settle_finished(now=now) == 1
    assert get_wallet(organisation=owner).available_micros == 10_000_000
    assert [get_earnings(organisation=v.organisation).pending_micros for v in (cheap, other)] == [
        0,
        0,
    ]
    assert check_ledger().balanced
    assert verify_zone(zone).problems == []


def test_a_vendor_of_the_owners_that_does_not_deliver_is_no_way_out(zone, owner):
    market.node(zone)
    vendor = build.vendor(zone, kind=VendorKind.HUMAN)
    owner.memberships.create(user=vendor.organisation.memberships.first().user, role="owner")
    bid, job = sell(owner, zone, preparation={"kinds": ["human"]})
    now = slot_starts_at(zone, 103)
    assert conclude_preparations(now=now) == 1
    job.refresh_from_db()
    assert job.status == JobStatus.FAILED
    assert settle_finished(now=now) == 1
    bid.refresh_from_db()
    # The vendor's 20,000 go back, and of the rest a fiftieth is kept.
    assert (bid.payment_micros, bid.paid_micros) == (320_000, 6_000)
    assert verify_zone(zone).problems == []


def test_a_next_vendor_that_asks_more_is_paid_by_the_house(zone, owner):
    market.node(zone)
    build.vendor(zone, "Cheap", kind=VendorKind.HUMAN)
    other = build.vendor(zone, "Other", minimum_micros=900_000)
    bid, job = sell(owner, zone, preparation={"kinds": ["human", "automatic"]}, epochs=1)
    now = slot_starts_at(zone, 103)
    assert conclude_preparations(now=now) == 1
    assert prepare_next(clock=lambda: now)
    assert conclude_preparations(now=now) == 1
    cancel_job(job=job, cancelled_by=None, now=now)
    assert settle_finished(now=now) == 1
    bid.refresh_from_db()
    # The vendor's part of the price was used, the cells were not: a fiftieth of theirs is kept.
    assert bid.payment_micros == 120_000
    assert bid.paid_micros == 22_000
    assert get_earnings(organisation=other.organisation).pending_micros == 900_000
    assert check_ledger().balanced


def test_what_a_next_vendor_asks_more_is_borne_up_to_the_days_limit(zone, owner, settings):
    settings.HOUSE_BEARS_MICROS_PER_DAY = 1_000_000
    market.node(zone)
    cheap = build.vendor(zone, "Cheap", kind=VendorKind.HUMAN)
    dear = build.vendor(zone, "Dear", minimum_micros=900_000)
    # Beyond what the house would bear at once, and so never tried.
    build.vendor(zone, "Friend", minimum_micros=900_000_000_000)
    wish = {"kinds": ["human", "automatic"]}
    for _ in range(2):
        sell(owner, zone, preparation=wish, epochs=1)
    now = slot_starts_at(zone, 110)
    assert conclude_preparations(now=now) == 2
    first, second = Preparation.objects.order_by("status")
    assert (first.status, second.status) == (PreparationStatus.FAILED, PreparationStatus.WORKING)
    assert (second.vendor, second.sold_micros, second.price_micros) == (dear, 20_000, 900_000)
    assert sum_extra_pay(organisation_id=cheap.organisation.pk, since=NOW) == 880_000
    assert settle_finished(now=now) == 1
    spent = Bid.objects.get(pk=second.bid_id).payment_micros
    assert get_wallet(organisation=owner).available_micros == 10_000_000 - spent
    # The next day there is room again.
    assert sum_extra_pay(organisation_id=cheap.organisation.pk, since=now + timedelta(days=1)) == 0
    assert check_ledger().balanced
    assert verify_zone(zone).problems == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_rent_first", [False, True])
def test_what_two_zones_bear_at_once_stays_within_the_days_limit(
    zone, owner, settings, monkeypatch, is_rent_first
):
    """In one a vendor's small data spare a cell that begins soon, in the other it failed."""
    settings.HOUSE_BEARS_MICROS_PER_DAY = 900_000
    other = build.zone()
    failing = build.vendor(other, "Cheap", kind=VendorKind.HUMAN)
    vendor = build.vendor(zone, of=failing.organisation)
    build.vendor(other, "Dear", minimum_micros=900_000)
    market.price_rent(zone, market.node(zone))
    market.node(other)
    sell(owner, zone)
    sell(owner, other, preparation={"kinds": ["human", "automatic"]}, epochs=1)
    assert prepare_next(clock=clock)
    # Each as late as it can be, and before its own first cell.
    early, late = market.slot_at(zone, 101), slot_starts_at(other, 103)
    order = LockOrder(
        exposures={lock_number(EXPOSURE, failing.organisation_id): failing.organisation_id}
    )

    def conclude(which, now):
        Node.objects.filter(zone=which).update(last_heartbeat_at=now)
        with watch_locks(order), enter_lane(zone=which, now=now) as lane:
            held = Preparation.objects.get(job__zone=which)
            return preparations._conclude(lane, held.pk)

    acts = [(other, late), (zone, early)]
    first, second = acts[::-1] if is_rent_first else acts
    find_left = preparations.find_exposure_left
    with in_between(lambda: conclude(*second)) as start:

        def find_then_meet(**terms):
            left = find_left(**terms)
            if not met:
                met.append(None)
                met[0] = start()
            return left

        met = []
        monkeypatch.setattr(preparations, "find_exposure_left", find_then_meet)
        assert conclude(*first)
    assert met[0].result()
    rent = sum_unsold_rent(organisation_id=vendor.organisation_id, since=NOW)
    extra = sum_extra_pay(organisation_id=failing.organisation_id, since=NOW)
    assert (rent, extra) == ((98_000, 0) if is_rent_first else (20_000, 880_000))
    assert check_ledger().balanced


def test_a_cancelled_job_withdraws_the_work_and_pays_no_vendor(zone, owner):
    market.node(zone)
    vendor = build.vendor(zone, rows_per_slot=50)
    _, job = sell(owner, zone)
    cancel_job(job=job, cancelled_by=None, now=clock())
    # Settlement waits for the vendor to be told.
    assert settle_finished(now=clock()) == 0
    assert conclude_preparations(now=clock()) == 1
    assert settle_finished(now=clock()) == 1
    # What was to be done is forgotten.
    assert prepare_next(clock=clock)
    assert Preparation.objects.get().status == PreparationStatus.WITHDRAWN
    # The vendor's 20,000 go back, and of the rest a fiftieth stays with the market.
    kept = 6_000
    assert get_wallet(organisation=owner).available_micros == 10_000_000 - kept
    assert get_house_balances()["congestion"] == kept
    assert get_earnings(organisation=vendor.organisation).pending_micros == 0
    # Its slots are free for the next bid.
    again, _ = sell(owner, zone, epochs=1, slots=5)
    assert again.status == BidStatus.ADMITTED
    assert verify_zone(zone).problems == []


@pytest.fixture
def stored(settings, tmp_path):
    """What gives every stored file and data set."""
    settings.MEDIA_ROOT = tmp_path / "media"

    def list_all():
        files = sorted(path for path in settings.MEDIA_ROOT.rglob("*") if path.is_file())
        return files, list(Dataset.everything.values_list("pk", flat=True))

    return list_all


HOSTILE = {
    "an archive": (b"PK\x03\x04" + b"\x00" * 4000, "archive"),
    "a compressed bomb": (b"\x1f\x8b\x08" + b"\x00" * 4000, "compressed"),
    "no row": (b"\n\n", "empty"),
    "another schema": (b'{"price": 3}\n', "no usable rows"),
    "one list": (f"[{chat(1)}]".encode(), "JSON list"),
    "more rows than were sold": ("\n".join(map(chat, range(101))).encode(), "100 were sold"),
    "too many bytes": (b"x" * 3_000_000, "bytes"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_delivery_is_refused_and_leaves_no_trace(zone, owner, stored, tmp_path, name):
    market.node(zone)
    build.vendor(zone)
    sell(owner, zone)
    content, reason = HOSTILE[name]
    path = tmp_path / "train.jsonl"
    path.write_bytes(content)
    made = Preparation.objects.get()
    before = stored()
    delivery = Delivery(training=path, held_out=None, changes=None, origins=path, report={})
    with pytest.raises(UserError, match=reason) as refused:
        check_delivery(made, delivery, now=NOW)
    assert refused.value.code == "invalid_delivery"
    assert stored() == before


def test_what_a_vendor_makes_that_has_the_work_no_more_leaves_no_trace(zone, owner, stored):
    market.node(zone)
    build.vendor(zone)
    sell(owner, zone)
    before = stored()

    def replace_vendor(preparation, wish, **named):
        Preparation.objects.update(turn=F("turn") + 1)
        return AutomaticWork().begin(preparation, wish, **named)

    with patch.object(WORK[VendorKind.AUTOMATIC], "begin", replace_vendor):
        assert prepare_next(clock=clock)
    made = Preparation.objects.get()
    assert (made.status, made.prepared, made.report) == (PreparationStatus.WORKING, None, {})
    assert stored() == before


def test_long_work_keeps_its_lease_step_by_step_and_two_are_done_at_once(zone, owner, monkeypatch):
    market.node(zone)
    build.vendor(zone)
    sell(owner, zone)
    kind, taken = get_kinds()[PREPARE], []
    for name in ("a", "b", "c"):
        enqueue_work(NewWork(PREPARE, name, due_at=NOW + timedelta(hours=1)))

    with time_machine.travel(NOW, tick=False) as at:

        def slow(do):
            def step(*args, **named):
                at.shift(preparing.WALL_S)
                piece = DurableWork.objects.exclude(lease_token="").get()
                taken.append(piece.lease_until - read_clock())
                return do(*args, **named)

            return step

        for name in ("prepare_in_process", "compare_in_process"):
            whole = f"marketplace.vendors.kinds.automatic.{name}"
            monkeypatch.setattr(whole, slow(getattr(preparing, name)))
        assert run_due_work(kind, clock=read_clock) == 1
    assert taken == [timedelta(minutes=2)] * 2
    assert Preparation.objects.get().status == PreparationStatus.ACCEPTED
    due_at = NOW + timedelta(hours=1)
    assert len(take_due_work(replace(kind, batch=9), key=None, now=due_at)) == 2


@pytest.mark.django_db(transaction=True)
def test_bids_and_lanes_at_once_never_overbook_a_vendor(zone, owner):
    for _ in range(2):
        market.node(zone)
    builders.fund_wallet(owner, usd="40")
    # A set of 100 rows takes 50 of it in each of two slots: two sets at a time.
    vendor = build.vendor(zone, rows_per_slot=100)
    data = [upload(owner, zone) for _ in range(6)]

    def place(one):
        return market.bid(owner, zone, data=one, epochs=1, preparation={})

    def decide():
        decide_pending_bids(zone=zone, now=NOW)

    placed = at_once([lambda one=one: place(one) for one in data])
    decided = at_once([decide] * 3)
    assert [one for one in placed + decided if isinstance(one, Exception)] == []
    rows = Counter()
    for made in Preparation.objects.all():
        load = next(offer for offer in Bid.objects.get(pk=made.bid_id).offers)[3]
        rows.update({made.ready_slot - 1: load, made.ready_slot - 2: load})
    assert Preparation.objects.filter(vendor=vendor).count() == 6
    assert rows == dict.fromkeys(range(101, 107), 100)
    assert verify_zone(zone).problems == []


def test_rows_under_one_system_prompt_are_all_trained_on(zone, owner):
    market.node(zone)
    build.vendor(zone)
    system = " ".join(f"rule{n}" for n in range(100))
    rows = [json.loads(chat(number)) for number in range(60)]
    for row in rows:
        row["messages"].insert(0, {"role": "system", "content": system})
    data = upload(owner, zone, "\n".join(map(json.dumps, rows)), faulty=0)
    bid, _ = sell(owner, zone, data=data)
    assert prepare_next(clock=clock)
    made = Preparation.objects.get(bid_id=bid.pk)
    assert (made.status, made.rows_in, made.rows_out) == (PreparationStatus.ACCEPTED, 60, 60)
    assert made.report["dropped"] == {}
    assert made.comparison["kept"] == made.comparison["distinct"] == 60


@pytest.fixture
def objected(zone, owner):
    """A program's delivery of 40 of 70 rows, which fails the rule."""
    market.node(zone)
    build.vendor(zone)
    strange = [
        json.dumps({"question": f"Q {n}?", "answer": f"A {n}", "remarks": f"seen by {n} people"})
        for n in range(30)
    ]
    data = upload(owner, zone, "\n".join([*map(chat, range(40)), *strange]), faulty=30)
    sell(owner, zone, data=data)
    assert prepare_next(clock=clock)
    made = Preparation.objects.select_related("vendor", "job").get()
    assert (made.status, made.rows_out) == (PreparationStatus.DELIVERED, 40)
    assert made.objection.startswith("30 of 70 rows are left out. Key \u2026 holds text")
    said = made.job.events.get(kind="disputed").message
    assert said.endswith("You may accept it all the same. Otherwise it counts as refused.")
    # Nobody trains on it, sees it among the owner's data, or is paid for it.
    assert conclude_preparations(now=clock()) == 0
    assert made.job.awaits_data
    assert not Dataset.objects.filter(pk=made.prepared_id).exists()
    return made


def test_its_owner_may_accept_what_the_rule_does_not(zone, owner, objected):
    accept(preparation=objected, now=clock())
    assert conclude_preparations(now=clock()) == 1
    job = Job.objects.get()
    assert (job.dataset_id, job.awaits_data) == (objected.prepared_id, False)
    assert get_earnings(organisation=objected.vendor.organisation).pending_micros == 20_000
    with pytest.raises(Conflict, match="disputed no more"):
        refuse_delivery(
            preparation=objected, reason="No", refused_by=builders.owner_of(owner), now=clock()
        )
    assert check_ledger().balanced


@pytest.mark.parametrize("way", ["refused", "unanswered", "cancelled"])
def test_what_the_rule_does_not_accept_trains_nothing_and_costs_nothing(zone, owner, objected, way):
    now = clock()
    if way == "refused":
        by = builders.owner_of(owner)
        assert refuse_delivery(preparation=objected, reason="", refused_by=by, now=now) is None
    elif way == "cancelled":
        cancel_job(job=objected.job, cancelled_by=None, now=now)
    else:
        now = objected.accept_by
        assert conclude_preparations(now=now - timedelta(seconds=1)) == 0
    assert conclude_preparations(now=now) == 1
    assert settle_finished(now=now) == 1
    objected.refresh_from_db()
    is_cancelled = way == "cancelled"
    ended = PreparationStatus.WITHDRAWN if is_cancelled else PreparationStatus.FAILED
    assert (objected.status, objected.prepared_id) == (ended, None)
    assert Dataset.everything.count() == 1
    assert get_earnings(organisation=objected.vendor.organisation).pending_micros == 0
    # Who cancels gets back what the rest is worth, as without a delivery.
    kept = (Bid.objects.get().payment_micros - 20_000) // 50 if is_cancelled else 0
    assert get_wallet(organisation=owner).available_micros == 10_000_000 - kept
    assert check_ledger().balanced
    assert verify_zone(zone).problems == []
