"""A random economy over HTTP while processes are killed: the books, added up by others' arithmetic.

Threads bid, look, cancel and repeat themselves. In the end every sum is computed again from raw
rows, without any code of the market.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import httpx
import pytest

from marketplace.embedded.demo.api_client import upload_dataset
from tests.conftest import Market
from tests.faults.steps import until
from tests.faults.test_house import kill

pytestmark = [pytest.mark.faults, pytest.mark.nightly, pytest.mark.timeout(3600)]

OPERATIONS = int(os.environ.get("ECONOMY_OPERATIONS", "2000"))
THREADS = 4
#: A process is killed after so many operations.
KILL_EVERY = 150
PRICES = ("0.000001", "0.01", "0.05", "0.50", "2")

#: Every check is a query that finds nothing where the books are right.
RECOMPUTED = {
    "entries sum to zero": """
        SELECT entry_id FROM payments_posting GROUP BY entry_id HAVING sum(amount_micros) <> 0""",
    "balances are their postings": """
        SELECT a.id FROM payments_ledgeraccount a LEFT JOIN payments_posting p
        ON p.account_id = a.id WHERE a.balance_micros IS NOT NULL
        GROUP BY a.id HAVING a.balance_micros <> coalesce(sum(p.amount_micros), 0)""",
    "no wallet was below zero at any posting": """
        SELECT id FROM (SELECT a.id, sum(p.amount_micros) OVER (PARTITION BY a.id ORDER BY p.id)
        AS after FROM payments_posting p JOIN payments_ledgeraccount a ON a.id = p.account_id
        WHERE a.kind IN ('wallet_available', 'wallet_held')) AS run WHERE after < 0""",
    "held money is that of open holds": """
        SELECT a.organisation_id FROM payments_ledgeraccount a WHERE a.kind = 'wallet_held'
        AND a.balance_micros <> coalesce((SELECT sum(h.amount_micros) FROM payments_hold h
        WHERE h.organisation_id = a.organisation_id AND h.status = 'held'), 0)""",
    "a hold is charged, released or open, once": """
        SELECT h.reference FROM payments_hold h LEFT JOIN payments_entry e
        ON e.reference = h.reference AND e.kind IN ('charge', 'release')
        GROUP BY h.reference, h.status HAVING count(e.id) <> (h.status <> 'held')::int""",
    "a winner pays what was decided": """
        SELECT b.id FROM auction_bid b JOIN payments_hold h ON h.reference = b.hold_reference
        WHERE h.charged_micros <> coalesce(b.payment_micros, 0)""",
    "a bid that lost pays nothing": """
        SELECT b.id FROM auction_bid b JOIN payments_hold h ON h.reference = b.hold_reference
        WHERE b.status IN ('refused', 'cancelled') AND h.status <> 'released'""",
    "clearing is what is not shared out": """
        SELECT 1 FROM (SELECT coalesce(sum(p.amount_micros), 0) AS here FROM payments_posting p
        JOIN payments_ledgeraccount a ON a.id = p.account_id WHERE a.kind = 'clearing') AS c,
        (SELECT coalesce(sum(charged_micros - refunded_micros - vendor_micros), 0) AS due
        FROM payments_hold WHERE status = 'charged' AND distributed_at IS NULL) AS h
        WHERE c.here <> h.due""",
    "earnings are what was shared out": """
        SELECT d.hold_id FROM payments_distribution d JOIN payments_hold h ON h.id = d.hold_id
        LEFT JOIN payments_earning e ON e.reference = h.reference AND e.kind = 'provider'
        GROUP BY d.hold_id, d.asks_micros, d.borne_pay_micros, d.asks_returned_micros,
        d.asks_kept_micros HAVING coalesce(sum(e.amount_micros), 0) <> d.asks_micros
        + d.borne_pay_micros - d.asks_returned_micros - d.asks_kept_micros""",
    "no key made two bids": """
        SELECT idempotency_key FROM auction_bid WHERE idempotency_key IS NOT NULL
        GROUP BY organisation_id, idempotency_key HAVING count(*) > 1""",
}
_READ = """
import json
from django.db import connection
with connection.cursor() as cursor:
    found = {{}}
    for name, query in json.loads({queries!r}).items():
        cursor.execute(query)
        found[name] = [str(row[0]) for row in cursor.fetchall()[:5]]
    cursor.execute("SELECT (SELECT count(*) FROM auction_bid), (SELECT count(*) FROM"
                   " payments_entry), (SELECT count(*) FROM payments_posting)")
    found["rows"] = list(cursor.fetchone())
