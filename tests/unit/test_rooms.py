"""Rooms that nothing else may name: what is not product is not reached from it by a string.

The import contracts see imports alone; ``importlib`` and Django's settings take dotted strings.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("scheduler.experiments", "workers.bench", "marketplace.embedded")
NAMED = re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, ROOMS))})(?!\w)")
#: Each command of a package's ``__main__`` is loaded only when it is asked for, and is refused
#: where the package came without the room.
COMMANDS = {
    "scheduler/__main__.py": [
        "scheduler.experiments.attack.ablate",
        "scheduler.experiments.attack.command",
        "scheduler.experiments.auction.commands",
        "scheduler.experiments.merging.commands",
        "scheduler.experiments.reproduce",
        "scheduler.experiments.simulate",
    ],
    "workers/__main__.py": ["workers.bench.__main__"],
}


def list_names(path: Path) -> Iterator[str]:
    """Give the strings of a file that name a room; docstrings say what they like."""
    tree = ast.parse(path.read_text())
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in prose and NAMED.search(node.value):
            yield node.value


def test_no_string_names_a_room_from_outside() -> None:
    found: dict[str, list[str]] = {}
    for package in ("marketplace", "scheduler", "workers"):
        for path in sorted((ROOT / package).rglob("*.py")):
            place = path.relative_to(ROOT).as_posix()
            named = [] if place.startswith(_folders()) else sorted(list_names(path))
            if named:
                found[place] = named
    assert found == COMMANDS


def _folders() -> tuple[str, ...]:
    return tuple(f"{room.replace('.', '/')}/" for room in ROOMS)


def test_the_search_sees_strings_and_not_what_only_looks_like_a_room(tmp_path: Path) -> None:
    path = tmp_path / "odd.py"
    path.write_text(
        '"""See scheduler.experiments."""\n'
        'A = "scheduler.experiments.auction.max_form.policies.RETIRED"\n'
        'B = f"workers.bench.{A}"\n'
        'C = ["marketplace.embedded", "workers.benches", "my.workers.bench"]\n'
    )
    assert sorted(list_names(path)) == [
        "marketplace.embedded",
        "scheduler.experiments.auction.max_form.policies.RETIRED",
        "workers.bench.",
    ]
