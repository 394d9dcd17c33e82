"""``python -m scheduler verify FILE``: replay a transcript and compare every decision."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from scheduler.auction.audit.transcripts import verify_transcript
from scheduler.auction.audit.verify import Verification
from scheduler.auction.audit.witness import read_witness
from scheduler.auction.log.heads import SignedHead

#: As a verification ends where all agrees but for what the log itself names as wrong or as lost.
EXIT_KNOWN_FAULTS = 3
#: What a file can bring about that is no transcript.
_UNREADABLE = (
    *(OSError, ValueError, TypeError, IndexError, AttributeError),
    *(ArithmeticError, RecursionError),
)


def main(argv: Sequence[str]) -> int:
    """Verify a transcript.

    Returns
    -------
    int
        0; 1 when the verification fails; 2 when the file cannot be read; 3 when all agrees but for
        entries that the log itself names as wrong, or as lost.
    """
    arguments = _build_parser().parse_args(argv)
    try:
        witness = _read_witnesses(arguments.witness, keys=arguments.key)
        with Path(arguments.file).open(encoding="utf-8") as lines:
            found = verify_transcript(lines, witness=witness, now=datetime.now(UTC))
    except KeyError as error:
        print(f"{arguments.file}: field {error} is missing", file=sys.stderr)
        return 2
    except _UNREADABLE as error:
        print(f"{arguments.file}: {error or type(error).__name__}", file=sys.stderr)
        return 2
    if found.ok and (other := _find_other_keys(found, arguments.key, witness or [])):
        found = replace(found, ok=False, problem=f"days were promised under other keys: {other}")
    print(json.dumps(asdict(found), indent=1))
    known = (*found.known_faults, *found.lost_heads)
    for each in known:
        print(each, file=sys.stderr)
    if not found.ok:
        return 1
    return EXIT_KNOWN_FAULTS if known else 0


def _find_other_keys(found: Verification, keys: Sequence[str], heads: Sequence[SignedHead]) -> str:
    """Name the keys in promises of days that are none of those given, or of the heads."""
    known = set(keys) or {signed.public_key for signed in heads}
    return ", ".join(sorted(set(found.day_market_keys) - known)) if known else ""


def _read_witnesses(paths: Sequence[str], *, keys: Sequence[str]) -> list[SignedHead] | None:
    """Read the heads of all witness files; ``None`` without a file."""
    if not paths:
        return None
    heads: list[SignedHead] = []
    for path in paths:
        with Path(path).open(encoding="utf-8") as lines:
            heads += read_witness(lines, keys=keys)
    return heads


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scheduler verify", description=__doc__)
    parser.add_argument("file")
    parser.add_argument(
        "--witness",
        action="append",
        default=[],
        metavar="FILE",
        help="signed heads or receipts, one per line: finds a log that was cut or written again",
    )
    parser.add_argument(
        "--key",
        action="append",
        default=[],
        metavar="HEX",
        help="public key of the market; heads signed by other keys are refused",
    )
    return parser
