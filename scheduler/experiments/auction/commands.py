"""``python -m scheduler auction solve|replay|verify FILE``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from scheduler.auction.audit.transcripts import verify_transcript
from scheduler.auction.audit.witness import read_witness
from scheduler.auction.log.heads import SignedHead
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
        0; 1 when a verification fails; 2 when the file cannot be read.
    """
    arguments = _parser().parse_args(argv)
    try:
        if arguments.command == "verify":
            witness = _read_witnesses(arguments.witness, keys=arguments.key)
            with Path(arguments.file).open(encoding="utf-8") as lines:
                found = verify_transcript(lines, witness=witness)
            _print(asdict(found))
            return 0 if found.ok else 1
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


def _read_witnesses(paths: Sequence[str], *, keys: Sequence[str]) -> list[SignedHead] | None:
    """Read the heads of all witness files; ``None`` without a file."""
    if not paths:
        return None
    heads: list[SignedHead] = []
    for path in paths:
        with Path(path).open(encoding="utf-8") as lines:
            heads += read_witness(lines, keys=keys)
    return heads


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
    check = commands.add_parser("verify", help="replay a transcript and compare every decision")
    check.add_argument("file")
    check.add_argument(
        "--witness",
        action="append",
        default=[],
        metavar="FILE",
        help="signed heads or receipts, one per line: finds a log that was cut or written again",
    )
    check.add_argument(
        "--key",
        action="append",
        default=[],
        metavar="HEX",
        help="public key of the market; heads signed by other keys are refused",
    )
    return parser
