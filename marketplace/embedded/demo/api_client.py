"""What the demo does over the API, as a customer's program would."""

from __future__ import annotations

import io
import secrets
import sys
import time
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from tqdm import tqdm

from marketplace.embedded.house import ROOT, House

DATASET = ROOT / "workers" / "models" / "datasets" / "support_tone.jsonl"
MESSY = DATASET.with_name("support_tone_messy.jsonl")
#: What a job is worth to the demo's customers, as a multiple of the posted price.
WORTH = 2
#: Bids that follow one that lost because the price rose after its quote.
BIDS_MORE = 3
#: How long a sale waits for room, how often it asks, and by how much its deadline grows each time.
ROOM_WITHIN_S = 15 * 60.0
ROOM_EVERY_S = 5.0
LATER = 1.2
#: The demo's zone sells half an hour.
LATEST_S = 28 * 60.0
JOB_WITHIN_S = 20 * 60.0
READ_WITHIN_S = 180.0
ENDED = ("succeeded", "failed", "cancelled", "paused")


class DemoFailed(RuntimeError):
    """The story did not end as it should; the text says where and what to look at."""


def api_client(running: House, api_key: str) -> httpx.Client:
    """A customer at the API; for the demo's owner, ``seeded["api_key"]``."""
    headers = {"Authorization": f"Bearer {api_key}"}
    return httpx.Client(base_url=running.url, headers=headers, timeout=60)


