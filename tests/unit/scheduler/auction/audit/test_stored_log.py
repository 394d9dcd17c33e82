"""A stored log verifies to the hash that it had: a change of the log's form does not go unseen."""

from __future__ import annotations

import json
from pathlib import Path

from scheduler.auction.audit.transcripts import verify_transcript

LOG = Path(__file__).parents[4] / "data" / "auction" / "log_2026_11.jsonl"
HEAD = "9caaca7d957b9022dddf2589eb0046e469579ee4d0fbd2362c23f54ff1f5cc89"


def test_a_stored_log_verifies_to_its_hash_and_not_once_it_is_altered() -> None:
    lines = LOG.read_text(encoding="utf-8").splitlines()
    found = verify_transcript(lines)
    assert (found.ok, found.entries, found.head_hash) == (True, 99, HEAD)
    entry = json.loads(lines[20])
    altered = [*lines[:20], json.dumps({**entry, "position": 21}), *lines[21:]]
    assert not verify_transcript(altered).ok
