"""One meaning for each word: of class names in a package, and of the glossary's words."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("package", PACKAGES)
def test_each_class_name_is_defined_once_in_a_package(package: str) -> None:
    """Not across packages: that bred synonyms, such as handoff, handover and handout."""
    places = list_classes(ROOT / package)
    assert len(places) > 100
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_each_word_of_the_glossary_is_defined_once() -> None:
    text = (ROOT / "GLOSSARY.md").read_text()
    words = [word.strip(" .:").lower() for word in re.findall(r"\*\*(.+?)\*\*", text)]
    assert len(words) > 150
    assert sorted({word for word in words if words.count(word) > 1}) == []
