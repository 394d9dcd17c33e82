"""Commands about logs: a job's own, the auction's, and what an owner holds of a bid."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from finetender import local_programs
from finetender.client import Client
from finetender.errors import JobFailedError
from finetender.output import open_client, show_moment, tell
from finetender.progress import say

#: Events of a job that are asked for at once.
_PAGE = 100


def show_logs(chosen: argparse.Namespace) -> None:
    """A job's log, from its beginning; with ``--follow`` until the job ends."""
    with open_client(chosen) as client:
        if not chosen.follow:
            for event in _read_events(client, chosen.job, after=chosen.after):
                _print_event(chosen, event)
            return
        for event in client.watch(chosen.job, after=chosen.after):
            if event.kind != "progress":
                _print_event(chosen, event.raw)
        job = client.get_job(chosen.job)
    if job.status != "succeeded":
        raise JobFailedError(f"{job.id} {job.status}: {job.failure_reason or 'no reason'}")


def _read_events(client: Client, job_id: str, *, after: int) -> Any:
    while True:
        page = client.call("jobs_events_list", job_id=job_id, after=after, limit=_PAGE)
        yield from page["data"]
        if not page["has_more"]:
            return
        after = page["data"][-1]["seq"]


def _print_event(chosen: argparse.Namespace, raw: Any) -> None:
    if chosen.json:
        say(json.dumps(raw), flush=True)
        return
    at = show_moment(datetime.fromisoformat(raw["at"])) if "at" in raw else "?"
    say(f"{at}  {raw.get('message', '')}", flush=True)


def verify_log(chosen: argparse.Namespace) -> int:
    """Decide everything in a log again where the market's package is here; else check its chain."""
    path = Path(chosen.log)
    if not path.exists():
        with open_client(chosen) as client:
            path = client.download_transcript(chosen.log, f"{chosen.log}.jsonl")
        say(f"Stored {path}.", file=sys.stderr)
    return local_programs.verify_transcript(path, chain_only=chosen.chain_only)


def fetch_log(chosen: argparse.Namespace) -> None:
    with open_client(chosen) as client:
        found = client.download_transcript(chosen.zone, chosen.output or f"{chosen.zone}.jsonl")
    tell(chosen, str(found), {"path": str(found)})


def fetch_proof(chosen: argparse.Namespace) -> None:
    """Store what the owner of a decided bid needs to check it; it opens the bid to who has it."""
    with open_client(chosen) as client:
        path = chosen.output or f"{chosen.bid}.proof.json"
        found = client.download_file("bids_proof", path, bid_id=chosen.bid)
    tell(chosen, str(found), {"path": str(found)})


def verify_receipt(chosen: argparse.Namespace) -> int:
    """Check a proof, or a receipt, without trust in the market."""
    path = Path(chosen.proof)
    if not path.exists():
        with open_client(chosen) as client:
            name = f"{chosen.proof}.proof.json"
            path = client.download_file("bids_proof", name, bid_id=chosen.proof)
        say(f"Stored {path}.", file=sys.stderr)
    asked = [str(path), *(f"--key={key}" for key in chosen.key)]
    asked += [f"--limit={chosen.limit}"] if chosen.limit else []
    asked += [f"--transcript={chosen.transcript}"] if chosen.transcript else []
    return local_programs.verify_receipt(*asked, *(["--json"] if chosen.json else []))
