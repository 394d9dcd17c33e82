"""The API of a running house with one CPU node: quotes, lists, an upload, and answers of models.

``python -m tests.benchmarks.bench_api [--requests 200] [--upload-mb 100]`` starts a house of its
own, trains eight adapters and prints a JSON line for each case. Answers are compared with
``transformers.generate`` with one of these adapters, in this process and with as many tokens,
greedy; eight together are asked of eight adapters. ``training`` is the pace of a job while nobody
asks, and while eight adapters answer all the time.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import psutil

from marketplace.embedded.house import ROOT, House, house
from tests.demo_market import open_market
from workers.models import find_bundled_path

ROWS = ROOT / "workers" / "models" / "datasets" / "support_tone.jsonl"
PROMPT = "My parcel has not arrived. What can I do?"
TOKENS, TOGETHER = 64, 8
#: Answers of each adapter: they are short, since a model ends where its rows do.
ROUNDS = 5
#: Seconds for which a job's pace is measured, and epochs of that job: more than it does meanwhile.
PACE_S = 20.0
PACE_EPOCHS = 20
#: Each adapter is bid for once the one before is there, and done within so many seconds or not.
TRAINED_WITHIN_S = 300.0
DECIDED_WITHIN_S = 60.0
LOOK_AGAIN_S = 0.5
#: Of a house in which something failed, the last lines of what its processes said.
LOG_LINES = 60
#: Seconds between two looks at the memory of the web server.
LOOK_EVERY_S = 0.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--upload-mb", type=int, default=100)
    chosen = parser.parse_args()
    with (
        run_house() as (running, seeded),
        httpx.Client(
            base_url=running.url,
            headers={"Authorization": f"Bearer {seeded['api_key']}"},
            timeout=600,
        ) as api,
    ):
        rows = {"file": (ROWS.name, ROWS.read_bytes())}
        data = api.post("/api/datasets", data={"zone": seeded["zone"]}, files=rows).json()
        zone = api.get("/api/zones").json()["data"][0]
        work = {
            "zone": zone["name"],
            "dataset_id": data["id"],
            "deadline": zone["latest_deadline"],
            "training": {"epochs": 1},
        }
        report("quote", measure(lambda: api.post("/api/quotes", json=work), chosen.requests))
        report("job_list", measure(lambda: api.get("/api/jobs"), chosen.requests))
        report("upload", upload(api, running, megabytes=chosen.upload_mb))
        models = train_adapters(api, work)
        for model in models:
            # The first question of each has its node fetch and attach it.
            answer(api, model)
        report("answer_1", answer_in_turn(api, models[:1] * ROUNDS))
        report("answer_8", answer_together(api, models))
        report("training", measure_pace(api, work, models))
        job = models[0].rpartition(":")[2]
        adapter = api.get(f"/api/jobs/ftjob-{job}/adapter").raise_for_status().content
    report("transformers_1", generate_with_transformers(adapter))


@contextmanager
def run_house() -> Iterator[tuple[House, dict[str, Any]]]:
    """A house with one node, in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="bench-api-"))
    try:
        with house(data_dir=folder, durable=False, own_servers=True) as running:
            yield running, open_market(running, say=lambda _: None)
    except Exception:
        for name in ("web", "node"):
            log = folder / "logs" / f"{name}.log"
            lines = log.read_text().splitlines()[-LOG_LINES:] if log.exists() else []
            print(*lines, sep="\n", file=sys.stderr)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def report(case: str, figures: dict[str, Any]) -> None:
    print(json.dumps({"case": case, **figures}), flush=True)


def measure(send: Callable[[], httpx.Response], count: int) -> dict[str, Any]:
    """Times of requests one after the other, and how many come through eight at a time."""
    with ThreadPoolExecutor(TOGETHER) as pool:
        # Each process of the web server reads the zone's log and the data set's tokens once.
        list(pool.map(lambda _: send().raise_for_status(), range(4 * TOGETHER)))
    times_ms = sorted(_time_ms(send) for _ in range(count))
    began = time.monotonic()
    with ThreadPoolExecutor(TOGETHER) as pool:
        list(pool.map(lambda _: send().raise_for_status(), range(count)))
    return {
        "p50_ms": round(statistics.median(times_ms), 1),
        "p99_ms": round(times_ms[int(0.99 * (count - 1))], 1),
        "requests_per_s": round(count / (time.monotonic() - began), 1),
    }


def _time_ms(send: Callable[[], httpx.Response]) -> float:
    began = time.monotonic()
    send().raise_for_status()
    return 1000 * (time.monotonic() - began)


