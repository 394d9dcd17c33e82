"""``finetender sweep``: one file, several settings, one table of what came of each."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from finetender.client import Client
from finetender.errors import JobFailedError, UsageError
from finetender.job_files import read_job_file
from finetender.output import open_client, print_json, print_table
from finetender.progress import say
from finetender.values import Bid, Job

#: Seconds between two looks at jobs that run.
LOOK_EVERY_S = 5.0


def sweep(chosen: argparse.Namespace) -> None:
    """Bid for every combination, wait for the jobs, and compare what they came to.

    Raises
    ------
    JobFailedError
        No job succeeded.
    """
    work = read_job_file(Path(chosen.file))
    values = {**(work.sweep or {}), **_read_grid(chosen.grid)}
    if not values:
        raise UsageError(
            "Say what differs: --grid training.learning_rate=1e-4,2e-4, or 'sweep' in the file."
        )
    with open_client(chosen) as client:
        found = client.place_sweep(
            work.data, sweep=values, all_or_none=chosen.all_or_none, **work.terms
        )
        if not chosen.json:
            won = sum(bid.job_id is not None for bid in found.bids)
            paid = found.raw["payment"]
            say(f"{found.id}: {won} of {len(found.bids)} won, for ${paid}.", file=sys.stderr)
        jobs = _await_jobs(client, () if chosen.no_wait else found.bids)
    rows = [_Row(bid, jobs.get(bid.job_id or ""), list(values)) for bid in found.bids]
    rows.sort(key=_Row.get_rank)
    if chosen.json:
        print_json({"id": found.id, "jobs": [row.describe() for row in rows]})
    else:
        head = [*values, "status", "price", "loss", "validation", "job"]
        print_table(head, [row.list_cells() for row in rows])
    if jobs and not any(job.status == "succeeded" for job in jobs.values()):
        raise JobFailedError(f"No job of {found.id} succeeded.")


def _read_grid(given: Sequence[str]) -> dict[str, list[Any]]:
    """Values by setting: JSON, separated by commas, or a JSON list; other texts are themselves."""
    found: dict[str, list[Any]] = {}
    for pair in given:
        name, sign, text = pair.partition("=")
        group, dot, member = name.partition(".")
        if not sign or group not in ("adapter", "training") or not dot or not member:
            raise UsageError(
                f"{pair!r} says nothing to compare; write training.NAME=VALUE,VALUE or adapter.…"
            )
        found[name] = (
            cast("list[Any]", _read(text))
            if text.startswith("[")
            else [_read(each) for each in text.split(",")]
        )
    return found


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _await_jobs(client: Client, bids: Sequence[Bid]) -> Mapping[str, Job]:
    """The jobs, once all of them have ended."""
    waiting = [bid.job_id for bid in bids if bid.job_id is not None]
    jobs: dict[str, Job] = {}
    while waiting:
        jobs |= {job_id: client.get_job(job_id) for job_id in waiting}
        waiting = [job_id for job_id in waiting if not jobs[job_id].has_ended]
        if sys.stderr.isatty():
            done = len(jobs) - len(waiting)
            print(f"\r\x1b[K{done} of {len(jobs)} jobs have ended", end="", file=sys.stderr)
        if waiting:
            time.sleep(LOOK_EVERY_S)
    if jobs and sys.stderr.isatty():
        print(file=sys.stderr)
    return jobs


class _Row:
    """One combination of settings, and what came of it."""

    def __init__(self, bid: Bid, job: Job | None, settings: Sequence[str]) -> None:
        self._bid, self._job = bid, job
        self._settings = {name: self._find(name) for name in settings}

    def _find(self, name: str) -> Any:
        group, _, member = name.partition(".")
        return self._bid.raw[group].get(member)

    def get_rank(self) -> tuple[bool, float]:
        """The lowest validation loss first; those without one last."""
        loss = self._job and self._job.valid_loss
        return loss is None, loss or 0.0

    @property
    def _status(self) -> str:
        return self._bid.status if self._job is None else self._job.status

    def describe(self) -> dict[str, Any]:
        return {
            "settings": self._settings,
            "status": self._status,
            "bid_id": self._bid.id,
            "job_id": self._bid.job_id,
            "price": self._bid.payment and str(self._bid.payment),
            "train_loss": self._job and self._job.train_loss,
            "valid_loss": self._job and self._job.valid_loss,
            "failure_reason": self._job and self._job.failure_reason,
        }

    def list_cells(self) -> list[str]:
        losses = [None, None] if self._job is None else [self._job.train_loss, self._job.valid_loss]
        return [
            *(json.dumps(value) for value in self._settings.values()),
            self._status,
            "" if self._bid.payment is None else f"${self._bid.payment:f}",
            *("" if loss is None else f"{loss:.4f}" for loss in losses),
            self._bid.job_id or "",
        ]
