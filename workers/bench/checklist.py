"""``python -m workers.bench checklist --out FOLDER``: all of docs/gpu-checklist.md, in turn.

Each item is a process of its own with a time limit, so that a device error or a hang of one costs
no other. Its output lies in the folder, ``NAME.out`` and ``NAME.err``; ``summary.jsonl`` has a line
for each. Begun again, it goes on after the items that are there: give it ``--minutes`` where a
command may take no longer. The exit status is 0 where every item is good, 1 where one is not, and
3 where some are left to run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import torch

from workers.bench.cases import GPU_CASES
from workers.bench.checks import CHECKS, FAMILY_CHECKS

EXIT_GOOD, EXIT_BAD, EXIT_LEFT = 0, 1, 3
SUMMARY = "summary.jsonl"
_ROOT = Path(__file__).parents[2]
_TESTS = Path("tests/unit/workers/runtime/test_node_runtime.py")
#: Seconds that a process gets to end by itself once its limit is over.
_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class ChecklistItem:
    name: str
    command: tuple[str, ...]
    limit_s: float
    environment: dict[str, str] = field(default_factory=dict)


def list_items(device: str) -> list[ChecklistItem]:
    """The list in its order: what others rest on comes first, speed last."""
    bench = (sys.executable, "-m", "workers.bench")
    look = (
        "import torch; print(torch.__version__, torch.version.cuda);"
        "print(torch.cuda.get_device_name(), torch.cuda.mem_get_info())"
    )
    is_cuda = device.startswith("cuda")
    if not is_cuda:
        look = "import torch; print(torch.__version__, torch.get_num_threads())"
    found = [ChecklistItem("installation", (sys.executable, "-c", look), 120)]
    found += [
        ChecklistItem(
            f"check-{name}",
            (*bench, "check", "--device", device, "--only", name),
            300,
        )
        for name in _list_checks()
    ]
    if (_ROOT / _TESTS).is_file():
        tests = ("-m", "pytest", "-c", "tests/gpu.ini", "--rootdir", ".", "-q", str(_TESTS))
        setting = {"FINETENDER_TEST_DEVICE": device}
        found.append(ChecklistItem("tests", (sys.executable, *tests), 420, setting))
    if not is_cuda:
        return [
            *found,
            ChecklistItem("speed", (*bench, "gpu", "--rehearse", "--repeats", "1"), 420),
        ]
    found += [
        ChecklistItem(
            f"speed-{number:02}",
            (*bench, "gpu", "--repeats", "3", "--minutes", "7", "--only", case.name),
            480,
        )
        for number, case in enumerate(GPU_CASES)
    ]
    calibrate = (sys.executable, "-m", "workers", "calibrate", "--quick")
    return [*found, ChecklistItem("calibrate", calibrate, 300)]


def _list_checks() -> list[str]:
    """The checks in their order; each family by itself, so that a slow machine goes on after it."""
    parts = {"families": list(FAMILY_CHECKS)}
    return [part for name in CHECKS for part in parts.get(name, [name])]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m workers.bench checklist", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for what items print")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="begin no item that could take longer"
    )
    parser.add_argument("--only", default="", help="items whose name has this in it")
    parser.add_argument("--again", action="store_true", help="run those again that were not good")
    chosen = parser.parse_args(arguments)
    items = [item for item in list_items(chosen.device) if chosen.only in item.name]
    until = time.monotonic() + 60 * chosen.minutes
    return run_items(items, out=chosen.out, until=until, again=chosen.again)


def run_items(
    items: Sequence[ChecklistItem], *, out: Path, until: float, again: bool = False
) -> int:
    """Run what has no line in the summary yet; an item that does not fit before ``until`` waits.

    Parameters
    ----------
    until
        By ``time.monotonic``.
    """
    out.mkdir(parents=True, exist_ok=True)
    known = read_summary(out)
    for item in items:
        row = known.get(item.name)
        if row is None or (again and not row["ok"]):
            if time.monotonic() + item.limit_s + _GRACE_S > until:
                print(f"Left: {item.name}, which may take {item.limit_s:g} s.", file=sys.stderr)
                return EXIT_LEFT
            row = known[item.name] = _run_item(item, out=out)
            with (out / SUMMARY).open("a") as file:
                file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
    return EXIT_GOOD if all(known[item.name]["ok"] for item in items) else EXIT_BAD


def read_summary(out: Path) -> dict[str, dict[str, Any]]:
    """The last line of each item that has run; one that was cut off counts as none."""
    path = out / SUMMARY
    rows = {}
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        rows[row["item"]] = row
    return rows


def _run_item(item: ChecklistItem, *, out: Path) -> dict[str, Any]:
    """Run one item to its end or its limit; its line of the summary."""
    began = time.monotonic()
    print(f"{item.name}: {' '.join(item.command[1:])}", file=sys.stderr, flush=True)
    error_path = out / f"{item.name}.err"
    with (out / f"{item.name}.out").open("w") as output, error_path.open("w") as errors:
        status = _wait(item, output, errors)
    row: dict[str, Any] = {
        "item": item.name,
        "ok": status == 0,
        "status": status,
        "seconds": round(time.monotonic() - began, 1),
    }
    if status is None:
        row["said"] = f"It was over its limit of {item.limit_s:g} s and was ended."
    elif status:
        *_, row["said"] = error_path.read_text(errors="replace").strip().splitlines() or [""]
    return row


def _wait(item: ChecklistItem, output: TextIO, errors: TextIO) -> int | None:
    """The exit status; ``None`` where the limit ended it, with all that it had started."""
    process = subprocess.Popen(
        item.command,
        cwd=_ROOT,
        env=os.environ | item.environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        start_new_session=True,
    )
    try:
        return process.wait(item.limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return None
    except BaseException:
        # Ctrl-C reaches this process alone: the item has a session of its own
        os.killpg(process.pid, signal.SIGKILL)
        raise
