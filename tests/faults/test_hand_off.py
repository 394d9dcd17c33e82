"""A hand-off whose processes are killed at its very moments: done once, nothing lost, paid once.

The database itself stops the process at the moment that is tried: a trigger waits there for
a lock that the test holds, so that what is killed is killed in the middle of its transaction
however fast or busy the machine is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import psycopg
import pytest

from marketplace.embedded.demo.moving_sale import AWAY_S
from marketplace.embedded.demo.opening import NODE
from marketplace.embedded.house import ENVIRONMENT, wait_for_web
from tests.conftest import Market
from tests.faults.steps import (
    WORKER_AVAILABLE_FROM,
    buy_longest,
    kill_processes,
    rent_warm_machines,
    until,
)
from tests.faults.test_node_in_market import events_of

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

#: As many epochs as a machine measured as slow as this one can promise by the deadline: the
#: promise is for a quarter of it, so that the job outlasts two restarts even if it has grown
#: faster since. It is cancelled once it has moved.
EPOCHS = (90, 60, 40, 27, 18, 12, 8, 5, 3, 2)
#: A restart takes as long as it takes: neither leases nor nodes run out meanwhile.
PATIENCE = """
UPDATE fleet_zone SET lease_grace_s = {grace_s}, heartbeat_every_s = {heartbeat_s}
"""
MOMENT = """
CREATE FUNCTION stop_at_{number}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock({number});
    RETURN NEW;
END $$;
CREATE TRIGGER stop_at_{number} BEFORE UPDATE ON {table} FOR EACH ROW
WHEN ({when}) EXECUTE FUNCTION stop_at_{number}();
"""
NO_MOMENT = "DROP FUNCTION stop_at_{number} CASCADE"
STOPPED = """
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = %s
"""
#: The worker has planned the job anew, on the machine booked for it, and commits next.
PLANNED = (
    *(771001, "tiers_booking"),
    "OLD.handed_at IS NULL AND NEW.handed_at IS NOT NULL",
)
#: The node has written its checkpoint and says that it paused; its lease ends next.
PAUSED = (771002, "jobs_slice", "OLD.status = 'open' AND NEW.status = 'paused'")


@dataclass(frozen=True, slots=True)
class Moment:
    """A step at which whoever comes to it waits until it is let go."""

    database: psycopg.Connection[Any]
    number: int

    def is_reached(self) -> bool:
        [waiting] = self.database.execute(STOPPED, [self.number]).fetchone() or (0,)
        return waiting > 0

    def let_go(self) -> None:
        self.database.execute("SELECT pg_advisory_unlock(%s)", [self.number])


@contextmanager
def moment(
    database: psycopg.Connection[Any], number: int, table: str, when: str
) -> Iterator[Moment]:
    database.execute("SELECT pg_advisory_lock(%s)", [number])
    database.execute(MOMENT.format(number=number, table=table, when=when).encode())
    made = Moment(database, number)
    try:
        yield made
    finally:
        made.let_go()
        database.execute(NO_MOMENT.format(number=number).encode())


@pytest.fixture
def database(market: Market) -> Iterator[psycopg.Connection[Any]]:
    # As the tables' owner, who may make triggers.
    written = json.loads((market.house.data_dir / ENVIRONMENT).read_text())
    with psycopg.connect(written["DATABASE_OWNER_URL"], autocommit=True) as made:
        yield made


@pytest.fixture
def rented(market: Market, database: psycopg.Connection[Any]) -> Iterator[Market]:
    """A serverless machine and a cheaper worker, up and idle; the provider's node sells later."""
    before = database.execute("SELECT lease_grace_s, heartbeat_every_s FROM fleet_zone").fetchone()
    assert before is not None
    try:
        rent_warm_machines(market)
        database.execute(PATIENCE.format(grace_s=600, heartbeat_s=200).encode())
        market.shell.manage("node_available", NODE.name, "--in-s", str(AWAY_S))
        yield market
    finally:
        database.execute(PATIENCE.format(grace_s=before[0], heartbeat_s=before[1]).encode())
        market.shell.manage("node_available", NODE.name)
        market.shell.manage("machines_end", "--within-s", "240")


def test_a_hand_off_survives_its_worker_and_its_web_server_killed_in_the_middle_of_it(
    rented: Market, api: httpx.Client, database: psycopg.Connection[Any]
) -> None:
    tomorrow = "clock.now() + timedelta(days=1)"
    rented.shell.run(WORKER_AVAILABLE_FROM.format(at=tomorrow))
    with moment(database, *PLANNED) as planned, moment(database, *PAUSED) as paused:
        bid = buy_longest(api, rented.zone, name="moves", epochs=EPOCHS)
        job_id = bid["job_id"]
        rented.shell.run(WORKER_AVAILABLE_FROM.format(at=None))

        until(planned.is_reached, within_s=240, what="the worker is about to hand the job over")
        kill_processes(rented, "worker")
        planned.let_go()

        until(paused.is_reached, within_s=240, what="the job has paused, and the web is told so")
        kill_processes(rented, "web")
        paused.let_go()
        wait_for_web(rented.house)

        until(
            lambda: any(text.startswith("Moved at step") for text in told(api, job_id)),
            within_s=240,
            what="the job has moved",
        )
    rows = database.execute(
        "SELECT m.tier, s.status, s.opened_at, s.closed_at, s.result ->> 'step' FROM jobs_slice s "
        "JOIN fleet_jointoken t ON t.node_id = s.node_id "
        "JOIN tiers_machine m ON m.join_token_id = t.id WHERE s.job_id = %s ORDER BY s.opened_at",
        [job_id],
    ).fetchall()
    [(left, how, _, closed_at, step), (arrived, goes_on, opened_at, _, _)] = rows
    assert (left, how) == ("serverless", "paused")
    assert (arrived, goes_on) == ("marketplace", "open")
    assert closed_at <= opened_at
    bookings = "SELECT outcome, count(*) FROM tiers_booking WHERE job_id = %s GROUP BY outcome"
    assert database.execute(bookings, [job_id]).fetchall() == [("moved", 1)]
    words = told(api, job_id)
    assert sum("repay moving there" in text for text in words) == 1
    assert sum(text.startswith("Paused on node") for text in words) == 1
    assert sum("It left serverless" in text for text in words) == 1
    # The step it was paused at is the step it goes on from.
    [moved] = [text for text in words if text.startswith("Moved at step")]
    assert moved.startswith(f"Moved at step {step} from serverless-local")
    assert "no step was lost" in moved
    answer = api.get(f"/api/bids/{bid['id']}").raise_for_status().json()
    assert answer["decision"]["payment"] == bid["decision"]["payment"]
    assert api.post(f"/api/jobs/{job_id}/cancel").status_code == 200
    rented.shell.manage("auction_verify")
    assert "balance" in rented.shell.manage("ledger_check", "--whole").lower()


def told(api: httpx.Client, job_id: str) -> list[str]:
    return [event["message"] for event in events_of(api, job_id)]
