"""``finetender-verify``: check a zone's published log, or what an owner holds of a bid."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from decimal import Decimal, DecimalException
from typing import Any, cast

from .canonical_json import parse_json
from .files import keep_printable, open_lines, read_text
from .proof import PROOF_FORMAT, ProofCheck, check_proof, check_receipt
from .transcript import check_transcript
from .witness import read_witness_files

#: As a check ends where all agrees but for what the log itself names as wrong or as lost.
EXIT_KNOWN_FAULTS = 3
#: What a file can bring about that is none of these.
UNREADABLE = (
    *(OSError, ValueError, TypeError, IndexError, AttributeError, KeyError),
    *(ArithmeticError, RecursionError),
)
_MICROS = 1_000_000


def main(argv: Sequence[str] | None = None) -> int:
    """Check a file.

    Returns
    -------
    int
        0; 1 when something does not hold; 2 when a file cannot be read; 3 when all agrees but for
        entries that the log itself names as wrong, or as lost.
    """
    chosen = _build_parser().parse_args(argv)
    try:
        return chosen.check(chosen)
    except UNREADABLE as error:
        said = str(error) or type(error).__name__
        print(keep_printable(f"{chosen.file}: {said}"), file=sys.stderr)
        return 2


def _check_log(chosen: argparse.Namespace) -> int:
    witness = read_witness_files(chosen.witness, keys=chosen.key)
    with open_lines(chosen.file) as lines:
        found = check_transcript(lines, witness=witness, now=datetime.now(UTC))
    print(json.dumps(asdict(found), indent=1))
    known = (*found.errata, *found.lost_heads)
    for each in known:
        print(keep_printable(str(each)), file=sys.stderr)
    if not found.ok:
        return 1
    return EXIT_KNOWN_FAULTS if known else 0


def _check_bid(chosen: argparse.Namespace) -> int:
    read: Any = parse_json(read_text(chosen.file))
    if not isinstance(read, dict):
        raise ValueError("it is not a JSON object")
    found = _check_held(cast("dict[str, Any]", read), chosen)
    if chosen.json:
        print(json.dumps(asdict(found), indent=1))
    else:
        for step in found.steps:
            print(keep_printable(f"{'ok   ' if step.ok else 'WRONG'} {step.text}"))
    return 0 if found.ok else 1


def _check_held(held: Mapping[str, Any], chosen: argparse.Namespace) -> ProofCheck:
    """Check a receipt or a proof, and where a log is given, that the log says the same."""
    proof = decision = None
    if held.get("format") == PROOF_FORMAT:
        limit = None if chosen.limit is None else float(chosen.limit * _MICROS)
        proof = check_proof(held, limit=limit, keys=chosen.key)
        if chosen.transcript is None or held["receipt"] is None:
            return proof
        decision = next(of for of in held["entries"] if of["position"] == held["position"])
        held = held["receipt"]
    if chosen.transcript is None:
        return check_receipt(held, keys=chosen.key)
    with open_lines(chosen.transcript) as lines:
        found = check_receipt(held, lines, keys=chosen.key, decision=decision)
    return found if proof is None else _join(proof, found)


def _join(proof: ProofCheck, receipt: ProofCheck) -> ProofCheck:
    steps = (*proof.steps, *(step for step in receipt.steps if step not in proof.steps))
    return ProofCheck(proof.ok and receipt.ok, proof.zone, proof.bid_id, steps)


def _read_dollars(text: str) -> Decimal:
    try:
        return Decimal(text.removeprefix("$"))
    except DecimalException:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no price; give dollars such as 4.50"
        ) from None


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="finetender-verify", description=__doc__)
    parsers = parser.add_subparsers(metavar="WHAT", required=True)
    log = parsers.add_parser(
        "transcript",
        help="that a log is one chain, that bids were decided in turn, that witnesses saw it",
    )
    log.set_defaults(check=_check_log)
    add_witness_arguments(log)
    bid = parsers.add_parser("receipt", help="a signed receipt, or the whole proof of a bid")
    bid.set_defaults(check=_check_bid)
    bid.add_argument("file", metavar="FILE")
    bid.add_argument("--limit", type=_read_dollars, help="what you bid, in dollars")
    bid.add_argument("--transcript", metavar="FILE", help="look the receipt up in this log")
    bid.add_argument("--json", action="store_true", help="print every step as JSON")
    _add_key(bid)
    return parser


def add_witness_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a program that checks a log against witnesses."""
    parser.add_argument("file", metavar="FILE")
    parser.add_argument(
        "--witness",
        action="append",
        default=[],
        metavar="FILE",
        help="signed heads or receipts, one per line: finds a log that was cut or written again",
    )
    _add_key(parser)


def _add_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--key",
        action="append",
        default=[],
        type=str.lower,
        metavar="HEX",
        help="public key of the market; what is signed by other keys is refused",
    )


def run() -> None:
    """Check a file as a program of its own."""
    sys.exit(main())
