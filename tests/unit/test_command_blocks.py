"""Commands that are printed to be pasted end by themselves, and fail where the market refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]
_BLOCK = re.compile(r"^```(?:bash)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: ``-f``, alone or among other letters, or ``--fail-with-body``, which shows a refusal.
_FAILS = re.compile(r"\s-[a-zA-Z]*f[a-zA-Z]*\s|\s--fail")


def read_commands(page: Path) -> list[str]:
    text = "\n".join(_BLOCK.findall(page.read_text())).replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_loop_ends_and_each_request_fails_when_it_is_refused(page: Path) -> None:
    commands = read_commands(page)
    assert [line for line in commands if re.match(r"\s*(while|until) ", line)] == []
    requests = [part for line in commands for part in re.split(r"(?=\bcurl )", line)[1:]]
    # "curl" in a sentence of a block is no command.
    assert [each for each in requests if not _FAILS.search(each)] == []


def test_the_pages_have_such_commands() -> None:
    found = "\n".join(line for page in PAGES for line in read_commands(page))
    assert found.count("curl ") > 10
    assert found.count("$(seq ") == 6
