"""The demo's express lane: open while the site stays up, with a seat paid for by the market."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

import httpx

from marketplace.embedded.demo.api_client import (
    DATASET,
    DemoFailed,
    api_client,
    follow_job,
    parse_answer,
    shorten,
    upload_dataset,
)
from marketplace.embedded.house import House

#: The longest SLO on sale; the bundled rows are tuned within a minute.
LONGEST_SLO_S = 180
#: Dollars a slot, many times what a seat costs there.
SEAT_LIMIT = "0.05"


def open_express_lane(
    running: House, seeded: dict[str, Any], *, say: Callable[[str], None]
) -> None:
    """Sell prompt tuning within an SLO from now on; safe to repeat."""
    words = running.manage(
        *("express_lane", seeded["zone"], "--buyer", seeded["house"]),
        *("--least-seats", "1", "--most-seats", "3"),
        *("--longest-slo-s", str(LONGEST_SLO_S), "--seat-limit", SEAT_LIMIT),
    )
    say(words.strip())


#: Rows of the bundled data set, and how long they are tuned for.
ROWS, TRAINING = 48, {"epochs": 2}
SEAT_WITHIN_S, LOOKUP_WITHIN_S = 120.0, 30.0


def run_express_sales(
    running: House, seeded: dict[str, Any], *, say: Callable[[str], None]
) -> None:
    """Tune a prompt within an SLO, and another that may begin with the first.

    A machine too slow for them says so; its site stays up.
    """
    try:
        _sell(running, seeded, say=say)
    except DemoFailed as failure:
        say(f"No prompt was tuned: {failure}")


def _sell(running: House, seeded: dict[str, Any], *, say: Callable[[str], None]) -> None:
    rows = DATASET.read_bytes().splitlines(keepends=True)[:ROWS]
    with api_client(running, seeded["api_key"]) as market:
        dataset = upload_dataset(market, seeded["zone"], content=b"".join(rows))
        work = {"zone": seeded["zone"], "dataset_id": dataset["id"], "training": TRAINING}
        for adapter in ({"looks_up": False}, {"looks_up": True}):
            asked = _ask_lane(market, work | {"adapter": adapter, "slo_s": LONGEST_SLO_S}, say=say)
            job = follow_job(running, market, asked["job_id"], say=say)
            if job["status"] != "succeeded":
                raise DemoFailed(f"The express job {job['id']} {job['status']}.")
        say(_describe_lookup(_wait_for_lookup(market, asked["id"])))


def _ask_lane(
    market: httpx.Client, body: dict[str, Any], *, say: Callable[[str], None]
) -> dict[str, Any]:
    """A certified request; until a seat is there the lane says no, and is asked again."""
    deadline = time.monotonic() + SEAT_WITHIN_S
    while True:
        began = time.monotonic()
        answer = market.post(
            "/api/express", json=body, headers={"Idempotency-Key": secrets.token_hex(16)}
        )
        took_ms = 1000 * (time.monotonic() - began)
        found = parse_answer(answer) if answer.is_success else {"status": "refused"}
        if found["status"] == "admitted":
            say(
                f"Express: {found['certified_slo_s']:g} s certified in {took_ms:.0f} ms "
                f"for ${shorten(found['price'])}, log position {found['position']}"
            )
            return found
        if time.monotonic() > deadline:
            raise DemoFailed(f"The express lane certified nothing: {answer.text}")
        time.sleep(2)


def _wait_for_lookup(market: httpx.Client, request_id: str) -> dict[str, Any] | None:
    """What the search for a known prompt found; it is noted a moment after the job."""
    deadline = time.monotonic() + LOOKUP_WITHIN_S
    while time.monotonic() < deadline:
        found = parse_answer(market.get(f"/api/express/{request_id}"))["lookup"]
        if found is not None:
            return found
        time.sleep(1)
    return None


def _describe_lookup(found: dict[str, Any] | None) -> str:
    if found is None:
        return "The second prompt began without a lookup: the bank has none for it yet"
    return (
        f"The second looked at {found['candidates']} prompts in {found['seconds']:.2f} s: loss "
        f"{found['own_loss']:.3f} to {found['loss']:.3f} before its first step"
    )
