"""One meaning for each word: a class name or a glossary word that is defined twice is refused."""

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("marketplace", "scheduler", "workers")
#: Names that a framework asks for.
ASKED_FOR = {"Command": "management/commands", "Migration": "migrations"}


def list_classes(folder: Path) -> dict[str, list[str]]:
    """Files that define a class outside of other classes, by the class's name."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(folder.rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and ASKED_FOR.get(node.name, "\0") not in place:
                places[node.name].append(place)
    return places


def test_each_class_name_is_defined_once() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for name, found in list_classes(ROOT / package).items():
            places[name] += found
    assert len(places) > 1000
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_each_word_of_the_glossary_is_defined_once() -> None:
    text = (ROOT / "GLOSSARY.md").read_text()
    words = [word.strip(" .:").lower() for word in re.findall(r"\*\*(.+?)\*\*", text)]
    assert len(words) > 150
    assert sorted({word for word in words if words.count(word) > 1}) == []
