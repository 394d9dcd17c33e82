"""Duplicates are rows that say the same, never rows that only look alike to a hash."""

from __future__ import annotations

import random
from typing import Any

import pytest

from workers.preparation.duplicates import (
    CANDIDATES_MAX,
    DuplicateRows,
    build_shingles,
    choose_sample,
    compute_jaccard_similarity,
    find_common_phrases,
    hash_text,
)
from workers.preparation.texts import read_sides

WORDS = [f"word{n}" for n in range(60)]
LONG = " ".join(WORDS)


def test_case_width_and_spaces_make_no_difference() -> None:
    assert hash_text("Hello  World\n") == hash_text("hello \uff57orld")
    assert hash_text("hello world") != hash_text("hello worlds")


def test_one_changed_word_in_sixty_leaves_most_triples() -> None:
    other = LONG.replace("word30", "else")
    assert compute_jaccard_similarity(build_shingles(LONG), build_shingles(other)) == 55 / 61


def test_texts_without_spaces_are_compared_by_characters() -> None:
    text = "東京は日本の首都であり、世界最大の都市圏を有する。" * 3
    assert len(build_shingles(text)) > 20


class Writer:
    """Different texts without end, from a seed."""

    def __init__(self) -> None:
        self.random = random.Random(7)

    def write(self, words: int) -> str:
        return " ".join(f"w{self.random.randrange(5000)}" for _ in range(words))


def chat(asked: str, answer: str, system: str = "") -> dict[str, Any]:
    framed = [{"role": "system", "content": system}] if system else []
    talk = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
    return {"messages": [*framed, *talk]}


def find_rows(rows: list[dict[str, Any]]) -> list[tuple[int, bool] | None]:
    """For each row the earlier one that it repeats, and whether exactly."""
    sides = [read_sides(row) for row in rows]
    common = find_common_phrases([sides[position] for position in choose_sample(len(sides))])
    index = DuplicateRows(similarity=0.85, read=sides.__getitem__, common=common)
    found = [index.find(key, row) for key, row in enumerate(sides)]
    return [None if each is None else (each.first, each.is_exact) for each in found]


@pytest.mark.parametrize("words", [100, 250, 400])
def test_rows_under_one_shared_system_prompt_are_as_different_as_their_words(words: int) -> None:
    writer = Writer()
    system = writer.write(words)
    rows = [chat(writer.write(9), writer.write(12), system) for _ in range(240)]
    assert find_rows(rows) == [None] * 240


def test_rows_under_one_instruction_are_as_different_as_their_inputs() -> None:
    writer = Writer()
    asked = writer.write(90)
    apart = [
        {"instruction": asked, "input": writer.write(15), "output": writer.write(8)}
        for _ in range(200)
    ]
    within = [
        {"prompt": f"{asked} {writer.write(15)}", "completion": writer.write(8)} for _ in range(200)
    ]
    assert find_rows(apart) == [None] * 200
    assert find_rows(within) == [None] * 200


def test_rows_that_repeat_another_name_the_first_whatever_their_case() -> None:
    rows = [chat("Who?", "Ada."), chat("Why?", "So."), chat("who?", "ADA.")]
    assert find_rows(rows) == [None, None, (0, True)]
    assert find_rows([{"text": "A", "label": "x"}, {"text": "a", "label": "y"}]) == [None, None]
    assert find_rows([chat("Who?", "Ada.", "Be kind."), chat("Who?", "Ada.", "Be short.")]) == [
        None,
        None,
    ]


@pytest.mark.parametrize("words", [4, 8, 12, 16])
def test_short_rows_that_differ_in_one_word_are_different(words: int) -> None:
    writer = Writer()
    rows = []
    for _ in range(50):
        asked, answer = writer.write(words).split(), writer.write(words).split()
        rows.append(chat(" ".join(asked), " ".join(answer)))
        asked[words // 2], answer[1] = "other", "else"
        rows.append(chat(" ".join(asked), " ".join(answer)))
    assert find_rows(rows) == [None] * 100


@pytest.mark.parametrize(("words", "answer_changes"), [(20, False), (40, True), (100, True)])
def test_long_rows_that_differ_in_one_word_are_found(words: int, answer_changes: bool) -> None:
    writer = Writer()
    rows = []
    for _ in range(50):
        asked, answer = writer.write(words).split(), writer.write(words).split()
        rows.append(chat(" ".join(asked), " ".join(answer)))
        asked[words // 2] = "other"
        answer[words // 3] = "else" if answer_changes else answer[words // 3]
        rows.append(chat(" ".join(asked), " ".join(answer)))
    found = find_rows(rows)
    assert found[::2] == [None] * 50
    assert found[1::2] == [(2 * n, False) for n in range(50)]


def test_other_numbers_make_another_row() -> None:
    asked = "A shop sells {} boxes a day and each of them holds {} bottles, " * 3
    rows = [chat(asked.format(*[n] * 6), f"It sells {n * n} bottles.") for n in range(2, 30)]
    assert find_rows(rows) == [None] * 28


def test_a_crowd_of_rows_that_are_alike_costs_no_more_than_its_bound_each() -> None:
    writer = Writer()
    half = writer.write(30)
    rows = [{"text": f"{half} {writer.write(30)}"} for _ in range(3)]
    sides = [read_sides(row) for row in rows * 200]
    read: list[int] = []

    class Counted(DuplicateRows):
        def _is_same(self, one: Any, other: Any) -> bool:
            read.append(1)
            return False

    index = Counted(similarity=0.85, read=sides.__getitem__)
    for key, row in enumerate(sides):
        # Made different by their frames, which no signature sees.
        index.find(key, type(row)(f"frame {key}", row.asked, row.learnt, row.label))
    assert len(read) <= CANDIDATES_MAX * len(sides)
