"""Commands that fetch what a job made, with what it takes to use it."""

from __future__ import annotations

import argparse
import getpass
import re
import sys
from pathlib import Path
from typing import Any

from finetender.adapter_archives import read_vllm_line
from finetender.errors import UsageError
from finetender.output import open_client, show_bytes, tell
from finetender.progress import say


def download_files(chosen: argparse.Namespace) -> None:
    """Fetch an adapter, or one of its checkpoints, and say how it is served."""
    show = show_bytes("fetched")
    with open_client(chosen) as client:
        if chosen.checkpoint:
            path = Path(chosen.output or f"{chosen.job}-{chosen.checkpoint}.safetensors")
            found = client.download_checkpoint(chosen.job, chosen.checkpoint, path, on_bytes=show)
            tell(chosen, str(found), {"path": str(found)})
            return
        path = Path(chosen.output or f"{chosen.job}-adapter.zip")
        found = client.download_adapter(chosen.job, path, on_bytes=show)
    line = read_vllm_line(found, chosen.job)
    if line is not None and not chosen.json:
        say(f"Unpack it into {chosen.job}, then: {line}", file=sys.stderr)
    tell(chosen, str(found), {"path": str(found), "vllm": line})


def export_adapter(chosen: argparse.Namespace) -> None:
    """Have merged weights made and fetch them; beside a GGUF file goes a ``Modelfile``."""
    if sys.stderr.isatty():
        say("A node merges the adapter into its base model …", file=sys.stderr)
    with open_client(chosen) as client:
        export = client.export_adapter(chosen.job, chosen.form, chosen.checkpoint)
        path = Path(chosen.output or choose_name(export["filename"], of=chosen.job))
        show = show_bytes("fetched")
        found = client.download_export(chosen.job, export["id"], path, on_bytes=show)
    told: dict[str, Any] = {"path": str(found), "export": export}
    if chosen.form.startswith("gguf"):
        told["modelfile"] = str(write_modelfile(found))
        if not chosen.json:
            line = f"ollama create NAME -f {told['modelfile']}"
            say(f"For Ollama: {line}", file=sys.stderr)
    elif not chosen.json:
        say(f"Unpack it into {chosen.job}, then: vllm serve {chosen.job}", file=sys.stderr)
    tell(chosen, str(found), told)


def choose_name(told: str, *, of: str) -> str:
    """The market's name for a file: only one that begins with its job's id names no other file.

    Raises
    ------
    UsageError
    """
    if re.fullmatch(rf"{re.escape(of)}[A-Za-z0-9_.-]*", told) is None:
        raise UsageError(f"The market calls the file {told!r}. Name it yourself, with --output.")
    return told


def write_modelfile(model: Path) -> Path:
    """Write what Ollama makes a model of; its chat template stands in the GGUF file itself."""
    path = model.with_name(f"{model.name}.Modelfile")
    path.write_text(f"FROM ./{model.name}\n", encoding="utf-8")
    return path


def push_adapter(chosen: argparse.Namespace) -> None:
    """The token is asked for: an argument would stand in the shell's history."""
    is_terminal = sys.stdin.isatty()
    token = getpass.getpass("Token of the hub: ") if is_terminal else sys.stdin.readline().strip()
    with open_client(chosen) as client:
        push = client.push_adapter(
            chosen.job,
            chosen.repository,
            token=token,
            private=not chosen.public,
            export_id=chosen.export,
        )
    tell(chosen, push["url"], push)
