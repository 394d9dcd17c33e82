"""Fine-tune and chat on Finetender with OpenAI's own, unmodified client.

While ``make demo`` runs, address and key are taken from ``.data/demo/access.json``. For another
market set ``OPENAI_BASE_URL`` (ending in /v1), ``OPENAI_API_KEY`` and ``MODEL``.
"""

import json
import os
import sys
import time
from pathlib import Path

import openai
from openai.types.fine_tuning import FineTuningJob

ROOT = Path(__file__).resolve().parents[1]
ACCESS = Path(os.environ.get("ACCESS", ROOT / ".data" / "demo" / "access.json"))
DATA = ROOT / "workers" / "models" / "datasets" / "support_tone.jsonl"
#: Seconds in which the market may have room again.
ROOM_WITHIN_S = 300
ENDED = ("succeeded", "failed", "cancelled", "paused")


def connect() -> tuple[openai.OpenAI, str]:
    """The client, and the base model to train."""
    if os.environ.get("OPENAI_BASE_URL"):
        return openai.OpenAI(), os.environ["MODEL"]
    try:
        access = json.loads(ACCESS.read_text())
    except FileNotFoundError:
        sys.exit(
            f"No demo is running here: there is no {ACCESS}. Start one with `make demo`, or set "
            "OPENAI_BASE_URL, OPENAI_API_KEY and MODEL."
        )
    client = openai.OpenAI(base_url=access["openai_base_url"], api_key=access["api_key"])
    return client, access["model"]


def buy(client: openai.OpenAI, model: str, file_id: str) -> FineTuningJob:
    """Bid for the job; wait for room while the market's nodes start, or are sold out."""
    gives_up_at = time.monotonic() + ROOM_WITHIN_S
    while True:
        try:
            return client.fine_tuning.jobs.create(
                model=model,
                training_file=file_id,
                suffix="support",
                method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 3}}},
                # The most the job is worth to us. What it costs does not depend on that.
                extra_body={"bid": {"max_price": "5.00", "deadline": "6h"}},
            )
        except openai.APIStatusError as refused:
            if refused.code != "no_capacity" or time.monotonic() > gives_up_at:
                raise
            print(f"{refused.body['message']} Asking again.", flush=True)
            time.sleep(5)


def follow(client: openai.OpenAI, job_id: str) -> FineTuningJob:
    """Print what happens to the job until it ends."""
    seen: set[str] = set()
    while True:
        job = client.fine_tuning.jobs.retrieve(job_id)
        news = client.fine_tuning.jobs.list_events(job_id, limit=20).data
        for event in reversed(news):
            if event.id not in seen:
                seen.add(event.id)
                print(f"  {event.message}", flush=True)
        if job.status in ENDED:
            return job
        time.sleep(1)


def main() -> int:
    client, model = connect()
    try:
        file = client.files.create(file=DATA, purpose="fine-tune")
    except openai.APIConnectionError:
        sys.exit(f"Nothing answers at {client.base_url}: the demo has ended.")
    except openai.AuthenticationError:
        sys.exit(f"{client.base_url} does not know this key: it is of an earlier demo.")
    client.files.wait_for_processing(file.id)
    print(f"{file.filename} is {file.id}")
    try:
        job = buy(client, model, file.id)
    except openai.APIStatusError as refused:
        print(f"Refused: {refused.code}: {refused}", file=sys.stderr)
        return 1
    print(f"{job.id} was bought for ${job.bid['payment']}")
    job = follow(client, job.id)
    if job.status != "succeeded" or job.fine_tuned_model is None:
        print(f"{job.id} {job.status}: {job.error}", file=sys.stderr)
        return 1
    _, adapter = job.result_files
    path = Path(client.files.retrieve(adapter).filename)
    client.files.content(adapter).write_to_file(path)
    print(f"The adapter is in {path} ({path.stat().st_size:,} bytes)")
    question = [{"role": "user", "content": "My parcel has not arrived. What can I do?"}]
    for name in (model, job.fine_tuned_model):
        print(f"{name}: ", end="", flush=True)
        words = client.chat.completions.create(
            model=name, messages=question, temperature=0, max_tokens=64, stream=True
        )
        for chunk in words:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
