"""Pages speak the words of the field: some of ours may not appear on those that customers read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
TEMPLATES = ROOT / "marketplace" / "web" / "templates"
SCRIPTS = ROOT / "frontend" / "web" / "src"
#: What may not appear, and what is said in its place.
FORBIDDEN = {
    r"\blanes?\b": "express, or the market",
    r"\bseats?\b": "a machine, or a place",
    r"\btold\b": "sees, gets a notice",
    r"(?<!auction )\bhouse\b": "the market; the operator where its own machines are meant",
    r"\bvouch": "verified, checked",
    r"\b(a|every|another|public) sum\b": "a fingerprint, or a hash",
    r"not a letter": "unchanged",
    r"append only": "newest first",
    r"\btake it away\b": "export",
    r"\bmake the key\b": "create key",
    r"\bmay come to\b": "limits how much",
    r"\b(anew|whoever|henceforth)\b": "again, who",
}
#: Attributes that people see or hear.
SPOKEN = re.compile(r'(?:title|aria-label|placeholder|hint|action|heads|data-confirm)="([^"]*)"')
_CODE = re.compile(
    r"{#.*?#}|{%.*?%}|{{.*?}}|<!--.*?-->|<(script|style|pattern|svg)\b.*?</\1>", re.DOTALL
)
_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\]|\\.)*)`')
_COMMENT = re.compile(r"/\*.*?\*/|^\s*//.*?$|^import .*?$", re.DOTALL | re.MULTILINE)


def read_template(text: str) -> str:
    """Give what a template shows: its text, and the attributes that are spoken."""
    text = _CODE.sub(" ", text)
    return re.sub(r"<[^>]*>", lambda tag: f" {' '.join(SPOKEN.findall(tag[0]))} ", text)


def read_script(text: str) -> str:
    """Give the strings of a script that have words in them: several, with spaces."""
    strings = ("".join(found) for found in _STRING.findall(_COMMENT.sub("", text)))
    return "\n".join(re.sub(r"\${[^}]*}", "", each) for each in strings if " " in each)


def find_forbidden(text: str) -> list[str]:
    words = " ".join(text.split())
    return [
        f"{found[0]!r} in {words[max(0, found.start() - 40) : found.end() + 40]!r}: say {instead}"
        for pattern, instead in FORBIDDEN.items()
        for found in re.finditer(pattern, words, re.IGNORECASE)
    ]


def list_pages() -> Iterator[tuple[str, str]]:
    for file in sorted(TEMPLATES.rglob("*.html")):
        yield str(file.relative_to(ROOT)), read_template(file.read_text())
    for file in sorted(SCRIPTS.rglob("*.ts")):
        yield str(file.relative_to(ROOT)), read_script(file.read_text())


def test_no_page_says_what_nobody_in_the_field_says() -> None:
    pages = dict(list_pages())
    assert len(pages) > 80
    found = {name: wrong for name, text in pages.items() if (wrong := find_forbidden(text))}
    assert found == {}


@pytest.mark.parametrize(
    "shown",
    [
        "<p>The house failed\n this job.</p>",
        '<c-field hint="Nobody else is told." />',
        "<p>Your browser can compute every {{ x }} sum itself.</p>",
        '<button aria-label="Make the key">x</button>',
    ],
)
def test_the_words_are_found_where_people_read_them(shown: str) -> None:
    assert len(find_forbidden(read_template(shown))) == 1


def test_code_names_and_the_auction_house_are_no_words_of_a_page() -> None:
    page = (
        '{% if lane.seat %}<a class="seat" href="/house">An auction house</a>{# told #}{% endif %}'
    )
    assert find_forbidden(read_template(page)) == []
    assert find_forbidden(read_script('// the house told\nlet seat = "lane";')) == []
    assert len(find_forbidden(read_script("say(`A seat for ${house}.`);"))) == 1
