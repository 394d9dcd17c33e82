"""Logs that earlier versions wrote replay and verify, to the hashes they had then."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.auction.audit.transcripts import verify_transcript
from scheduler.experiments.auction.max_form.policies import LOGGED_POLICIES

DATA = Path(__file__).parents[4] / "data" / "auction"


@pytest.mark.parametrize(
    ("name", "head_hash"),
    [
        (
            "log_residual_2026_11",
            "ce1edb192239ff40b3fcde3d86038da44e0fa9fcd097591b6e1acf48e9afceca",
        ),
        (
            "log_lagrangian_2026_11",
            "0a2c3a0ee94133859c6ddd5116ec35e7efed252947d2557973b0d0da651360cb",
        ),
    ],
)
def test_a_log_of_an_earlier_version_verifies_to_its_old_hash(name: str, head_hash: str) -> None:
    lines = (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    found = verify_transcript(lines, policies=LOGGED_POLICIES)
    assert (found.ok, found.entries, found.head_hash) == (True, 60, head_hash)
    entry, cut = lines[20], lines[:20]
    altered = [*cut, entry.replace('"position": 20', '"position": 21'), *lines[21:]]
    assert not verify_transcript(altered, policies=LOGGED_POLICIES).ok


def test_a_log_that_names_a_retired_policy_needs_it_to_be_given() -> None:
    lines = (DATA / "log_residual_2026_11.jsonl").read_text(encoding="utf-8").splitlines()
    with pytest.raises(ValueError, match="'residual': choose one of lagrangian"):
        verify_transcript(lines)
