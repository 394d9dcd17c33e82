"""The lane under faults: no bid is lost or decided twice, and the books balance."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from django.db import connection, connections, transaction
from django.test import override_settings

from marketplace.auction.bidding.cancel import cancel_bid
from marketplace.auction.bidding.wait import listener, wait_for_bid
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane import wakeups
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.defragment import improve_plans
from marketplace.auction.lane.enter import enter_lane
from marketplace.auction.lane.sweep import refresh_zone, sweep_zones
from marketplace.auction.models import Bid, LogEntry, MarketHead, Reservation
from marketplace.common import clock
from marketplace.common.errors import Conflict
from marketplace.fleet.models import Node
from marketplace.jobs.models import Job
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.selectors import get_wallet
from marketplace.payments.services import lock_wallets
from tests import builders, lane_process
from tests import market_builders as market
from tests.cut_relay import open_database_relay
from tests.unit.marketplace.common.threads import at_once
from tests.waiting import until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("no_old_wake_ups"),
]


def list_bids(zone, organisations, *, each, price_micros=400_000):
    now = clock.now()
    return [
        market.bid(owner, zone, price_micros=price_micros, slots=30, now=now)
        for _ in range(each)
        for owner in organisations
    ]


def all_decided(zone):
    return not Bid.objects.filter(zone=zone, status="pending").exists()


def assert_decided_once(zone, bids):
    """Everything that must hold after any fault."""
    ids = {bid.pk for bid in bids}
    stored = Bid.objects.filter(pk__in=ids)
    assert stored.count() == len(ids)
    assert {bid.status for bid in stored} <= {"admitted", "refused"}
    events = LogEntry.objects.filter(zone=zone, kind="BidArrived")
    assert events.count() == len(ids)
    admitted = {bid.pk for bid in stored if bid.status == "admitted"}
    assert set(Job.objects.filter(zone=zone).values_list("bid_id", flat=True)) == admitted
    check = check_ledger()
    assert check.balanced, check
    assert verify_zone(zone).problems == []
    for owner in {bid.organisation for bid in stored}:
        spent = sum(bid.payment_micros or 0 for bid in stored if bid.organisation_id == owner.pk)
        have = get_wallet(organisation=owner)
        assert (have.available_micros, have.held_micros) == (10_000_000 - spent, 0)


def test_lane_killed_in_the_middle_of_a_batch_has_decided_nothing(zone, tmp_path):
    first, second = builders.organisation(usd="10"), builders.organisation(usd="10")
    bids = list_bids(zone, [first, second], each=5)
    with lane_process.lane(log_dir=tmp_path) as lane, transaction.atomic():
        # The batch writes its decisions, then waits here for the wallet of the second.
        lock_wallets([second.pk])
        wakeups.wake_lane(zone_id=zone.pk)
        until(lane_process.blocked_backends, what="the lane is in its batch")
        lane.kill()
        lane_process.end_blocked_backends()
    until(lambda: not lane_process.blocked_backends(), what="its session is gone")
    assert set(Bid.objects.values_list("status", flat=True)) == {"pending"}
    # Their receipts were given before, and stay.
    assert LogEntry.objects.latest("position").kind == "BidsReceived"
    receipts = dict(Bid.objects.values_list("pk", "receipt"))
    assert all(receipts.values())
    assert not LogEntry.objects.filter(kind="BidArrived").exists()
    assert not Reservation.objects.exists()
    assert not Job.objects.exists()
    assert get_wallet(organisation=first).held_micros == 5 * 400_000
    assert check_ledger().balanced

    with lane_process.lane(log_dir=tmp_path, name="next"):
        wakeups.wake_lane(zone_id=zone.pk)
        until(lambda: all_decided(zone), what="the next lane decides them")
    assert_decided_once(zone, bids)
    kinds = list(LogEntry.objects.order_by("position").values_list("kind", flat=True))
    if "ReceiptsVoided" not in kinds:
        # The next lane came in the same slot.
        assert dict(Bid.objects.values_list("pk", "receipt")) == receipts
        assert kinds[-10:] == ["BidArrived"] * 10


#: Seconds in which a standby has decided, however a lane stops.
FAILOVER_WITHIN_S = 15.0
STOPS = ("stopped outside", "killed inside", "cut off inside", "cut off outside")


@pytest.mark.parametrize(
    "how", ["stopped inside", *(pytest.param(how, marks=pytest.mark.nightly) for how in STOPS)]
)
def test_a_standby_decides_soon_however_a_lane_stops_and_the_old_one_is_fenced(zone, tmp_path, how):
    """In its transaction it has the zone's lock, until the server ends that for it."""
    owner = builders.organisation(usd="10")
    logs = {"log_dir": tmp_path}
    with (
        open_database_relay() as (relay, url),
        lane_process.lane(**logs, name="old", database_url=url) as old,
        lane_process.lane(**logs, name="standby") as standby,
    ):
        for lane in (old, standby):
            lane.pause()
        until(lambda: not lane_process.count_waiting_lanes(), what="neither is given a task")
        bids = list_bids(zone, [owner], each=3)
        stop = {"stopped": old.pause, "killed": old.kill, "cut": relay.cut}[how.split()[0]]
        if how.endswith("inside"):
            with transaction.atomic():
                lock_wallets([owner.pk])
                old.go_on()
                until(lane_process.blocked_backends, what="the old lane is in its batch")
                stop()
            # Its statement ends now; its transaction stays open.
            until(lambda: not lane_process.blocked_backends(), what="it has the wallet")
        else:
            stop()
            if how.startswith("cut"):
                old.go_on()
        stopped_at = time.monotonic()
        standby.go_on()
        until(lambda: is_decided_when_swept(zone), what="the standby decides them")
        took_s = time.monotonic() - stopped_at
        head = MarketHead.objects.get(zone=zone).head_hash
        relay.heal()
        if not how.startswith("killed"):
            old.go_on()
        more = list_bids(zone, [owner], each=2)
        until(lambda: is_decided_when_swept(zone), what="both lanes go on")
    print(f"{how}: the standby had decided after {took_s:.1f} s")
    assert took_s < FAILOVER_WITHIN_S
    assert MarketHead.objects.get(zone=zone).head_hash != head
    assert_decided_once(zone, [*bids, *more])


