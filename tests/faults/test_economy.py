"""A random economy over HTTP while processes are killed, its books added up again in SQL.

Programs of the owner bid, sweep, look, cancel and repeat themselves. What came of it is computed
again from raw rows, by queries that share no code with the market.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections import Counter
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
#: Operations between two kills.
KILL_EVERY = 125
VICTIMS = ("web", "lane", "worker")
ANSWERED_WITHIN_S = 240.0
PRICES = ("0.000001", "0.01", "0.05", "0.50", "2")
#: A client that gets one of these asks again with the same key.
AGAIN = {429, 500, 502, 503}
ANSWERS = {200, 201, 202, 400, 402, 403, 404, 409, 422}

#: Each finds nothing where the books are right.
RECOMPUTED = {
    "entries sum to zero": """
        SELECT entry_id FROM payments_posting GROUP BY entry_id HAVING sum(amount_micros) <> 0""",
    "balances are their postings": """
        SELECT a.id FROM payments_ledgeraccount a LEFT JOIN payments_posting p
        ON p.account_id = a.id WHERE a.balance_micros IS NOT NULL
        GROUP BY a.id HAVING a.balance_micros <> coalesce(sum(p.amount_micros), 0)""",
    "no account of an organisation was below zero at any posting": """
        SELECT id FROM (SELECT a.id, sum(p.amount_micros) OVER (PARTITION BY a.id ORDER BY p.id)
        AS after FROM payments_posting p JOIN payments_ledgeraccount a ON a.id = p.account_id
        WHERE a.organisation_id IS NOT NULL) AS run WHERE after < 0""",
    "held money is that of open holds": """
        SELECT a.organisation_id FROM payments_ledgeraccount a WHERE a.kind = 'wallet_held'
        AND a.balance_micros <> coalesce((SELECT sum(h.amount_micros) FROM payments_hold h
        WHERE h.organisation_id = a.organisation_id AND h.status = 'held'), 0)""",
    "a hold is charged, released or open, once": """
        SELECT h.reference FROM payments_hold h LEFT JOIN payments_entry e
        ON e.reference = h.reference AND e.kind IN ('charge', 'release')
        GROUP BY h.reference, h.status HAVING count(e.id) <> (h.status <> 'held')::int""",
    "a hold says what its postings say": """
        SELECT h.reference FROM payments_hold h LEFT JOIN (
            SELECT e.hold_reference AS reference,
            sum(p.amount_micros) FILTER (WHERE e.kind = 'charge' AND a.kind = 'clearing') AS paid,
            sum(p.amount_micros) FILTER (WHERE e.kind = 'refund'
                AND a.kind IN ('clearing', 'refunds', 'congestion')) AS back
            FROM payments_entry e JOIN payments_posting p ON p.entry_id = e.id
            JOIN payments_ledgeraccount a ON a.id = p.account_id GROUP BY 1) AS said
        ON said.reference = h.reference
        WHERE h.charged_micros <> coalesce(said.paid, 0)
        OR h.refunded_micros <> -coalesce(said.back, 0)""",
    "a winner pays what was decided": """
        SELECT b.id FROM auction_bid b JOIN payments_hold h ON h.reference = 'bid:' || b.id
        WHERE h.charged_micros <> coalesce(b.payment_micros, 0)""",
    "a bid that lost pays nothing": """
        SELECT b.id FROM auction_bid b JOIN payments_hold h ON h.reference = 'bid:' || b.id
        WHERE b.status IN ('refused', 'cancelled') AND h.status <> 'released'""",
    "a payment that was shared out left nothing in clearing": """
        SELECT h.reference FROM payments_hold h JOIN payments_entry e
        ON e.hold_reference = h.reference JOIN payments_posting p ON p.entry_id = e.id
        JOIN payments_ledgeraccount a ON a.id = p.account_id
        WHERE a.kind = 'clearing' AND h.distributed_at IS NOT NULL
        GROUP BY h.reference HAVING sum(p.amount_micros) <> 0""",
    "providers got the asks of what was done": """
        SELECT d.hold_id FROM payments_distribution d JOIN payments_hold h ON h.id = d.hold_id
        LEFT JOIN payments_earning e ON e.reference = h.reference AND e.kind = 'provider'
        GROUP BY d.hold_id, d.asks_micros, d.borne_pay_micros, d.asks_returned_micros,
        d.asks_kept_micros HAVING coalesce(sum(e.amount_micros), 0) <> d.asks_micros
        + d.borne_pay_micros - d.asks_returned_micros - d.asks_kept_micros""",
    "pending pay is that of earnings": """
        SELECT a.organisation_id FROM payments_ledgeraccount a WHERE a.kind = 'earnings_pending'
        AND a.balance_micros <> coalesce((SELECT sum(e.amount_micros) FROM payments_earning e
        WHERE e.organisation_id = a.organisation_id AND e.matured_at IS NULL
        AND e.returned_at IS NULL), 0)""",
    "no key made two bids": """
        SELECT idempotency_key FROM auction_bid WHERE idempotency_key IS NOT NULL
        GROUP BY organisation_id, idempotency_key HAVING count(*) > 1""",
    "no bid has two jobs": """
        SELECT bid_id FROM jobs_job GROUP BY bid_id HAVING count(*) > 1""",
}
COUNTED = """
    SELECT (SELECT count(*) FROM auction_bid), (SELECT count(*) FROM jobs_job),
    (SELECT count(*) FROM payments_entry), (SELECT count(*) FROM payments_posting)"""
RUNNING = "SELECT id FROM jobs_job WHERE finished_at IS NULL"
OPEN = """
    SELECT (SELECT count(*) FROM auction_bid WHERE status = 'pending')
    + (SELECT count(*) FROM jobs_job WHERE settled_at IS NULL)"""
#: What the house gained and lost: all of its accounts, but those of money that is others'.
GAINED = """
    SELECT a.kind, sum(p.amount_micros) FROM payments_posting p JOIN payments_ledgeraccount a
    ON a.id = p.account_id WHERE a.organisation_id IS NULL AND a.kind NOT IN ('clearing',
    'gateway', 'authorised', 'card_refunds', 'payouts', 'suppliers', 'congestion', 'taxes', 'bank')
    GROUP BY a.kind"""
PROFITS = """
import json
from marketplace.tiers.profits import list_profit_months, load_profit_report
print(json.dumps([
    [report.name, line.text, line.total_micros]
    for report in (load_profit_report(month=month) for month in list_profit_months())
    for line in report.lines
]))
"""
_READ = """
import json
from django.db import connection
found = {{}}
with connection.cursor() as cursor:
    for name, query in json.loads({queries!r}).items():
        cursor.execute(query)
        found[name] = cursor.fetchmany(500)
