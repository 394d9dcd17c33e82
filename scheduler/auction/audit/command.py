"""``python -m scheduler verify FILE``: replay a transcript and compare every decision."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from scheduler.auction.audit.transcripts import verify_transcript
from scheduler.public_log.command import EXIT_KNOWN_FAULTS, UNREADABLE, add_witness_arguments
from scheduler.public_log.files import keep_printable, open_lines
from scheduler.public_log.witness import read_witness_files


def main(argv: Sequence[str]) -> int:
    """Verify a transcript.

    Returns
    -------
    int
        0; 1 when the verification fails; 2 when the file cannot be read; 3 when all agrees but for
        entries that the log itself names as wrong, or as lost.
    """
    parser = argparse.ArgumentParser(prog="python -m scheduler verify", description=__doc__)
    add_witness_arguments(parser)
    arguments = parser.parse_args(argv)
    try:
        witness = read_witness_files(arguments.witness, keys=arguments.key)
        with open_lines(arguments.file) as lines:
            found = verify_transcript(lines, witness=witness, now=datetime.now(UTC))
    except UNREADABLE as error:
        said = str(error) or type(error).__name__
        print(keep_printable(f"{arguments.file}: {said}"), file=sys.stderr)
        return 2
    print(json.dumps(asdict(found), indent=1))
    known = (*found.known_faults, *found.lost_heads)
    for each in known:
        print(keep_printable(str(each)), file=sys.stderr)
    if not found.ok:
        return 1
    return EXIT_KNOWN_FAULTS if known else 0