def is_decided_when_swept(zone):
    """Whether all is decided; as the sweep does, a lane is woken every two seconds until then."""
    wakeups.wake_lane(zone_id=zone.pk)
    return all_decided(zone)


def test_two_lanes_for_one_zone_decide_every_bid_once(zone, tmp_path):
    owners = [builders.organisation(usd="10") for _ in range(4)]
    with (
        lane_process.lane(log_dir=tmp_path, name="one"),
        lane_process.lane(log_dir=tmp_path, name="two"),
    ):

        def place(owner):
            return lambda: list_bids(zone, [owner], each=8)

        placed = at_once([place(owner) for owner in owners])
        until(lambda: all_decided(zone), what="all bids are decided")
    assert_decided_once(zone, [bid for bids in placed for bid in bids])


def test_lanes_in_threads_of_one_process_do_not_mix_their_engines(zone):
    owners = [builders.organisation(usd="10") for _ in range(3)]
    bids = list_bids(zone, owners, each=6)
    now = clock.now()

    def decide():
        return sum(decide_pending_bids(zone=zone, now=now, limit=2).decided for _ in range(5))

    decided = at_once([decide] * 3)
    decide_pending_bids(zone=zone, now=now)
    assert sum(decided) <= len(bids)
    assert_decided_once(zone, bids)


def test_lane_waits_for_another_and_sees_what_that_one_decided(zone):
    owner = builders.organisation(usd="10")
    now = clock.now()
    with enter_lane(zone=zone, now=now):
        [bid] = list_bids(zone, [owner], each=1)
    decide_pending_bids(zone=zone, now=now)
    assert_decided_once(zone, [bid])


def test_lane_that_waits_too_long_steps_aside_and_loses_nothing(zone):
    owner = builders.organisation(usd="10")
    [bid] = list_bids(zone, [owner], each=1)
    now = clock.now()

    def impatient():
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '100ms'")
        return decide_pending_bids(zone=zone, now=now)

    with enter_lane(zone=zone, now=now):
        [batch] = at_once([impatient])
        assert batch.stepped_aside
        assert batch.decided == 0
    decide_pending_bids(zone=zone, now=now)
    assert_decided_once(zone, [bid])