print(json.dumps(found, default=str))
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
        #: Of operations, by what was done and how it was answered; requests that were cut off.
        self.answers: Counter[tuple[str, int]] = Counter()
        self.cut_off = 0

    def act(self, _: int) -> None:
        with self.lock:
            kinds = (self.bid, self.sweep, self.cancel_bid, self.cancel_job, self.look)
            act = self.random.choices(kinds, (55, 5, 10, 20, 10))[0]
            random = Random(self.random.random())
        status = act(random)
        with self.lock:
            self.answers[act.__name__, status] += 1

    def bid(self, random: Random) -> int:
        asked = self._ask(random) | {"training": {"epochs": random.choice((1, 2))}}
        key = secrets.token_hex(8)
        made = [self._place("/api/bids", asked, key) for _ in range(random.choice((1, 1, 2)))]
        assert len({bid_id for _, bid_id in made} - {""}) <= 1, "one key, one bid"
        return made[0][0]

    def sweep(self, random: Random) -> int:
        asked = self._ask(random) | {
            "sweep": {"training.seed": random.sample(range(100), 2)},
            "all_or_none": random.random() < 0.5,
        }
        return self._place("/api/bundles", asked, secrets.token_hex(8))[0]

    def _ask(self, random: Random) -> dict[str, Any]:
        deadline = datetime.now(UTC) + timedelta(minutes=random.randint(5, 25))
        return {
            "zone": self.market.zone,
            "dataset_id": self.dataset_id,
            "name": "economy",
            "deadline": deadline.isoformat(),
            "price": random.choice(PRICES),
        }

    def _place(self, path: str, asked: dict[str, Any], key: str) -> tuple[int, str]:
        answer = self.send("POST", path, json=asked, headers={"Idempotency-Key": key})
        shown = answer.json()
        shown = shown.get("bid") or shown.get("bundle") or shown
        with self.lock:
            self.bids += [bid["id"] for bid in shown.get("bids", [shown]) if "id" in bid]
        return answer.status_code, shown.get("id", "")

    def cancel_bid(self, random: Random) -> int:
        return self.send("POST", f"/api/bids/{self._pick(self.bids, random)}/cancel").status_code

    def look(self, random: Random) -> int:
        answer = self.send("GET", f"/api/bids/{self._pick(self.bids, random)}")
        if answer.status_code == 200 and (job := answer.json()["job_id"]):
            with self.lock:
                self.jobs.append(job)
        return answer.status_code

    def cancel_job(self, random: Random) -> int:
        self.look(random)
        return self.send("POST", f"/api/jobs/{self._pick(self.jobs, random)}/cancel").status_code

    def _pick(self, ids: list[str], random: Random) -> str:
        with self.lock:
            return random.choice(ids) if ids else "none"

    def send(self, method: str, path: str, **more: Any) -> httpx.Response:
        """The answer, as a careful client gets it: what was cut off is sent again."""
        ends_at = time.monotonic() + ANSWERED_WITHIN_S
        while True:
            try:
                with self.market.api() as api:
                    answer = api.request(method, path, **more)
                if answer.status_code not in AGAIN:
                    assert answer.status_code in ANSWERS, answer.text
                    return answer
            except httpx.TransportError:
                with self.lock:
                    self.cut_off += 1
            assert time.monotonic() < ends_at, f"no answer to {method} {path}"
            time.sleep(0.5)


