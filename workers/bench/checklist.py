"""``python -m workers.bench checklist --out FOLDER``: all of docs/gpu-checklist.md, in turn.

Each item is a process of its own with a time limit, so that a device error or a hang of one costs
no other. Its output lies in the folder, ``NAME.out`` and ``NAME.err``; ``summary.jsonl`` has a line
for each. What matters most comes first, and no item begins that could take longer than
``--minutes`` in all. Begun again, it goes on after the items that are there. It ends with a table.
The exit status is 0 where every item is good, 1 where one is not, and 3 where some are left to run.
``--small`` runs the first items at small sizes on a CPU, to try the list itself.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import torch

from workers.bench.cases import GPU_CASES
from workers.bench.checks import FAMILY_CHECKS
from workers.bench.memory import RETURNED

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
    #: Nothing else runs where it fails.
    is_needed: bool = False


#: Checks that share a process, and its seconds at most; the list of a GPU begins with these.
_FIRST = {
    "kernels": (("attention", "grouped", "four_bit"), 120),
    "families": (("families.llama", "families.mixtral", "families.gemma3_text"), 120),
    "jobs": (("training", "answers"), 180),
    "memory": (("memory",), 120),
    "limits": (("attach", "out_of_memory", "long_row"), 120),
    "device-error": (("device_error",), 90),
}
#: Cases of speed that come before the rest of the checks.
_FIRST_CASES = 2


def list_items(device: str) -> list[ChecklistItem]:
    """The list in its order: what others rest on comes first, and what takes long is last."""
    bench = (sys.executable, "-m", "workers.bench")
    is_cuda = device.startswith("cuda")
    look = f"{_LOOK};{_LOOK_CUDA}" if is_cuda else _LOOK
    installation = (sys.executable, "-c", look)
    found = [ChecklistItem("installation", installation, 90, is_needed=True)]

    def add_checks(name: str, checks: Sequence[str], limit_s: float) -> None:
        command = (*bench, "check", "--device", device, "--only", ",".join(checks))
        slower = 1 if is_cuda else 5
        found.append(ChecklistItem(name, command, slower * limit_s, RETURNED))

    for name, (checks, limit_s) in _FIRST.items():
        add_checks(name, checks if is_cuda or name != "families" else checks[:1], limit_s)
    if not is_cuda:
        speed = (*bench, "gpu", "--rehearse", "--repeats", "1")
        return [*found, ChecklistItem("speed", speed, 420)]
    speeds = [
        ChecklistItem(
            f"speed-{number:02}",
            (*bench, "gpu", "--repeats", "3", "--minutes", "2", "--only", case.name),
            200,
        )
        for number, case in enumerate(GPU_CASES)
    ]
    found += speeds[:_FIRST_CASES]
    named = {check for checks, _ in _FIRST.values() for check in checks}
    add_checks("group", ["group"], 90)
    add_checks("resume", ["resume"], 120)
    add_checks("more-families", [name for name in FAMILY_CHECKS if name not in named], 480)
    if (_ROOT / _TESTS).is_file():
        tests = ("-m", "pytest", "-c", "tests/gpu.ini", "--rootdir", ".", "-q", str(_TESTS))
        setting = {"FINETENDER_TEST_DEVICE": device}
        found.append(ChecklistItem("tests", (sys.executable, *tests), 420, setting))
    calibrate = (sys.executable, "-m", "workers", "calibrate", "--quick")
    return [*found, *speeds[_FIRST_CASES:], ChecklistItem("calibrate", calibrate, 300)]


_LOOK = (
    "import torch, transformers, peft, safetensors, tokenizers, psutil;"
    "print(torch.__version__, transformers.__version__, peft.__version__)"
)
_LOOK_CUDA = "print(torch.version.cuda, torch.cuda.get_device_name(), torch.cuda.mem_get_info())"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m workers.bench checklist", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for what items print")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--minutes", type=float, default=9.5, help="begin no item that could take longer"
    )
    parser.add_argument(
        "--small", dest="device", action="store_const", const="cpu", help="try it on a CPU"
    )
    parser.add_argument("--only", default="", help="items whose name has this in it")
    parser.add_argument("--again", action="store_true", help="run those again that were not good")
    chosen = parser.parse_args(arguments)
    items = [item for item in list_items(chosen.device) if chosen.only in item.name]
    until = time.monotonic() + 60 * chosen.minutes
    status = run_items(items, out=chosen.out, until=until, again=chosen.again)
    print("\n".join(list_lines(items, out=chosen.out)), flush=True)
    return status


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
        if item.is_needed and not row["ok"]:
            return EXIT_BAD
    return EXIT_GOOD if all(known[item.name]["ok"] for item in items) else EXIT_BAD


#: What of an item's lines stands in the table.
_SHOWN = (
    *("is_used", "losses_off", "gradients_off", "products_off", "off", "off_from_cpu", "answer"),
    *("dense_ms", "run_by_run_ms", "grouped_ms", "tokens", "plain_tokens_per_s", "plain_mfu_4p"),
    *("peak_gb", "plain_peak_gb", "ratio", "in_turn_ratio", "memory_ratio", "predicted_ratio"),
)


def list_lines(items: Sequence[ChecklistItem], *, out: Path) -> Iterator[str]:
    """The table of what has run, as Markdown."""
    known = read_summary(out)
    yield "| Item | Good | Seconds | Figures |"
    yield "|--|--|--|--|"
    for item in items:
        row = known.get(item.name)
        if row is None:
            yield f"| {item.name} | not run | | |"
            continue
        figures = [*_describe(out / f"{item.name}.out"), row.get("said", "")]
        cells = (item.name, "yes" if row["ok"] else "**no**", row["seconds"])
        yield f"| {' | '.join(map(str, cells))} | {'; '.join(filter(None, figures))} |"


def _describe(path: Path) -> Iterator[str]:
    """Least and most of each figure, check by check, and the first line that is not good."""
    checks: dict[str, list[dict[str, Any]]] = {}
    for line in path.read_text(errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            name = str(row.get("check") or row.get("case", ""))
            checks.setdefault(name, []).append(row)
    for name, rows in checks.items():
        figures = [_join(key, [row[key] for row in rows if key in row]) for key in _SHOWN]
        yield " ".join([name, ", ".join(filter(None, figures))]).strip()
        bad = next((row for row in rows if not row.get("ok", "error" not in row)), None)
        if bad is not None:
            yield f"**bad:** `{json.dumps(bad)[:200]}`"


def _join(key: str, values: list[Any]) -> str:
    if not values:
        return ""
    if isinstance(values[0], bool):
        return f"{key} {sum(values)} of {len(values)}"
    if isinstance(values[0], str):
        return f"{key} {values[0]!r}"
    numbers = [value for value in values if value is not None]
    ends = sorted({f"{end:.3g}" for end in (min(numbers), max(numbers))}, key=float)
    return f"{key} {' to '.join(ends)}"


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
