"""The demo's sale of messy data: a vendor prepares them, and the job trains on the result."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
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
    shorten,
)
from marketplace.embedded.demo.first_sale import TRAINING, check_loss
from marketplace.embedded.house import House

DEADLINE_S = 20 * 60
WISH = {"kinds": ["automatic"], "mask_personal_data": True, "validation_share": 0.1}
#: The vendor is paid, and spare cells go back, a moment after its delivery.
CONCLUDED_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class MessySale:
    """What the demo's last line holds, as one JSON object."""

    bid_id: str
    job_id: str
    #: Dollars, exact, as text.
    price: str
    vendor: str
    vendor_price: str
    rows_in: int
    rows_out: int
    rows_held_out: int
    #: Dollars that went back for cells that the prepared rows do not need.
    refund: str
    #: Every change with its reason, one JSON object a line.
    report_path: str
    #: On held-out rows that were prepared too.
    valid_loss_before: float
    valid_loss_after: float
    adapter_path: str


def run_messy_sale(
    running: House, seeded: dict[str, Any], *, say: Callable[[str], None]
) -> MessySale:
    """Bid for a job on messy data with their preparation, and follow both.

    Raises
    ------
    DemoFailed
        When the bid is refused, the job does not succeed, or training did not help.
    """
    with api_client(running, seeded["api_key"]) as market:
        bid = place_patient_bid(
            market,
            seeded["zone"],
            name="messy-support-tone",
            # Fewer rows are left of it, so that they are read more often.
            training=TRAINING | {"epochs": 3},
            within_s=DEADLINE_S,
            preparation=WISH,
            say=say,
        )
        job = follow_job(running, market, bid["job_id"], say=say)
        made = _follow_preparation(market, job["id"])
        path = fetch_adapter(market, job["id"], running.data_dir / "adapters")
        report = _fetch_changes(market, job["id"], running.data_dir / "reports")
    say(
        f"{made['vendor']} got ${shorten(made['vendor_price'])}: {made['rows_in']} rows in, "
        f"{made['rows_out']} out, {made['rows_held_out']} held out. Every change: {report}"
    )
    check_loss(job, path, say=say)
    return MessySale(
        bid_id=bid["id"],
        job_id=job["id"],
        price=bid["decision"]["payment"],
        vendor=made["vendor"],
        vendor_price=made["vendor_price"],
        rows_in=made["rows_in"],
        rows_out=made["rows_out"],
        rows_held_out=made["rows_held_out"],
        refund=made["refund"],
        report_path=str(report),
        valid_loss_before=job["progress"]["valid_loss_before"],
        valid_loss_after=job["progress"]["valid_loss"],
        adapter_path=str(path),
    )


def _follow_preparation(market: httpx.Client, job_id: str) -> dict[str, Any]:
    """The preparation once what follows from it is done."""
    deadline = time.monotonic() + CONCLUDED_WITHIN_S
    while True:
        made = parse_answer(market.get(f"/api/jobs/{job_id}/preparation"))
        if made["concluded_at"] is not None:
            return made
        if time.monotonic() > deadline:
            raise DemoFailed(f"The preparation of {job_id} is still {made['status']}.")
        time.sleep(0.5)


def _fetch_changes(market: httpx.Client, job_id: str, directory: Path) -> Path:
    answer = market.get(f"/api/jobs/{job_id}/preparation/changes")
    if answer.status_code != 200:
        raise DemoFailed(f"The list of changes could not be fetched: {answer.text}")
    directory.mkdir(parents=True, exist_ok=True)
    path = (directory / f"{job_id}-changes.jsonl").resolve()
    path.write_bytes(answer.content)
    return path