def test_cancelling_and_deciding_at_once_has_one_outcome(zone):
    owner = builders.organisation(usd="10")
    now = clock.now()
    for _ in range(5):
        [bid] = list_bids(zone, [owner], each=1)
        cancelled, batch = at_once(
            [
                lambda bid=bid: cancel_bid(bid=bid, now=now),
                lambda: decide_pending_bids(zone=zone, now=now),
            ]
        )
        bid.refresh_from_db()
        if bid.status == "cancelled":
            assert batch.decided == 0
            assert bid.position is None
        else:
            assert isinstance(cancelled, Conflict)
            assert bid.status == "admitted"
        assert check_ledger().balanced
    assert verify_zone(zone).problems == []


def test_bid_is_taken_and_found_by_the_sweep_when_redis_is_away(zone):
    owner = builders.organisation(usd="10")
    away = {
        "default": {
            "BACKEND": "django.core.cache.backends.redis.RedisCache",
            "LOCATION": "redis://127.0.0.1:1/0",
        }
    }
    with override_settings(CACHES=away):
        [bid] = list_bids(zone, [owner], each=1)
        sweep_zones(clock=clock.now)
    assert_decided_once(zone, [bid])


def test_organisations_of_two_zones_are_settled_without_waiting_in_a_circle():
    zones = [market.zone(), market.zone()]
    for zone in zones:
        market.node(zone)
        market.node(zone)
    owners = [builders.organisation(usd="10") for _ in range(4)]
    placed = []
    for round_number in range(3):
        for zone, order in ((zones[0], owners), (zones[1], owners[::-1])):
            placed += list_bids(zone, order, each=1, price_micros=400_000)
        now = clock.now()
        batches = at_once(
            [lambda zone=zone, now=now: decide_pending_bids(zone=zone, now=now) for zone in zones]
        )
        assert [batch.decided for batch in batches] == [4, 4], round_number
    assert check_ledger().balanced
    assert [verify_zone(zone).problems for zone in zones] == [[], []]


def test_lanes_and_planners_that_find_the_same_loss_at_once_share_it_out_once():
    owner = builders.organisation(usd="10")
    now = clock.now()
    zone = market.zone(jobs_per_node=1)
    for _ in range(4):
        market.node(zone, compute_capacity=100.0)
    bids = [
        market.bid(owner, zone, price_micros=2_000_000, slots=slots, epochs=3, now=now)
        for slots in (30, 30, 4, 4)
    ]
    decide_pending_bids(zone=zone, now=now)
    jobs = {job.bid_id: job for job in Job.objects.all()}
    assert len(jobs) == 4
    lost = [jobs[bid.pk].cells[-1][1] for bid in bids[2:]]
    Node.objects.filter(pk__in=lost).update(status="offline")

    def refresh():
        refresh_zone(zone=zone, now=now)

    def improve():
        return improve_plans(zone_id=zone.pk, clock=lambda: now)

    answers = at_once([refresh, improve, refresh, improve, refresh])
    assert not [answer for answer in answers if isinstance(answer, Exception)]
    refresh()
    assert not Job.objects.filter(needs_replan=True).exists()
    for job in Job.objects.all():
        assert job.finish_planned_at <= job.deadline_at
        assert not {node for _, node in job.cells} & set(lost)
    # However many looked, the two late jobs were placed once.
    assert LogEntry.objects.filter(zone=zone, kind="PlansMoved").count() == 1
    assert not LogEntry.objects.filter(zone=zone, kind="TaskReplanned").exists()
    assert verify_zone(zone).problems == []
    assert check_ledger().balanced


def test_waiter_hears_of_its_decision_at_once(zone):
    owner = builders.organisation(usd="10")
    [bid] = list_bids(zone, [owner], each=1)
    now = clock.now()

    def decide():
        until(lambda: bid.pk in listener._futures, what="somebody waits for it")
        return decide_pending_bids(zone=zone, now=now)

    waited, _ = at_once([lambda: wait_for_bid(bid=bid, timeout_s=30), decide])
    assert waited.status == "admitted"


def test_processes_that_were_behind_catch_up_before_they_decide(zone):
    """Two engines for one zone, as in two processes, taking turns."""
    from marketplace.auction.book import engine_cache as books

    owner = builders.organisation(usd="10")
    kept: list[dict] = [{}, {}]
    placed = []
    now = clock.now()
    for turn in range(6):
        placed += list_bids(zone, [owner], each=1)
        books._lane_books.clear()
        books._lane_books.update(kept[turn % 2])
        decide_pending_bids(zone=zone, now=now + timedelta(seconds=10 * turn))
        kept[turn % 2] = dict(books._lane_books)
    connections.close_all()
    assert_decided_once(zone, placed)
