"""Sending to Weights & Biases, by its own client in a process of its own."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.conf import settings

from marketplace.common.durable.kinds import WorkFailed
from marketplace.jobs.models import JobStatus
from marketplace.tracking.run_batches import SentBatch

log = logging.getLogger(__name__)

SEND_WITHIN_S = 120.0
_ROOT = Path(__file__).parents[2]
_ENVIRONMENT = ("PATH", "LANG", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE")


def has_wandb_client() -> bool:
    """Whether this market has the client that sends."""
    return find_spec("wandb") is not None


def send_to_wandb(batch: SentBatch) -> str:
    """Send a batch; the run's address. The client leaves out the steps that the service has.

    Raises
    ------
    WorkFailed
    """
    asked = {
        "id": batch.job_id,
        "key": batch.key,
        "base_url": settings.WANDB_URL,
        "project": batch.project,
        "entity": batch.entity,
        "name": batch.name,
        "tags": list(batch.tags),
        "config": dict(batch.config),
        "rows": [{"step": row.step, "values": dict(row.values)} for row in batch.rows],
        "summary": {} if batch.ended is None else {"status": batch.ended},
        "exit_code": None if batch.ended is None else int(batch.ended != JobStatus.SUCCEEDED),
    }
    with tempfile.TemporaryDirectory(prefix="finetender-tracking-") as folder:
        return _run_sender(asked | {"folder": folder}, Path(folder))


def _run_sender(asked: dict[str, Any], folder: Path) -> str:
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    # The client looks for settings, keys and a cache in the home folder.
    environment |= {"HOME": str(folder), "WANDB_ERROR_REPORTING": "false"}
    errors = folder / "errors"
    with errors.open("wb") as log_file:
        process = subprocess.Popen(
            (sys.executable, "-m", "marketplace.tracking.sender"),
            cwd=_ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log_file,
            # With the service that the client starts, which may outlive it.
            start_new_session=True,
        )
        try:
            answer, _ = process.communicate(json.dumps(asked).encode(), timeout=SEND_WITHIN_S)
        except subprocess.TimeoutExpired:
            raise WorkFailed("Weights & Biases did not answer in time.") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if not answer:
        log.warning("the sender ended with %s: %s", process.returncode, _read_end(errors))
        raise WorkFailed("The client of Weights & Biases ended without an answer.")
    result = json.loads(answer)
    if "error" in result:
        raise WorkFailed(result["error"], is_final=result["is_final"])
    return result["url"] or ""


def _read_end(file: Path) -> str:
    return file.read_bytes()[-2000:].decode(errors="replace")