def upload(api: httpx.Client, running: House, *, megabytes: int) -> dict[str, Any]:
    """Seconds of an upload, and by how much the web server's processes grow meanwhile."""
    row = ROWS.read_bytes().splitlines(keepends=True)[0]
    content = row * (megabytes * 1_000_000 // len(row))
    port = running.url.rpartition(":")[2]
    processes = [
        process
        for process in psutil.process_iter()
        if any(at.laddr and at.laddr.port == int(port) for at in _connections(process))
    ]
    idle = sum(process.memory_info().rss for process in processes)
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(
            api.post, "/v1/files", data={"purpose": "fine-tune"}, files={"file": ("x", content)}
        )
        most = idle
        while not sent.done():
            most = max(most, sum(process.memory_info().rss for process in processes))
            time.sleep(LOOK_EVERY_S)
    return {
        "status": sent.result().status_code,
        "bytes": len(content),
        "seconds": round(time.monotonic() - began, 2),
        "web_grows_mb": round((most - idle) / 1e6, 1),
    }


def _connections(process: psutil.Process) -> list[Any]:
    try:
        return [at for at in process.net_connections() if at.status == psutil.CONN_LISTEN]
    except psutil.Error:
        return []


def answer(api: httpx.Client, model: str) -> dict[str, Any]:
    """Seconds to the first words of a streamed answer, and tokens a second of all of it."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began = time.monotonic()
    first, tokens = None, 0
    with api.stream("POST", "/v1/chat/completions", json=body) as lines:
        if lines.status_code != HTTPStatus.OK:
            raise RuntimeError(f"{model} does not answer: {lines.read().decode()}")
        for line in lines.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if "error" in chunk:
                raise RuntimeError(f"{model} stopped answering: {chunk['error']['message']}")
            if first is None and any(each["delta"].get("content") for each in chunk["choices"]):
                first = time.monotonic() - began
            tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
    seconds = time.monotonic() - began
    if first is None or not tokens:
        raise RuntimeError(f"{model} answered without a word")
    return {
        "first_s": round(first, 3),
        "tokens": tokens,
        "tokens_per_s": round(tokens / seconds, 1),
    }


def train_adapters(api: httpx.Client, work: dict[str, Any]) -> list[str]:
    """Names of eight small adapters, one after another the result of a bid.

    Raises
    ------
    RuntimeError
        A bid lost, or its job did not succeed within its deadline.
    """
    models = []
    for seed in range(TOGETHER):
        job = train(api, work | {"training": {"epochs": 1, "batch_size": 32, "seed": seed}})
        found = api.get("/v1/models").raise_for_status().json()["data"]
        ending = ":" + job.removeprefix("ftjob-")
        models += [model["id"] for model in found if model["id"].endswith(ending)]
        if len(models) != seed + 1:
            raise RuntimeError(f"/v1/models does not list the adapter of {job}")
    return models


def train(api: httpx.Client, work: dict[str, Any]) -> str:
    """Bid for a job and wait until it has succeeded; gives its id."""
    by = datetime.now(UTC) + timedelta(seconds=TRAINED_WITHIN_S)
    address = f"/api/jobs/{buy_job(api, work, deadline=by.isoformat())}"
    ends_at = time.monotonic() + TRAINED_WITHIN_S
    while time.monotonic() < ends_at:
        job = api.get(address).raise_for_status().json()
        if job["status"] == "succeeded":
            return str(job["id"])
        if job["status"] in ("failed", "cancelled"):
            raise RuntimeError(f"{job['id']} {job['status']}: {job['failure_reason']}")
        time.sleep(LOOK_AGAIN_S)
    raise RuntimeError(f"{address} is not done within {TRAINED_WITHIN_S:.0f} s")


def buy_job(api: httpx.Client, work: dict[str, Any], *, deadline: str) -> str:
    """The id of a job that a bid has won."""
    terms = {"deadline": deadline, "adapter": {"rank": 8}, "price": "5"}
    answer = api.post("/api/bids", json=work | terms)
    bid = answer.json()
    ends_at = time.monotonic() + DECIDED_WITHIN_S
    while answer.is_success and bid["status"] == "pending" and time.monotonic() < ends_at:
        time.sleep(LOOK_AGAIN_S)
        answer = api.get(f"/api/bids/{bid['id']}")
        bid = answer.json()
    if not bid.get("job_id"):
        raise RuntimeError(f"the bid did not win: {answer.text}")
    return str(bid["job_id"])


def answer_in_turn(api: httpx.Client, models: list[str]) -> dict[str, Any]:
    """Answers one after another: seconds to first words, and tokens a second of all."""
    began = time.monotonic()
    answers = [answer(api, model) for model in models]
    tokens = sum(each["tokens"] for each in answers)
    return {
        "answers": len(answers),
        "first_s": statistics.median(each["first_s"] for each in answers),
        "tokens": tokens,
        "tokens_per_s": round(tokens / (time.monotonic() - began), 1),
    }


def answer_together(api: httpx.Client, models: list[str]) -> dict[str, Any]:
    """The same, of several adapters at once."""
    began = time.monotonic()
    with ThreadPoolExecutor(TOGETHER) as pool:
        parts = list(pool.map(lambda model: answer_in_turn(api, [model] * ROUNDS), models))
    tokens = sum(part["tokens"] for part in parts)
    return {
        "answers": sum(part["answers"] for part in parts),
        "first_s": statistics.median(part["first_s"] for part in parts),
        "tokens": tokens,
        "tokens_per_s": round(tokens / (time.monotonic() - began), 1),
    }


def measure_pace(api: httpx.Client, work: dict[str, Any], models: list[str]) -> dict[str, Any]:
    """Steps a second of a job while nobody asks, and while all adapters answer all the time."""
    latest = api.get("/api/zones").raise_for_status().json()["data"][0]["latest_deadline"]
    training = {"epochs": PACE_EPOCHS, "batch_size": 8, "seed": 1}
    job = buy_job(api, work | {"training": training}, deadline=latest)
    ends_at = time.monotonic() + TRAINED_WITHIN_S
    while api.get(f"/api/jobs/{job}").raise_for_status().json()["progress"]["step"] < 2:
        if time.monotonic() > ends_at:
            raise RuntimeError(f"{job} has not begun within {TRAINED_WITHIN_S:.0f} s")
        time.sleep(LOOK_AGAIN_S)
    alone = _measure_steps(api, job)
    ended = threading.Event()

    def keep_asking(model: str) -> int:
        tokens = 0
        while not ended.is_set():
            tokens += answer(api, model)["tokens"]
        return tokens

    with ThreadPoolExecutor(TOGETHER) as pool:
        asking = [pool.submit(keep_asking, model) for model in models]
        try:
            beside = _measure_steps(api, job)
        finally:
            ended.set()
        tokens = sum(each.result() for each in asking)
    api.post(f"/api/jobs/{job}/cancel").raise_for_status()
    return {
        "steps_per_s_alone": round(alone, 2),
        "steps_per_s_beside_answers": round(beside, 2),
        "slowed_by": round(1 - beside / alone, 3),
        "answered_tokens_meanwhile": tokens,
    }


def _measure_steps(api: httpx.Client, job: str) -> float:
    """Steps a second between the first and the last news of the job in ``PACE_S``."""
    seen: list[tuple[float, int]] = []
    ends_at = time.monotonic() + PACE_S
    while time.monotonic() < ends_at:
        step = api.get(f"/api/jobs/{job}").raise_for_status().json()["progress"]["step"]
        if not seen or step > seen[-1][1]:
            seen.append((time.monotonic(), step))
        time.sleep(0.05)
    if len(seen) < 2:
        raise RuntimeError(f"{job} told of no step within {PACE_S:.0f} s")
    return (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])


def generate_with_transformers(adapter: bytes) -> dict[str, Any]:
    """Tokens a second of ``transformers.generate`` with ``peft`` on the bundled base model."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = find_bundled_path("bundled:finetender-tiny")
    tokenizer = AutoTokenizer.from_pretrained(path)
    base = AutoModelForCausalLM.from_pretrained(path)
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(io.BytesIO(adapter)) as archive:
            archive.extractall(folder)
        model = PeftModel.from_pretrained(base, folder)
    turns = [{"role": "user", "content": PROMPT}]
    inputs = tokenizer.apply_chat_template(
        turns, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    model.generate(**inputs, max_new_tokens=2, do_sample=False)
    began = time.monotonic()
    tokens = 0
    for _ in range(ROUNDS):
        made = model.generate(**inputs, max_new_tokens=TOKENS, do_sample=False)
        tokens += made.shape[1] - inputs["input_ids"].shape[1]
    return {
        "answers": ROUNDS,
        "tokens": tokens,
        "tokens_per_s": round(tokens / (time.monotonic() - began), 1),
    }


if __name__ == "__main__":
    main()
