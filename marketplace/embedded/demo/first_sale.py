"""One sale, told as it happens: a bid over the API becomes an adapter on disk."""

from __future__ import annotations

import io
import json
import secrets
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from tqdm import tqdm

from marketplace.embedded.house import ROOT, House
from marketplace.embedded.servers import ServiceFailed, write_private

DATASET = ROOT / "workers" / "models" / "datasets" / "support_tone.jsonl"
#: A small model learns at a higher rate than those the default is made for.
TRAINING = {"epochs": 3, "learning_rate": 2e-3}
#: What the job is worth to the demo's owner, as a multiple of the posted price.
WORTH = 2
#: Seconds: a slot of the demo's zone, short enough to watch several pass.
SLOT_S = 5
DEADLINE_S = 15 * 60
NODE_WITHIN_S = 180.0
JOB_WITHIN_S = 20 * 60.0
ENDED = ("succeeded", "failed", "cancelled")


class DemoFailed(RuntimeError):
    """The story did not end as it should; the text says where and what to look at."""


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


def open_market(running: House, *, say: Callable[[str], None]) -> dict[str, Any]:
    """Seed the small market and bring its one node online; safe to repeat."""
    say("Seeding a small market")
    node_dir = running.data_dir / "node"
    joined_to = node_dir / "joined-to"
    # A node keeps the addresses of market and broker; where one changed it has to join again.
    addresses = f"{running.url}\n{running.environment.get('REDIS_URL', '')}"
    known = joined_to.exists() and joined_to.read_text() == addresses
    seeded = json.loads(
        running.manage(
            "seed_demo",
            *("--password", _ensure_password(running.data_dir / "password")),
            *("--slot-s", str(SLOT_S), "--join-tokens", "0" if known else "1", "--json"),
        )
    )
    if not known:
        say("A node on this machine joins: self-test, a short training run, registration")
        running.run(
            *(sys.executable, "-m", "workers", "join", "--quick"),
            *("--url", running.url, "--name", "local-cpu"),
            *("--token", seeded["join_tokens"][0], "--state-dir", str(node_dir)),
            *("--measured", str(running.data_dir / "measured.json")),
        )
        write_private(joined_to, addresses)
    say("Starting the node")
    running.stack.start("node")
    _wait_for_node(running, seeded)
    return seeded


def sell(running: House, seeded: dict[str, Any], *, say: Callable[[str], None]) -> Sale:
    """Place a bid over the API, follow the job and fetch the adapter.

    Raises
    ------
    DemoFailed
        When the bid is refused, the job does not succeed, or training did not help.
    """
    with api_client(running, seeded) as market:
        started = time.monotonic()
        bid = place_bid(
            market,
            seeded["zone"],
            name="support-tone",
            training=TRAINING,
            within_s=DEADLINE_S,
            say=say,
        )
        job = follow_job(running, market, bid["job_id"], say=say)
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
    )
    check_loss(job, path, say=say)
    return sale


def api_client(running: House, seeded: dict[str, Any]) -> httpx.Client:
    """The demo's owner at the API."""
    headers = {"Authorization": f"Bearer {seeded['api_key']}"}
    return httpx.Client(base_url=running.url, headers=headers, timeout=60)


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


