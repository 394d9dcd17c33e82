"""The process that talks to Weights & Biases: ``python -m marketplace.tracking.sender``.

Its client keeps state in the process, starts a service of its own and retries for as long as it
likes, so it gets a process that may be ended. One JSON object comes on the standard input, one
goes out on the standard output: the run's address, or an error.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import wandb
from wandb.errors import AuthenticationError, CommError, UsageError


def main() -> None:
    asked = json.load(sys.stdin)
    # What the client prints goes where errors go.
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        result = send_rows(asked)
    except (AuthenticationError, UsageError) as error:
        result = {"error": _describe(error), "is_final": True}
    except CommError as error:
        result = {"error": _describe(error), "is_final": _is_denied(error)}
    with os.fdopen(answers, "w") as output:
        json.dump(result, output)


def send_rows(asked: dict[str, Any]) -> dict[str, Any]:
    """Append rows to the run of that id, or begin it.

    Rows of steps that the run has are left out by the client, so rows may be sent twice.
    """
    run = wandb.init(
        id=asked["id"],
        resume="allow",
        project=asked["project"],
        entity=asked["entity"] or None,
        name=asked["name"],
        tags=asked["tags"],
        config=asked["config"],
        settings=_build_settings(asked),
    )
    for row in asked["rows"]:
        if row["step"] >= run.step:
            run.log(row["values"], step=row["step"])
    run.summary.update(asked["summary"])
    run.finish(exit_code=asked["exit_code"] or 0)
    return {"url": run.url}


def _build_settings(asked: dict[str, Any]) -> wandb.Settings:
    """Nothing of this machine is sent: no code, packages, console, hardware or host name."""
    return wandb.Settings(
        api_key=asked["key"],
        base_url=asked["base_url"] or "https://api.wandb.ai",
        console="off",
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        host="finetender",
        init_timeout=30.0,
        root_dir=asked["folder"],
        save_code=False,
        silent=True,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
        # The run goes on until the job is over.
        x_update_finish_state=asked["exit_code"] is not None,
    )


def _is_denied(error: CommError) -> bool:
    """Whether the service answered that this key may not, which it will say again."""
    text = str(error)
    return any(code in text for code in ("401", "403", "404", "permission denied"))


def _describe(error: Exception) -> str:
    return f"Weights & Biases: {' '.join(str(error).split()) or type(error).__name__}"[:300]


if __name__ == "__main__":
    main()
