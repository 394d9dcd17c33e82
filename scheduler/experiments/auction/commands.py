"""``python -m scheduler auction solve|replay FILE``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from scheduler.experiments.auction.interchange import replay, solve

#: What a file can bring about that is not of the kind the command reads.
_UNREADABLE = (
    *(OSError, ValueError, TypeError, IndexError, AttributeError),
    *(ArithmeticError, RecursionError),
)


def main(argv: Sequence[str]) -> int:
    """Run one auction command.

    Returns
    -------
    int
        0; 2 when the file cannot be read.
    """
    arguments = _parser().parse_args(argv)
    try:
        data = json.loads(Path(arguments.file).read_text(encoding="utf-8"))
        if arguments.command == "solve":
            _print(solve(data))
        else:
            _print(replay(data, policy=arguments.policy))
    except KeyError as error:
        print(f"{arguments.file}: field {error} is missing", file=sys.stderr)
        return 2
    except _UNREADABLE as error:
        print(f"{arguments.file}: {error or type(error).__name__}", file=sys.stderr)
        return 2
    return 0


def _print(value: object) -> None:
    print(json.dumps(value, indent=1))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scheduler auction")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("solve", help="find the best schedule of one task at given prices")
    one.add_argument("file")
    many = commands.add_parser("replay", help="decide a task sequence and print the log")
    many.add_argument("file")
    many.add_argument("--policy", choices=("printed", "residual"), required=True)
    return parser
