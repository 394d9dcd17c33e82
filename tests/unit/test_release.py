"""A release has one number, which no earlier one has."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from workers.protocol.joining import RELEASE

ROOT = Path(__file__).parents[2]


def run_git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def test_the_changelog_begins_with_the_release_of_market_and_node() -> None:
    numbers = re.findall(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert numbers[0] == RELEASE
    assert len(numbers) == len(set(numbers))


def test_no_other_commit_is_tagged_with_the_number_of_this_tree() -> None:
    """Two wheels of one number are one to pip: nodes would keep the earlier."""
    tagged = run_git("rev-list", "-n", "1", f"v{RELEASE}", "--")
    changed = run_git("diff", "--name-only", tagged, "--", "workers") if tagged else ""
    assert not changed, f"Raise RELEASE: v{RELEASE} is another node."