def place_bid(
    market: httpx.Client,
    zone: str,
    *,
    name: str,
    training: dict[str, Any],
    within_s: float,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Upload the data set, ask for the price, and bid twice that; the admitted bid."""
    with DATASET.open("rb") as file:
        dataset = parse_answer(
            market.post("/api/datasets", data={"zone": zone}, files={"file": (DATASET.name, file)})
        )
    say(f"Data set {dataset['name']}: {dataset['rows']} rows, {dataset['tokens']} tokens")
    deadline = (datetime.now(UTC) + timedelta(seconds=within_s)).isoformat()
    work = {"zone": zone, "dataset_id": dataset["id"], "training": training, "deadline": deadline}
    quote = parse_answer(market.post("/api/quotes", json=work))
    if quote["posted_price"] is None:
        raise DemoFailed(f"No quote: {quote['reason_text']}")
    limit = f"{WORTH * float(quote['posted_price']):.6f}"
    say(f"Posted price ${_shorten(quote['posted_price'])}; bidding ${_shorten(limit)}")
    bid = parse_answer(
        market.post(
            "/api/bids",
            json=work | {"name": name, "price": limit},
            headers={"Idempotency-Key": secrets.token_hex(16)},
        )
    )
    while bid["status"] == "pending":
        time.sleep(0.2)
        bid = parse_answer(market.get(f"/api/bids/{bid['id']}"))
    if bid["status"] != "admitted":
        raise DemoFailed(f"The bid was {bid['status']}: {bid['decision']['reason_text']}")
    plan = bid["decision"]["plan"]
    say(
        f"Admitted: pays ${_shorten(bid['decision']['payment'])}, not the "
        f"${_shorten(bid['price'])} bid; {len(plan)} cells planned, done by "
        f"{bid['decision']['finish_planned_at']}"
    )
    return bid


def follow_job(
    running: House, market: httpx.Client, job_id: str, *, say: Callable[[str], None]
) -> dict[str, Any]:
    """Draw a progress bar until the job has ended; on a terminal that is none, say what changes."""
    deadline = time.monotonic() + JOB_WITHIN_S
    on_terminal = sys.stderr.isatty()
    seen = 0
    with tqdm(
        total=100,
        bar_format="          {bar:40} {percentage:3.0f} %  {desc}",
        disable=not on_terminal,
    ) as bar:
        while True:
            running.stack.check()
            job = parse_answer(market.get(f"/api/jobs/{job_id}"))
            progress = job["progress"]
            words = ""
            if progress["train_loss"] is not None:
                words = (
                    f"step {progress['step']} of {progress['total_steps']}, "
                    f"loss {progress['train_loss']:.3f}"
                )
                bar.n = 100 * progress["step"] / progress["total_steps"]
            bar.set_description_str(f"{job['status']}  {words}")
            if not on_terminal:
                events = parse_answer(
                    market.get(f"/api/jobs/{job_id}/events", params={"after": seen})
                )
                for event in events["data"]:
                    seen = event["seq"]
                    say(f"{event['message']} {words}")
            if job["status"] in ENDED:
                break
            if time.monotonic() > deadline:
                raise DemoFailed(
                    f"Job {job_id} is still {job['status']} after {JOB_WITHIN_S / 60:.0f} minutes; "
                    f"see {running.stack.log_dir}/node.log"
                )
            time.sleep(0.5)
    if job["status"] != "succeeded":
        raise DemoFailed(f"Job {job_id} {job['status']}: {job['failure_reason']}")
    return job


def fetch_adapter(market: httpx.Client, job_id: str, directory: Path) -> Path:
    answer = market.get(f"/api/jobs/{job_id}/adapter")
    if answer.status_code != 200:
        raise DemoFailed(f"The adapter could not be fetched: {answer.text}")
    path = (directory / job_id).resolve()
    path.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        archive.extractall(path)
    return path


def _wait_for_node(running: House, seeded: dict[str, Any]) -> None:
    """Wait until the zone has a node on sale."""
    deadline = time.monotonic() + NODE_WITHIN_S
    while True:
        running.stack.check()
        answer = httpx.get(
            f"{running.url}/api/market/{seeded['zone']}",
            headers={"Authorization": f"Bearer {seeded['api_key']}"},
            timeout=30,
        )
        if answer.status_code == 200 and any(any(n["on_sale"]) for n in answer.json()["nodes"]):
            return
        if time.monotonic() > deadline:
            raise ServiceFailed(running.stack.failure("node"))
        time.sleep(0.2)


def parse_answer(response: httpx.Response) -> dict[str, Any]:
    if response.status_code >= 400:
        try:
            body = response.json()
            words = body.get("detail") or response.text
        except ValueError:
            words = response.text
        raise DemoFailed(f"{response.request.method} {response.request.url.path}: {words}")
    return response.json()


def _ensure_password(path: Path) -> str:
    """One password for the demo's three people, made on the first start."""
    if not path.exists():
        write_private(path, secrets.token_urlsafe(9))
    return path.read_text()


def _shorten(amount: str) -> str:
    return amount.rstrip("0").rstrip(".") if "." in amount else amount
