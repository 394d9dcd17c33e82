"""A zone that is solved again and again, in the hands of real processes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from io import StringIO
from math import inf

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.models import Bid, LogEntry, MarketHead, Pricing, Reservation
from marketplace.auction.pricing.solve import solve_zone_prices
from marketplace.common import clock
from marketplace.common.queue import enqueue
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.selectors import get_wallet
from marketplace.payments.services import lock_wallets
from scheduler.auction.log.rules import BEATS_PER_SLOT
from tests import builders, lane_process
from tests import market_builders as market
from tests.audits import replay_transcript
from tests.unit.marketplace.common.threads import at_once
from tests.waiting import until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("no_old_wake_ups"),
]

SETTINGS = {"iterations": 20}


@pytest.fixture
def zone():
    zone = market.zone(policy_settings=SETTINGS, horizon_slots=30)
    market.node(zone)
    return zone


def place(owner, zone, count) -> list[Bid]:
    """Bids for far more than there is, of many amounts."""
    return [
        market.bid(
            owner,
            zone,
            price_micros=250_000 + 90_000 * (number % 7),
            slots=12,
            epochs=2,
            now=clock.now(),
        )
        for number in range(count)
    ]


def decided(zone) -> bool:
    return not Bid.objects.filter(zone=zone, status="pending").exists()


def pricing(zone) -> Pricing:
    return Pricing.objects.get(zone=zone)


def prices_after(zone, position: int) -> Callable[[], bool]:
    """Whether prices are in force that were solved later; the lane's sweep comes as by the beat."""
    asked_s = -inf

    def in_force() -> bool:
        nonlocal asked_s
        if time.monotonic() - asked_s > 1.0:
            enqueue("auction.sweep")
            asked_s = time.monotonic()
        return (pricing(zone).applied_position or 0) > position

    return in_force


def test_a_zone_is_solved_again_and_survives_the_death_of_its_lane(zone, tmp_path):
    owner = builders.organisation(usd="100")
    bids = place(owner, zone, 30)
    decide_pending_bids(zone=zone, now=clock.now())
    with ExitStack() as running:
        lane = running.enter_context(lane_process.lane(log_dir=tmp_path))
        running.enter_context(lane_process.lane(log_dir=tmp_path, name="worker", queues="default"))
        until(prices_after(zone, 0), what="the first prices are in force")
        first = pricing(zone)
        assert (first.policy, first.problem) == ("lagrangian", "")
        bids += place(owner, zone, 10)
        until(lambda: decided(zone), what="bids are decided at solved prices")

        assert first.applied_position is not None
        until(prices_after(zone, first.applied_position), what="prices are solved again")

        # The lane dies in the middle of a batch: nothing of it was decided.
        lane.pause()
        left = place(owner, zone, 8)
        before = MarketHead.objects.get(zone=zone).position
        with transaction.atomic():
            lock_wallets([owner.pk])
            lane.go_on()
            until(lane_process.blocked_backends, what="the lane is in its batch")
            lane.kill()
            lane_process.end_blocked_backends()
    until(lambda: not lane_process.blocked_backends(), what="its session is gone")
    assert {bid.pk for bid in left} == set(
        Bid.objects.filter(status="pending").values_list("pk", flat=True)
    )
    # Prices that came meanwhile may have been applied before the batch; no bid was decided.
    later = LogEntry.objects.filter(zone=zone, position__gt=before)
    assert not later.filter(kind="BidArrived").exists()
    assert verify_zone(zone).problems == []
    bids += left
    with lane_process.lane(log_dir=tmp_path, name="second"):
        bids += place(owner, zone, 8)
        until(lambda: decided(zone), what="the next lane decides what was left")
    assert LogEntry.objects.filter(zone=zone, kind="BidArrived").count() == len(bids) == 56
    assert {bid.pk for bid in bids} == set(Bid.objects.values_list("pk", flat=True))
    assert LogEntry.objects.filter(zone=zone, kind="PricesSolved").count() >= 2
    assert Bid.objects.filter(status="admitted").exists()
    assert check_ledger().balanced
    paid = sum(Bid.objects.filter(status="admitted").values_list("payment_micros", flat=True))
    assert get_wallet(organisation=owner).available_micros == 100_000_000 - paid
    held = Reservation.objects.filter(released_at=None).values_list("node", "slot")
    assert max(list(held).count(cell) for cell in held) <= 4
    everything_verifies(zone, tmp_path)


def everything_verifies(zone, tmp_path) -> None:
    """Rows, log and published transcript; and not, once a decision is a cent off."""
    call_command("auction_verify", stdout=StringIO())
    path = tmp_path / "zone.jsonl"
    call_command("auction_transcript", zone=zone.name, out=path, stdout=StringIO())
    verified = replay_transcript(path)
    assert verified.returncode == 0, verified.stderr
    assert json.loads(verified.stdout)["head_hash"] == MarketHead.objects.get(zone=zone).head_hash
    bid = Bid.objects.filter(status="admitted").latest("position")
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute(
            "UPDATE auction_bid SET payment_micros = payment_micros - 10000 WHERE id = %s",
            [bid.pk],
        )
        cursor.execute("SET session_replication_role = origin")
    with pytest.raises(CommandError, match="not what its log replays to"):
        call_command("auction_verify", stdout=StringIO())
    text = path.read_text()
    payment = f'"payment": {bid.payment_micros}.0'
    assert payment in text
    assert bid.payment_micros is not None
    path.write_text(text.replace(payment, f'"payment": {bid.payment_micros - 10_000}.0'))
    assert replay_transcript(path).returncode == 1


def test_solves_and_decisions_at_once_come_to_one_log(zone):
    owner = builders.organisation(usd="100")
    place(owner, zone, 12)
    now = clock.now()
    beat = timedelta(seconds=zone.slot_s / BEATS_PER_SLOT)
    decide_pending_bids(zone=zone, now=now)
    # The next beat is the first that has bids behind it.
    now += beat
    refresh_zone(zone=zone, now=now)
    place(owner, zone, 12)

    def solve() -> bool:
        return solve_zone_prices(zone_id=zone.pk, clock=lambda: now)

    later = now + beat

    def follow_beat() -> None:
        refresh_zone(zone=zone, now=later)

    def decide() -> int:
        return sum(decide_pending_bids(zone=zone, now=now, limit=3).decided for _ in range(4))

    results = at_once([solve, solve, solve, decide])
    assert sorted(results[:3]) == [False, False, True]
    assert 0 < results[3] <= 12
    # Those received under one's lane may be decided by who enters it next.
    assert not Bid.objects.filter(status="pending").exists()
    place(owner, zone, 6)
    results = at_once([follow_beat, follow_beat, decide])
    # Who follows the beat decides what was received as well, and may leave nothing to decide.
    assert 0 <= results[2] <= 6
    assert not Bid.objects.filter(status="pending").exists()
    kinds = list(LogEntry.objects.filter(zone=zone).values_list("kind", flat=True))
    assert (kinds.count("RulesChanged"), kinds.count("PricesSolved")) == (0, 1)
    assert kinds.count("BidArrived") == 30
    assert verify_zone(zone).problems == []
    assert check_ledger().balanced
