"""The demo's first sale: a bid over the API becomes an adapter on disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marketplace.embedded.demo.api_client import (
    DemoFailed,
    api_client,
    fetch_adapter,
    follow_job,
    parse_answer,
    place_patient_bid,
)
from marketplace.embedded.house import House

#: A small model learns at a higher rate than those the default is made for.
TRAINING = {"epochs": 2, "learning_rate": 2e-3}
DEADLINE_S = 25 * 60


@dataclass(frozen=True, slots=True)
class Sale:
    """What the demo's last line holds, as one JSON object."""

    bid_id: str
    job_id: str
    #: Dollars, exact, as text.
    price: str
    #: From the bid to the adapter on this disk.
    seconds: float
    first_train_loss: float
    last_train_loss: float
    valid_loss_before: float
    valid_loss_after: float
    adapter_path: str
    #: What the model writes on held-out prompts, before and after.
    samples: list[dict[str, str]]


def run_first_sale(
    running: House,
    seeded: dict[str, Any],
    *,
    meanwhile: Callable[[], None] = lambda: None,
    say: Callable[[str], None],
) -> Sale:
    """Place a bid over the API, follow the job and fetch the adapter.

    Parameters
    ----------
    meanwhile
        Called once the bid is admitted, before its job ends.

    Raises
    ------
    DemoFailed
        When the bid is refused, the job does not succeed, or training did not help.
    """
    with api_client(running, seeded["api_key"]) as market:
        started = time.monotonic()
        bid = place_patient_bid(
            market,
            seeded["zone"],
            name="support-tone",
            training=TRAINING,
            within_s=DEADLINE_S,
            say=say,
        )
        meanwhile()
        job = follow_job(running, market, bid["job_id"], say=say)
        samples = parse_answer(market.get(f"/api/jobs/{job['id']}/samples"))["data"]
        path = fetch_adapter(market, job["id"], running.data_dir / "adapters")
        seconds = time.monotonic() - started
    sale = Sale(
        bid_id=bid["id"],
        job_id=job["id"],
        price=bid["decision"]["payment"],
        seconds=round(seconds, 1),
        first_train_loss=job["progress"]["first_train_loss"],
        last_train_loss=job["progress"]["train_loss"],
        valid_loss_before=job["progress"]["valid_loss_before"],
        valid_loss_after=job["progress"]["valid_loss"],
        adapter_path=str(path),
        samples=samples,
    )
    check_loss(job, path, say=say)
    for sample in samples:
        for name, text in sample.items():
            say(f"{name:>10}: {_keep_printable(text)}")
    return sale


def _keep_printable(text: str) -> str:
    """A model's words for a terminal: no character that could steer it."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def check_loss(job: dict[str, Any], path: Path, *, say: Callable[[str], None]) -> None:
    """Say what training did to the validation loss.

    Raises
    ------
    DemoFailed
        It did not help.
    """
    before, after = job["progress"]["valid_loss_before"], job["progress"]["valid_loss"]
    if not after < before:
        raise DemoFailed(
            f"Training did not help: validation loss went from {before:.3f} to {after:.3f}."
        )
    say(f"Validation loss {before:.3f} before, {after:.3f} after. Adapter: {path}")