def place_bid(
    market: httpx.Client,
    zone: str,
    *,
    name: str,
    training: dict[str, Any],
    within_s: float,
    content: bytes | None = None,
    preparation: dict[str, Any] | None = None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Upload the data set, ask for the price, and bid twice that; the admitted bid.

    A busy machine measures how slow it is meanwhile: the bid is then repeated at the new price.

    Raises
    ------
    DemoFailed
        The price rose again and again, or there is no room before the deadline.
    """
    work = _build_work(market, zone, training, content, preparation, say=say)
    bid, problem = try_to_buy(market, work, name=name, within_s=within_s, say=say)
    if bid is None:
        raise DemoFailed(problem)
    return _announce(bid, say=say)


#: The members of a wish that change rows, and how long a plan of them may take.
PLANNED = ("roles", "drop_duplicates", "mask_personal_data", "phone_regions", "languages")
PLAN_WITHIN_S = 180.0


def place_patient_bid(
    market: httpx.Client,
    zone: str,
    *,
    name: str,
    training: dict[str, Any],
    within_s: float,
    content: bytes | None = None,
    preparation: dict[str, Any] | None = None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Do as ``place_bid``, and wait for room where there is none yet.

    There may be none after a restart, until the nodes are back and jobs of an earlier run have
    ended. Each time the sale asks for a later deadline.

    Raises
    ------
    DemoFailed
        The price rose again and again, or there was no room within ``ROOM_WITHIN_S``.
    """
    work = _build_work(market, zone, training, content, preparation, say=say)
    gives_up_at = time.monotonic() + ROOM_WITHIN_S
    told = ""
    while True:
        bid, problem = try_to_buy(market, work, name=name, within_s=within_s, say=say)
        if bid is not None:
            return _announce(bid, say=say)
        if time.monotonic() >= gives_up_at:
            raise DemoFailed(problem)
        within_s = max(within_s, min(LATER * within_s, LATEST_S))
        if problem != told:
            say(f"{problem} Asking again until there is room, each time with a later deadline")
            told = problem
        time.sleep(ROOM_EVERY_S)


def _build_work(
    market: httpx.Client,
    zone: str,
    training: dict[str, Any],
    content: bytes | None,
    preparation: dict[str, Any] | None,
    *,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Upload the data set; the job as quotes and bids name it."""
    dataset = upload_dataset(market, zone, content=content, is_messy=preparation is not None)
    say(
        f"Data set {dataset['name']}: {dataset['rows']:,} rows that train as they are, "
        f"{dataset['tokens']:,} tokens"
    )
    if preparation is not None:
        preparation = _confirm_plan(market, dataset["id"], preparation, say=say)
    work = {"zone": zone, "dataset_id": dataset["id"], "training": training}
    return work if preparation is None else work | {"preparation": preparation}


def _announce(bid: dict[str, Any], *, say: Callable[[str], None]) -> dict[str, Any]:
    plan = bid["decision"]["plan"]
    say(
        f"Admitted: pays ${shorten(bid['decision']['payment'])}, not the "
        f"${shorten(bid['price'])} bid; {len(plan)} cells planned, done by "
        f"{bid['decision']['finish_planned_at']}"
    )
    return bid


def try_to_buy(
    market: httpx.Client,
    work: dict[str, Any],
    *,
    name: str,
    within_s: float,
    say: Callable[[str], None],
) -> tuple[dict[str, Any] | None, str]:
    """Bid until the bid wins, or say why there is no room for it before the deadline.

    Raises
    ------
    DemoFailed
        The price rose each time.
    """
    deadline = (datetime.now(UTC) + timedelta(seconds=within_s)).isoformat()
    asked = work | {"deadline": deadline}
    for _ in range(BIDS_MORE + 1):
        quote = parse_answer(market.post("/api/quotes", json=asked))
        if quote["posted_price"] is None:
            return None, f"No quote: {quote['reason_text']}"
        bid = _send_bid(market, asked, quote["posted_price"], name=name, say=say)
        if bid["status"] == "admitted":
            return bid, ""
        problem = f"The bid was {bid['status']}: {bid['decision']['reason_text']}"
        if bid["decision"]["reason"] != "price":
            return None, problem
        say("The price has risen since: once more")
    raise DemoFailed(problem)


def _send_bid(
    market: httpx.Client,
    work: dict[str, Any],
    posted_price: str,
    *,
    name: str,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Bid a multiple of the price of now; the bid once it is decided."""
    limit = f"{WORTH * float(posted_price):.6f}"
    say(f"Posted price ${shorten(posted_price)}; bidding ${shorten(limit)}")
    answer = market.post(
        "/api/bids",
        json=work | {"name": name, "price": limit},
        headers={"Idempotency-Key": secrets.token_hex(16)},
    )
    # 402 says that the bid lost; the bid is in the answer.
    lost = answer.status_code == httpx.codes.PAYMENT_REQUIRED
    bid = answer.json().get("bid") if lost else None
    if bid is None:
        bid = parse_answer(answer)
    while bid["status"] == "pending":
        time.sleep(0.2)
        bid = parse_answer(market.get(f"/api/bids/{bid['id']}"))
    return bid


def _confirm_plan(
    market: httpx.Client, dataset_id: str, wish: dict[str, Any], *, say: Callable[[str], None]
) -> dict[str, Any]:
    """See what a preparation would do, and agree to it; the wish that names the plan."""
    where = f"/api/datasets/{dataset_id}/plans"
    settings = {name: wish[name] for name in PLANNED if name in wish}
    plan = parse_answer(market.post(where, json=settings))
    deadline = time.monotonic() + PLAN_WITHIN_S
    while plan["status"] == "making":
        if time.monotonic() > deadline:
            raise DemoFailed(f"The plan {plan['id']} is not made.")
        time.sleep(0.5)
        plan = parse_answer(market.get(f"{where}/{plan['id']}"))
    if plan["status"] == "failed":
        raise DemoFailed(plan["problem"])
    for line in _describe_plan(plan["plan"]):
        say(line)
    parse_answer(market.post(f"{where}/{plan['id']}/confirm"))
    summary = plan["plan"]["summary"]
    repeated = summary["exact_duplicates"]
    say(
        f"Confirmed: {plan['rows']:,} of {summary['rows_in']:,} rows stay, {plan['tokens']:,} "
        f"tokens with the marks of a chat. {repeated:,} rows repeat others but for case and "
        f"spaces, and {summary['rows_in'] - plan['rows'] - repeated:,} more are lost."
    )
    return wish | {"plan": plan["id"]}


def _describe_plan(plan: dict[str, Any]) -> list[str]:
    """The plan's steps, and what each leaves out or changes, a line each."""
    lines = ["What a preparation would do:"]
    reasons = plan["summary"]["reasons"]
    for step in plan["steps"]:
        lines.append(
            f"  {step['name'].replace('_', ' ').capitalize()}: {step['rows_after']:,} of "
            f"{step['rows_before']:,} rows stay; tokens: {step['tokens_before']:,} before, "
            f"{step['tokens_after']:,} after"
        )
        lines += _count_rows(reasons.get(step["name"], {}))
    lines.append("  Keys and roles:")
    return lines + _count_rows(plan["keys"])


def _count_rows(found: dict[str, int]) -> list[str]:
    ordered = sorted(found.items(), key=lambda each: (-each[1], each[0]))
    return [f"    {n:,} row{'' if n == 1 else 's'}: {words}" for words, n in ordered]


def upload_dataset(
    market: httpx.Client, zone: str, *, content: bytes | None = None, is_messy: bool = False
) -> dict[str, Any]:
    """Send a file, the bundled one by default, and wait until it is read; its data set.

    Lines of a messy file that are no rows yet are left to its preparation.

    Raises
    ------
    DemoFailed
        The file was refused, or is not read in time.
    """
    source = MESSY if is_messy else DATASET
    file = (source.name, content or source.read_bytes())
    asked = {"zone": zone, "faulty_lines": "leave_out" if is_messy else "refuse"}
    answer = market.post("/api/datasets", data=asked, files={"file": file})
    found = parse_answer(answer)
    if answer.status_code == httpx.codes.CREATED:
        return found
    # A busy market says where to look, and reads on.
    deadline = time.monotonic() + READ_WITHIN_S
    while (dataset_id := found["dataset_id"]) is None:
        if found["error"] is not None or time.monotonic() > deadline:
            words = found["error"] or {"detail": f"it is still {found['status']}"}
            raise DemoFailed(f"{source.name} is no data set: {words['detail']}")
        time.sleep(0.5)
        found = parse_answer(market.get(answer.headers["Location"]))
    return parse_answer(market.get(f"/api/datasets/{dataset_id}"))


def follow_job(
    running: House, market: httpx.Client, job_id: str, *, say: Callable[[str], None]
) -> dict[str, Any]:
    """Draw a progress bar until the job has ended; without a terminal, say what changes."""
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


def parse_answer(response: httpx.Response) -> dict[str, Any]:
    if response.status_code >= 400:
        try:
            body = response.json()
            words = body.get("detail") or response.text
        except ValueError:
            words = response.text
        raise DemoFailed(f"{response.request.method} {response.request.url.path}: {words}")
    return response.json()


def shorten(amount: str) -> str:
    return amount.rstrip("0").rstrip(".") if "." in amount else amount
