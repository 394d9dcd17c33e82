"""Taking in bids under faults: no bid is lost or placed twice, and no wallet is overdrawn."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import timedelta

import httpx
import pytest
from django.db import connection, transaction

from marketplace.auction.bidding.place import NewBid, PlacedBid, place_bids
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Bid
from marketplace.common import clock
from marketplace.common.errors import Conflict, PaymentRequired
from marketplace.embedded.servers import find_free_port
from marketplace.embedded.stack import BOUND
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.models import Hold
from marketplace.payments.selectors import get_wallet
from marketplace.payments.services import lock_wallets
from tests import builders, lane_process
from tests import market_builders as market
from tests.unit.marketplace.common.threads import at_once, is_waited_for
from tests.waiting import until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("no_old_wake_ups"),
]


def asked(owner, zone, *, data, key=None, price_micros=400_000, now):
    return NewBid(
        organisation=owner,
        placed_by=builders.owner_of(owner),
        zone=zone,
        dataset=data,
        name="a job",
        price_micros=price_micros,
        deadline_at=now + timedelta(seconds=300),
        idempotency_key=key,
        **market.job_terms(),
    )


def test_same_keys_in_groups_of_several_processes_are_one_bid_each(zone):
    owners = [builders.organisation(usd="10") for _ in range(3)]
    data = [market.dataset(owner, zone) for owner in owners]
    now = clock.now()

    def group(turn):
        bids = [
            asked(owner, zone, data=of, key=f"k{number}", now=now)
            for number in range(4)
            for owner, of in zip(owners, data, strict=True)
        ]
        # No two come in the same order.
        return lambda: place_bids(asked=bids[turn:] + bids[:turn], now=now)

    groups = at_once([group(turn) for turn in range(6)])
    outcomes = [outcome for placed in groups for outcome in placed]
    assert all(isinstance(outcome, PlacedBid) for outcome in outcomes), outcomes
    assert len({outcome.bid.pk for outcome in outcomes}) == Bid.objects.count() == 12
    assert sum(not outcome.earlier for outcome in outcomes) == 12
    for owner in owners:
        assert get_wallet(organisation=owner).held_micros == 4 * 400_000
    assert check_ledger().balanced


def test_one_key_with_different_requests_in_groups_at_once_is_one_bid(zone):
    owner = builders.organisation(usd="10")
    data = market.dataset(owner, zone)
    now = clock.now()

    def group(turn):
        bids = [
            asked(owner, zone, data=data, key="once", price_micros=1000 * turn + n + 1, now=now)
            for n in range(3)
        ]
        return lambda: place_bids(asked=bids, now=now)

    outcomes = [outcome for placed in at_once([group(n) for n in range(5)]) for outcome in placed]
    [won] = [outcome for outcome in outcomes if isinstance(outcome, PlacedBid)]
    lost = [outcome for outcome in outcomes if isinstance(outcome, Conflict)]
    assert len(lost) == 14
    assert {error.code for error in lost} == {"idempotency_key_reused"}
    assert get_wallet(organisation=owner).held_micros == won.bid.price_micros


def test_wallets_are_not_overdrawn_by_groups_at_once(zone):
    owners = [builders.organisation(usd="10") for _ in range(3)]
    data = {owner.pk: market.dataset(owner, zone) for owner in owners}
    now = clock.now()

    def group(turn):
        order = owners[turn % 3 :] + owners[: turn % 3]
        bids = [
            asked(owner, zone, data=data[owner.pk], price_micros=3_000_000, now=now)
            for owner in order
            for _ in range(2)
        ]
        return lambda: place_bids(asked=bids, now=now)

    outcomes = [outcome for placed in at_once([group(n) for n in range(4)]) for outcome in placed]
    won = [outcome for outcome in outcomes if isinstance(outcome, PlacedBid)]
    lost = [outcome for outcome in outcomes if isinstance(outcome, PaymentRequired)]
    assert (len(won), len(lost)) == (9, 15)
    assert Bid.objects.count() == Hold.objects.count() == 9
    for owner in owners:
        have = get_wallet(organisation=owner)
        assert (have.available_micros, have.held_micros) == (1_000_000, 9_000_000)
    assert check_ledger().balanced


def test_bids_are_taken_in_while_the_lane_decides_others(zone):
    owners = [builders.organisation(usd="10") for _ in range(3)]
    data = {owner.pk: market.dataset(owner, zone) for owner in owners}
    now = clock.now()

    def place():
        for _ in range(6):
            outcomes = place_bids(
                asked=[
                    asked(owner, zone, data=data[owner.pk], price_micros=200_000, now=now)
                    for owner in owners
                ],
                now=now,
            )
            assert all(isinstance(outcome, PlacedBid) for outcome in outcomes)

    def decide():
        return sum(decide_pending_bids(zone=zone, now=now, limit=5).decided for _ in range(8))

    ended = at_once([place, place, decide])
    assert ended[:2] == [None, None]
    decide_pending_bids(zone=zone, now=now)
    assert not Bid.objects.filter(status="pending").exists()
    assert Bid.objects.count() == 36
    assert [get_wallet(organisation=owner).held_micros for owner in owners] == [0, 0, 0]
    assert check_ledger().balanced


# -- a web server of its own -------------------------------------------------------------


class Web:
    """uvicorn on the test database; ``kill`` is kill -9, of its whole group."""

    def __init__(self, *, log_dir, name):
        self.url = f"http://127.0.0.1:{find_free_port()}"
        self.log = log_dir / f"{name}.log"
        port = self.url.rpartition(":")[2]
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(BOUND), "--", sys.executable, "-m", "uvicorn"]
                + ["marketplace.config.asgi:application", "--port", port],
                cwd=lane_process.ROOT,
                env=lane_process.environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def ready(self):
        if self._process.poll() is not None:
            raise AssertionError(f"the web server ended: {self.log.read_text()[-3000:]}")
        try:
            return httpx.get(f"{self.url}/api/zones", timeout=10).status_code == 200
        except httpx.TransportError:
            return False

    def kill(self):
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)

    def post_all(self, requests):
        """Answers to bids sent at once; ``None`` where the server was gone."""

        async def one(client, request):
            try:
                return await client.post("/api/bids", **request)
            except httpx.TransportError:
                return None

        async def talk():
            async with httpx.AsyncClient(base_url=self.url, timeout=60) as client:
                return await asyncio.gather(*(one(client, request) for request in requests))

        return asyncio.run(talk())


@contextmanager
def web(*, log_dir, name="web"):
    process = Web(log_dir=log_dir, name=name)
    try:
        until(process.ready, what=f"{name} is ready")
        yield process
    finally:
        process.kill()


def requests_of(zone, owners, *, each):
    """Requests with a key of their own, in turn of their owners."""
    deadline = (clock.now() + timedelta(seconds=500)).isoformat()
    terms = {"zone": zone.name, "name": "a job", "price": "0.40", "deadline": deadline}
    data = [market.dataset(owner, zone) for owner in owners]
    keys = [builders.api_key(owner)[1] for owner in owners]
    return [
        {
            "json": terms | {"dataset_id": of.pk} | market.job_terms(),
            "headers": {"Authorization": f"Bearer {key}", "Idempotency-Key": f"k{number}"},
        }
        for number in range(each)
        for of, key in zip(data, keys, strict=True)
    ]


def test_web_killed_in_the_middle_of_a_group_has_placed_all_or_nothing_of_it(zone, tmp_path):
    first, second = builders.organisation(usd="10"), builders.organisation(usd="10")
    requests = requests_of(zone, [first, second], each=5)
    with web(log_dir=tmp_path) as server, transaction.atomic():
        # The group's transaction waits here for the wallet of the second.
        lock_wallets([second.pk])

        def kill_when_blocked():
            ends_at = time.monotonic() + 60
            while not is_waited_for(connection_of_test) and time.monotonic() < ends_at:
                time.sleep(0.02)
            server.kill()

        connection_of_test = connection.connection.info.backend_pid
        _, answers = at_once([kill_when_blocked, lambda: server.post_all(requests)])
        assert answers == [None] * 10
    until(lambda: not open_backends(), what="the dead server's sessions are gone")
    # Groups before the one that was stopped are whole; of that one there is nothing.
    assert Bid.objects.count() == Hold.objects.count()
    assert check_ledger().balanced

    with lane_process.lane(log_dir=tmp_path), web(log_dir=tmp_path, name="next") as server:
        answers = server.post_all(requests)
        until(all_are_decided, what="the lane has decided all bids")
        again = server.post_all(requests)
    # On a slow machine some are not decided while their requests wait.
    assert {answer.status_code for answer in answers} <= {201, 202}
    assert [answer.status_code for answer in again] == [201] * 10
    ids = [answer.json()["id"] for answer in answers]
    assert [answer.json()["id"] for answer in again] == ids
    assert len(set(ids)) == Bid.objects.count() == 10
    check = check_ledger()
    assert check.balanced, check
    for owner in (first, second):
        spent = sum(bid.payment_micros for bid in Bid.objects.filter(organisation=owner))
        assert get_wallet(organisation=owner).available_micros == 10_000_000 - spent


def all_are_decided():
    return not Bid.objects.filter(status="pending").exists()


def open_backends():
    """Other sessions of the test database that are in a transaction."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND (wait_event_type = 'Lock' OR xact_start IS NOT NULL)"
        )
        return cursor.fetchone()[0]