print(json.dumps(found))
"""


class Economy:
    """What the owner's programs do, at random."""

    def __init__(self, market: Market, *, seed: int) -> None:
        self.market, self.random = market, Random(seed)
        self.lock = threading.Lock()
        with market.api() as api:
            self.dataset_id = upload_dataset(api, market.zone)["id"]
        self.bids: list[str] = []
        self.jobs: list[str] = []
        self.done = 0
        self.kinds: dict[str, int] = {}

    def act(self, number: int) -> None:
        with self.lock:
            act = self.random.choices(
                (self.bid, self.cancel_bid, self.cancel_job, self.look), (60, 10, 20, 10)
            )[0]
            seed = self.random.random()
        act(Random(seed))
        with self.lock:
            self.done += 1
            self.kinds[act.__name__] = self.kinds.get(act.__name__, 0) + 1

    def bid(self, random: Random) -> None:
        asked = {
            "zone": self.market.zone,
            "dataset_id": self.dataset_id,
            "name": "economy",
            "training": {"epochs": random.choice((1, 2))},
            "deadline": (datetime.now(UTC) + timedelta(minutes=random.randint(5, 25))).isoformat(),
            "price": random.choice(PRICES),
        }
        key = secrets.token_hex(8)
        for _ in range(random.choice((1, 1, 3))):
            answer = self.send("POST", "/api/bids", json=asked, headers={"Idempotency-Key": key})
            if answer is not None and answer.status_code in (201, 202):
                with self.lock:
                    self.bids.append(answer.json()["id"])

    def cancel_bid(self, random: Random) -> None:
        with self.lock:
            bid = random.choice(self.bids) if self.bids else "bid_none"
        self.send("POST", f"/api/bids/{bid}/cancel")

    def look(self, random: Random) -> None:
        with self.lock:
            bid = random.choice(self.bids) if self.bids else "bid_none"
        answer = self.send("GET", f"/api/bids/{bid}")
        if answer is not None and answer.status_code == 200 and (job := answer.json()["job_id"]):
            with self.lock:
                self.jobs.append(job)

    def cancel_job(self, random: Random) -> None:
        self.look(random)
        with self.lock:
            job = random.choice(self.jobs) if self.jobs else "ftjob-none"
        self.send("POST", f"/api/jobs/{job}/cancel")

    def send(self, method: str, path: str, **more: Any) -> httpx.Response | None:
        """The answer; ``None`` where a process was killed under it."""
        try:
            with self.market.api() as api:
                answer = api.request(method, path, **more)
        except httpx.TransportError:
            return None
        assert answer.status_code in {
            *(200, 201, 202, 402, 403, 404, 409, 422, 429, 500, 502, 503)
        }, answer.text
        return answer


def recompute(market: Market) -> dict[str, Any]:
    """What is wrong, by check, and how many rows there are."""
    return json.loads(market.shell.run(_READ.format(queries=json.dumps(RECOMPUTED))))


def count_open(market: Market) -> int:
    script = (
        "from marketplace.auction.models import Bid;from marketplace.jobs.models import Job;"
        "print(Bid.objects.filter(status='pending').count()"
        " + Job.objects.filter(settled_at=None).count())"
    )
    return int(market.shell.run(script))


def test_the_books_of_a_random_economy_add_up_whatever_is_killed(market: Market) -> None:
    economy = Economy(market, seed=int(os.environ.get("ECONOMY_SEED", "28")))
    victims = ("web", "lane", "worker")
    kills = 0
    for start in range(0, OPERATIONS, KILL_EVERY):
        numbers = range(start, min(OPERATIONS, start + KILL_EVERY))
        with ThreadPoolExecutor(THREADS) as threads:
            acts = [threads.submit(economy.act, number) for number in numbers]
            victim = victims[kills % len(victims)]
            if market.house.stack.pid(victim):
                kill(market, victim)
                kills += 1
            for act in acts:
                act.result()
        found = recompute(market)
        rows = found.pop("rows")
        assert {name: wrong for name, wrong in found.items() if wrong} == {}
    for bid in economy.bids:
        answer = economy.send("GET", f"/api/bids/{bid}")
        if answer is not None and answer.status_code == 200 and (job := answer.json()["job_id"]):
            economy.send("POST", f"/api/jobs/{job}/cancel")
    until(lambda: count_open(market) == 0, within_s=600, what="every job is settled")
    found = recompute(market)
    rows = found.pop("rows")
    assert {name: wrong for name, wrong in found.items() if wrong} == {}
    market.shell.manage("ledger_check")
    market.shell.manage("auction_verify")
    print(f"\n{economy.done} operations {economy.kinds}, {kills} kills")
    print(f"bids, entries, postings: {rows}")
