"""The demo's end: the books are recomputed, and what owners paid is found again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx

from marketplace.embedded.demo.api_client import DemoFailed, api_client, parse_answer
from marketplace.embedded.house import House

SETTLED_WITHIN_S = 30.0
#: Of a job; its settlement is the last or near it.
LATEST_EVENTS = 10


def check_books(
    running: House, *, jobs: Sequence[str], seeded: dict[str, Any], say: Callable[[str], None]
) -> dict[str, int]:
    """Wait until the jobs are settled, check the ledger, and say where the node asks went.

    Returns
    -------
    dict
        Micro-dollars of all jobs that have ended: ``paid``, ``earned``, ``refunded``, ``added``.

    Raises
    ------
    DemoFailed
        A job is not settled in time, or the parts do not add up.
    ServiceFailed
        The books do not balance.
    """
    _wait_until_settled(running, jobs, seeded)
    check = json.loads(running.manage("ledger_check", "--whole", "--json"))
    asks = check["shared_asks"]
    paid, earned = asks["asks_micros"], asks["earned_micros"]
    refunded, added = asks["returned_micros"], asks["borne_micros"]
    if paid + added != earned + refunded + asks["kept_micros"] or paid == 0:
        raise DemoFailed(f"What owners paid for asks is not what came of it: {asks}")
    house = f" + ${added / 1e6:.6f} added by the house" if added else ""
    say(
        f"Asks paid ${paid / 1e6:.6f}{house} = executors' earnings ${earned / 1e6:.6f} + refunds "
        f"${refunded / 1e6:.6f}; {check['entries']} entries in the books, and they balance"
    )
    return {"paid": paid, "earned": earned, "refunded": refunded, "added": added}


def _wait_until_settled(running: House, jobs: Sequence[str], seeded: dict[str, Any]) -> None:
    deadline = time.monotonic() + SETTLED_WITHIN_S
    with api_client(running, seeded["api_key"]) as market:
        for job_id in jobs:
            while not _is_settled(market, job_id):
                if time.monotonic() > deadline:
                    raise DemoFailed(f"Job {job_id} has ended and is not settled.")
                time.sleep(0.2)


def _is_settled(market: httpx.Client, job_id: str) -> bool:
    last = max(0, parse_answer(market.get(f"/api/jobs/{job_id}"))["seq"] - LATEST_EVENTS)
    events = parse_answer(market.get(f"/api/jobs/{job_id}/events", params={"after": last}))
    return any(event["kind"] == "settled" for event in events["data"])
