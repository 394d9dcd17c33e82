"""The demo's second sale: a job that starts at once on serverless and moves when that repays.

The provider takes its nodes off sale for a while, so the bid wins cells that begin later. The
market starts the job at once on a serverless machine of its own. From the job's speed it computes
that a cheaper worker repays the move. It rents one and moves the job there when the worker is
ready.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from marketplace.embedded.demo.api_client import (
    DemoFailed,
    api_client,
    fetch_adapter,
    follow_job,
    parse_answer,
    place_patient_bid,
)
from marketplace.embedded.demo.first_sale import TRAINING, Sale, check_loss
from marketplace.embedded.demo.opening import SLOT_S, DemoNode
from marketplace.embedded.house import House

#: Seconds the job should train for, so that moving repays however fast this machine is.
TRAINS_S = 26.0
#: Its deadline, inside the horizon of half an hour, and what of that its cells may fill.
DEADLINE_S = 27 * 60
FILLS = 0.8
#: Seconds for which the provider's nodes are off sale, longer than the move takes.
AWAY_S = 300
#: Pauses of the small model; delay is worth nothing here, since the job is short; and it does not
#: begin on the worker that it is to be seen to move to.
TIERS = (
    *("--checkpoint-s", "1", "--restore-s", "2", "--probe-s", "3", "--delay-usd-per-h", "0"),
    "--serverless-first",
)
#: A job of so many epochs moves on any machine.
EPOCHS_MAX = 60
#: The move is printed once its first step has been reported.
TOLD_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Move:
    """How a job moved."""

    job_id: str
    #: Offers, with their prices in dollars an hour.
    origin: str
    origin_usd_per_h: float
    worker: str
    worker_usd_per_h: float
    step: int
    total_steps: int
    steps_lost: int
    #: Dollars, about: what staying would have cost more.
    saved_usd: float
    #: From the last step on the one to the first on the other.
    pause_s: float
    #: From the bid to the first lease, to the move, and to the adapter on this disk.
    started_s: float
    moved_s: float
    seconds: float
    valid_loss_before: float
    valid_loss_after: float
    adapter_path: str


def run_moving_sale(
    running: House,
    seeded: dict[str, Any],
    first: Sale,
    *,
    nodes: Sequence[DemoNode],
    say: Callable[[str], None],
) -> Move:
    """Sell a longer job and follow it from serverless to the worker it moves to.

    Raises
    ------
    DemoFailed
        The job did not succeed, or did not move.
    """
    zone, move_event = seeded["zone"], None
    names = [node.name for node in nodes]
    _rent_machines(running, zone, names)
    say(
        f"The provider is off sale for {AWAY_S // 60} minutes; "
        "the house now rents machines of its own"
    )
    try:
        with api_client(running, seeded["api_key"]) as market:
            epochs = _choose_epochs(market, first)
            while move_event is None:
                started = time.monotonic()
                bid = place_patient_bid(
                    market,
                    zone,
                    name="moves",
                    training=TRAINING | {"epochs": epochs},
                    within_s=DEADLINE_S,
                    say=say,
                )
                job = follow_job(running, market, bid["job_id"], say=say)
                path = fetch_adapter(market, job["id"], running.data_dir / "adapters")
                seconds = time.monotonic() - started
                move_event = _find_move_event(market, job["id"], must=epochs >= EPOCHS_MAX)
                if move_event is None:
                    # This machine is much faster than the first sale let think.
                    say("It ended on serverless before its worker was up; once more, longer")
                    epochs = min(EPOCHS_MAX, 3 * epochs)
                    running.manage("machines_end")
                    _rent_machines(running, zone, names)
    finally:
        running.manage("node_available", *names)
    found = _describe_move(bid, job, move_event, path=path, seconds=seconds)
    say(
        f"Moved from {found.origin} (${found.origin_usd_per_h:.2f} an hour) to {found.worker} "
        f"(${found.worker_usd_per_h:.2f}) {found.moved_s:.0f} s after the bid, at step "
        f"{found.step} of {found.total_steps}: steps lost {found.steps_lost}, paused "
        f"{found.pause_s:.1f} s, about ${found.saved_usd:.4f} saved"
    )
    check_loss(job, path, say=say)
    return found


def _describe_move(
    bid: dict[str, Any],
    job: dict[str, Any],
    move_event: dict[str, Any],
    *,
    path: Path,
    seconds: float,
) -> Move:
    move = move_event["data"]["move"]
    return Move(
        job_id=job["id"],
        origin=move["from"],
        origin_usd_per_h=move["from_price_micros_per_h"] / 1e6,
        worker=move["to"],
        worker_usd_per_h=move["to_price_micros_per_h"] / 1e6,
        step=move["step"],
        total_steps=job["progress"]["total_steps"],
        steps_lost=move["steps_lost"],
        saved_usd=move["saved_micros"] / 1e6,
        pause_s=round(move["pause_s"] or 0.0, 1),
        started_s=_seconds_between(bid["created_at"], move_event["started_at"]),
        moved_s=_seconds_between(bid["created_at"], move_event["moved_at"]),
        seconds=round(seconds, 1),
        valid_loss_before=job["progress"]["valid_loss_before"],
        valid_loss_after=job["progress"]["valid_loss"],
        adapter_path=str(path),
    )


def _rent_machines(running: House, zone: str, names: Sequence[str]) -> None:
    """The market rents machines, and the provider's nodes are away."""
    running.manage("tiers_set", zone, "--serverless", "1", "--serverful", "1", *TIERS)
    running.manage("node_available", *names, "--in-s", str(AWAY_S))


def _choose_epochs(market: httpx.Client, first: Sale) -> int:
    """As many epochs as train for long enough, and still fit before the deadline as sold."""
    job = parse_answer(market.get(f"/api/jobs/{first.job_id}"))
    plan = parse_answer(market.get(f"/api/bids/{first.bid_id}"))["decision"]["plan"]
    done, epochs = job["progress"]["samples_done"], TRAINING["epochs"]
    wanted = math.ceil(TRAINS_S * job["progress"]["samples_per_s"] * epochs / done)
    most = int(FILLS * (DEADLINE_S - AWAY_S) / SLOT_S * epochs / len(plan))
    return max(1, min(wanted, most))


def _find_move_event(market: httpx.Client, job_id: str, *, must: bool) -> dict[str, Any] | None:
    """The event of the move, with when the job first started and when it moved.

    ``None`` where there was none, unless there ``must`` have been.
    """
    deadline = time.monotonic() + TOLD_WITHIN_S
    while True:
        events = parse_answer(market.get(f"/api/jobs/{job_id}/events", params={"limit": 100}))[
            "data"
        ]
        for event in events:
            if "move" in event["data"]:
                starts = [one["at"] for one in events if one["kind"] == "started"]
                return event | {"started_at": starts[0], "moved_at": starts[-1]}
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    if not must:
        return None
    words = "\n".join(f"  {event['message']}" for event in events)
    raise DemoFailed(f"Job {job_id} did not move. What happened to it:\n{words}")


def _seconds_between(begun_at: str, at: str) -> float:
    seconds = (datetime.fromisoformat(at) - datetime.fromisoformat(begun_at)).total_seconds()
    return round(seconds, 1)
