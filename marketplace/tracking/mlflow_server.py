"""Sending to an organisation's own MLflow server, over its REST API 2.0.

https://mlflow.org/docs/latest/rest-api.html. The server is a stranger's, so it is asked as one
(``common.outbound``); MLflow's own client follows redirects and looks names up by itself.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.conf import settings

from marketplace.common.durable.kinds import WorkFailed
from marketplace.common.outbound import AnswerLimits, FetchFailed, ask_stranger
from marketplace.jobs.models import JobStatus
from marketplace.tracking.run_batches import SentBatch, SentRow

LIMITS = AnswerLimits(timeout_s=30.0, answer_s=30.0, bytes_max=1024 * 1024)
#: Seconds after which no more is sent at once: with the other requests, less than a lease.
LOGGED_WITHIN_S = 60.0
#: Measurements that one request may log.
METRICS_MAX = 1_000
#: Tag of a run by which its job finds it again: MLflow gives runs ids of its own.
JOB_TAG = "finetender.job"
_VALUE_CHARS = 500
_NO_SERVER = "What answers at the address is no MLflow server."
_ENDED = {JobStatus.SUCCEEDED: "FINISHED", JobStatus.FAILED: "FAILED"}
#: It will say the same again.
_FINAL = frozenset({400, 401, 403, 404, 405, 410, 413, 422})


def send_to_mlflow(batch: SentBatch) -> str:
    """Send a batch; the run's address. Steps that the run has already are left out.

    Raises
    ------
    WorkFailed
    """
    try:
        return _send(batch)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        # A stranger's answer may be anything; Python reads even Infinity in it.
        raise WorkFailed(_NO_SERVER) from None


def _send(batch: SentBatch) -> str:
    experiment_id = _find_experiment(batch) or _create_experiment(batch)
    run = _find_run(batch, experiment_id) or _create_run(batch, experiment_id)
    run_id = _read_id(run["info"]["run_id"])
    if not run["data"].get("params"):
        _log_settings(batch, run_id)
    latest = run["data"].get("metrics", [])
    had = max((int(metric.get("step", 0)) for metric in latest), default=-1)
    ends_at = time.monotonic() + LOGGED_WITHIN_S
    for metrics in _chunk_metrics([row for row in batch.rows if row.step > had]):
        if time.monotonic() > ends_at:
            # What is there already is left out by the next try.
            raise WorkFailed("MLflow did not take all in time.")
        _post(batch, "runs/log-batch", {"run_id": run_id, "metrics": metrics})
    if batch.ended is not None:
        status = _ENDED.get(JobStatus(batch.ended), "KILLED")
        ending: dict[str, Any] = {"run_id": run_id, "status": status}
        if batch.ended_at is not None:
            ending["end_time"] = _to_millis(batch.ended_at)
        _post(batch, "runs/update", ending)
    return f"{batch.address.rstrip('/')}/#/experiments/{experiment_id}/runs/{run_id}"


def _find_experiment(batch: SentBatch) -> str | None:
    query = urlencode({"experiment_name": batch.project})
    try:
        found = _ask(batch, "GET", f"experiments/get-by-name?{query}")
    except FetchFailed as error:
        if error.status == 404:
            return None
        raise _build_failure(error) from None
    return _read_id(found["experiment"]["experiment_id"])


def _create_experiment(batch: SentBatch) -> str:
    return _read_id(_post(batch, "experiments/create", {"name": batch.project})["experiment_id"])


def _read_id(text: Any) -> str:
    """An id that the run's address is made of."""
    if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", str(text)) is None:
        raise ValueError(text)
    return str(text)


def _find_run(batch: SentBatch, experiment_id: str) -> dict[str, Any] | None:
    asked = {
        "experiment_ids": [experiment_id],
        "filter": f"tags.`{JOB_TAG}` = '{batch.job_id}'",
        "max_results": 1,
    }
    runs = _post(batch, "runs/search", asked).get("runs", [])
    return runs[0] if runs else None


def _create_run(batch: SentBatch, experiment_id: str) -> dict[str, Any]:
    """Begin a run; it is found by its tag from then on."""
    tags = {JOB_TAG: batch.job_id} | dict.fromkeys(batch.tags, "true")
    asked = {
        "experiment_id": experiment_id,
        "run_name": batch.name,
        "start_time": _to_millis(batch.began_at),
        "tags": [{"key": name, "value": value} for name, value in tags.items()],
    }
    return _post(batch, "runs/create", asked)["run"]


def _log_settings(batch: SentBatch, run_id: str) -> None:
    """What the owner chose, which is fewer settings than one request may log."""
    found = _flatten(batch.config)
    params = [{"key": name, "value": value[:_VALUE_CHARS]} for name, value in found]
    _post(batch, "runs/log-batch", {"run_id": run_id, "params": params})


def _flatten(config: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, str]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{within}{name}.")
        else:
            yield within + name, value if isinstance(value, str) else json.dumps(value)


def _chunk_metrics(rows: Sequence[SentRow]) -> Iterator[list[dict[str, Any]]]:
    """Measurements of whole rows: a step that is there at all is there whole."""
    chunk: list[dict[str, Any]] = []
    for row in rows:
        at = _to_millis(row.at)
        metrics = [
            {"key": name, "value": value, "timestamp": at, "step": row.step}
            for name, value in row.values.items()
        ]
        if len(chunk) + len(metrics) > METRICS_MAX:
            yield chunk
            chunk = []
        chunk += metrics
    if chunk:
        yield chunk


def _post(batch: SentBatch, path: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return _ask(batch, "POST", path, asked)
    except FetchFailed as error:
        raise _build_failure(error) from None


def _ask(
    batch: SentBatch, method: str, path: str, asked: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    answer = ask_stranger(
        f"{batch.address.rstrip('/')}/api/2.0/mlflow/{path}",
        method=method,
        body=b"" if asked is None else json.dumps(asked).encode(),
        headers={"Content-Type": "application/json"} | _build_sign_in(batch.key),
        allows_private=settings.TRACKING_PRIVATE,
        limits=LIMITS,
    )
    return json.loads(answer.body)


def _build_sign_in(key: str) -> dict[str, str]:
    if not key:
        return {}
    if ":" in key:
        return {"Authorization": f"Basic {base64.b64encode(key.encode()).decode()}"}
    return {"Authorization": f"Bearer {key}"}


def _build_failure(error: FetchFailed) -> WorkFailed:
    return WorkFailed(f"MLflow: {error}"[:300], is_final=error.status in _FINAL)


def _to_millis(at: datetime) -> int:
    return int(at.timestamp() * 1000)
