"""The list of attacks names tests that there are."""

from __future__ import annotations

from pathlib import Path

from tests.attacks import ATTACKS

ROOT = Path(__file__).parents[2]


def test_every_attack_has_its_tests() -> None:
    listed = [path for paths in ATTACKS.values() for path in paths]
    assert [path for path in listed if not (ROOT / path).is_file()] == []
    assert len(set(listed)) == len(listed)