def read(market: Market, queries: dict[str, str]) -> dict[str, list[list[Any]]]:
    """The first rows of each query."""
    return json.loads(market.shell.run(_READ.format(queries=json.dumps(queries))))


def find_wrong(market: Market) -> dict[str, list[list[Any]]]:
    return {name: rows for name, rows in read(market, RECOMPUTED).items() if rows}


def test_the_books_of_a_random_economy_add_up_whatever_is_killed(market: Market) -> None:
    economy = Economy(market, seed=int(os.environ.get("ECONOMY_SEED", "28")))
    started, kills = time.monotonic(), 0
    for start in range(0, OPERATIONS, KILL_EVERY):
        with ThreadPoolExecutor(THREADS) as threads:
            numbers = range(start, min(OPERATIONS, start + KILL_EVERY))
            acts = [threads.submit(economy.act, number) for number in numbers]
            victim = VICTIMS[kills % len(VICTIMS)]
            if market.house.stack.pid(victim):
                kill(market, victim)
                kills += 1
            for act in acts:
                act.result()
        assert find_wrong(market) == {}
    took_s = time.monotonic() - started
    for [job_id] in read(market, {"running": RUNNING})["running"]:
        economy.send("POST", f"/api/jobs/{job_id}/cancel")
    until(
        lambda: read(market, {"open": OPEN})["open"] == [[0]],
        within_s=900,
        what="every job is settled",
    )
    assert find_wrong(market) == {}
    market.shell.manage("ledger_check", "--whole")
    market.shell.manage("auction_verify")
    [rows] = read(market, {"counted": COUNTED})["counted"]
    profits = json.loads(market.shell.run(PROFITS))
    gained = read(market, {"gained": GAINED})["gained"]
    assert sum(total for *_, total in profits) == sum(int(total) for _, total in gained)
    print(
        f"\n{sum(economy.answers.values())} operations in {took_s:.0f} s, {kills} kills,"
        f" {economy.cut_off} requests cut off; bids, jobs, entries, postings: {rows};"
        f" answers: {sorted(economy.answers.items())}; profits in micro-dollars: {profits}"
    )
