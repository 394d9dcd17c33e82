"""``python -m scheduler merging solve|estimate|replay FILE``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scheduler.experiments.merging.estimates import Estimator
from scheduler.experiments.merging.interchange import estimate, solve
from scheduler.experiments.merging.replay import replay

#: What a file can bring about that is not of the kind the command reads.
_UNREADABLE = (
    *(OSError, ValueError, TypeError, IndexError, AttributeError),
    *(ArithmeticError, RecursionError),
)


def main(argv: Sequence[str]) -> int:
    """Run one merging command.

    Returns
    -------
    int
        0; 2 when the file cannot be read.
    """
    arguments = _parser().parse_args(argv)
    try:
        text = Path(arguments.file).read_text(encoding="utf-8")
        if arguments.command == "replay":
            found = replay(_read_lines(text))
        elif arguments.command == "solve":
            found = solve(
                json.loads(text), form=arguments.form, time_limit_s=arguments.time_limit_s
            )
        else:
            found = estimate(json.loads(text), estimator=Estimator(arguments.estimator))
    except KeyError as error:
        print(f"{arguments.file}: field {error} is missing", file=sys.stderr)
        return 2
    except _UNREADABLE as error:
        print(f"{arguments.file}: {error or type(error).__name__}", file=sys.stderr)
        return 2
    print(json.dumps(found, indent=1))
    return 0


def _read_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scheduler merging")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("solve", help="decide which jobs to merge and what each gets")
    one.add_argument("file")
    one.add_argument(
        "--form", choices=("printed", "runnable", "repaired", "chosen"), default="chosen"
    )
    one.add_argument("--time-limit-s", type=float, default=10.0, help="for the solver")
    two = commands.add_parser("estimate", help="turn profiles into an instance to solve")
    two.add_argument("file")
    two.add_argument("--estimator", choices=[str(e) for e in Estimator], default="probe")
    three = commands.add_parser("replay", help="quote the jobs of a transfer experiment")
    three.add_argument("file", help="lines of python -m workers.bench transfer --out FILE")
    return parser
