"""Pairs of rows that say the same, and pairs that only look alike, each under its kind."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from workers.models import pretraining
from workers.preparation import PreparationSettings
from workers.preparation.duplicates import DuplicateRows, choose_sample, find_common_phrases
from workers.preparation.texts import read_sides

PAIRS = 100
SIMILARITY = PreparationSettings().near_duplicate_similarity
_SYSTEM_WORDS = 120
Row = dict[str, Any]
Pair = tuple[Row, Row]


def load_words() -> list[str]:
    """Everyday English words."""
    text = Path(pretraining.__file__).with_name("everyday.txt").read_text("utf-8")
    return sorted(set(re.findall(r"\b[a-z]{3,9}\b", text)))


class Writer:
    """Texts of everyday words, from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self._words = load_words()

    def write(self, words: int) -> str:
        return " ".join(self.random.choices(self._words, k=words))

    def edit(self, text: str, *, words: int) -> str:
        """The text with some of its words replaced."""
        found = text.split()
        for place in self.random.sample(range(len(found)), words):
            found[place] = self.random.choice(self._words)
        return " ".join(found)


def chat(asked: str, told: str, system: str = "") -> Row:
    first = [{"role": "system", "content": system}] if system else []
    said = [{"role": "user", "content": asked}, {"role": "assistant", "content": told}]
    return {"messages": [*first, *said]}


def _copy_other_case(w: Writer) -> Pair:
    asked, told = w.write(12), w.write(20)
    return chat(asked, told), chat(asked.upper(), f"{told}  ")


def _edit_of_both(w: Writer) -> Pair:
    asked, told = w.write(40), w.write(60)
    return chat(asked, told), chat(w.edit(asked, words=1), w.edit(told, words=1))


def _edit_of_answer(w: Writer) -> Pair:
    asked, told = w.write(12), w.write(40)
    return chat(asked, told), chat(asked, w.edit(told, words=2))


def _edit_of_text(w: Writer) -> Pair:
    text = w.write(120)
    return {"text": text}, {"text": w.edit(text, words=3)}


def _other_greeting(w: Writer) -> Pair:
    asked, told = w.write(30), w.write(30)
    return chat(f"Hello! {asked}", told), chat(f"Good morning, {asked}", told)


def _many_edits(w: Writer) -> Pair:
    asked, told = w.write(60), w.write(60)
    return chat(asked, told), chat(w.edit(asked, words=5), w.edit(told, words=5))


def _other_order(w: Writer) -> Pair:
    first, second, told = w.write(20), w.write(20), w.write(40)
    return chat(f"{first}. {second}.", told), chat(f"{second}. {first}.", told)


def _one_word_of_short_answer(w: Writer) -> Pair:
    asked, told = w.write(12), w.write(7)
    return chat(asked, told), chat(asked, w.edit(told, words=1))


def _other_words(w: Writer) -> Pair:
    return chat(w.write(20), w.write(20)), chat(w.write(20), w.write(20))


def _shared_system(system: str) -> Callable[[Writer], Pair]:
    return lambda w: (
        chat(w.write(9), w.write(12), system),
        chat(w.write(9), w.write(12), system),
    )


def _shared_instruction(instruction: str) -> Callable[[Writer], Pair]:
    def make(w: Writer) -> Pair:
        first, other = (
            {"instruction": instruction, "input": w.write(15), "output": w.write(8)}
            for _ in range(2)
        )
        return first, other

    return make


def _template(w: Writer) -> Pair:
    form = "Write a friendly letter to the {} who asked us about the {} and offer them a {}."
    first, other = (form.format(*w.write(3).split()) for _ in range(2))
    return chat(first, w.write(15)), chat(other, w.write(15))


def _template_answer(w: Writer) -> Pair:
    form = "Thank you for your question about the {}. We are glad to help with your {} today."
    first, other = (form.format(*w.write(2).split()) for _ in range(2))
    return chat(w.write(9), first), chat(w.write(9), other)


def _short_one_word(w: Writer) -> Pair:
    asked, told = w.write(8), w.write(6)
    return chat(asked, told), chat(w.edit(asked, words=1), w.edit(told, words=1))


def _other_number(w: Writer) -> Pair:
    asked, told = w.write(40), w.write(40)
    return chat(f"{asked} 17 {told}", told), chat(f"{asked} 18 {told}", told)


def _form_letter(w: Writer) -> Pair:
    """A letter and its answer with other names in both, in a form that no other pair has."""
    asked, told = (w.write(56).split() for _ in range(2))
    for form in (asked, told):
        for place, slot in enumerate(("{}", "{}", "{}")):
            form.insert(w.random.randrange(place * 19, place * 19 + 19), slot)
    first, other = (w.write(3).split() for _ in range(2))
    one, two = (
        chat(" ".join(asked).format(*names), " ".join(told).format(*names))
        for names in (first, other)
    )
    return one, two


def _opposite_answer(w: Writer) -> Pair:
    asked = w.write(30)
    return chat(asked, f"Yes, {w.write(3)}."), chat(asked, f"No, {w.write(3)}.")


def list_kinds(writer: Writer) -> list[tuple[str, bool, Callable[[Writer], Pair]]]:
    """Each kind's name, whether its pairs say the same, and what makes a pair."""
    system, instruction = writer.write(_SYSTEM_WORDS), writer.write(90)
    return [
        ("copy in other case and spaces", True, _copy_other_case),
        ("a word edited on each of two long sides", True, _edit_of_both),
        ("two of 40 words edited in the answer", True, _edit_of_answer),
        ("three of 120 words edited in a text", True, _edit_of_text),
        ("another greeting before 30 words", True, _other_greeting),
        ("sentences in another order", True, _other_order),
        ("five of 60 words edited on each side", True, _many_edits),
        ("one of seven words edited in the answer", True, _one_word_of_short_answer),
        ("the same said in wholly other words", True, _other_words),
        ("one system prompt of 120 words", False, _shared_system(system)),
        ("one instruction of 90 words, other inputs", False, _shared_instruction(instruction)),
        ("one template of a question, other words in it", False, _template),
        ("one template of an answer, other words in it", False, _template_answer),
        ("short rows with a word's difference on each side", False, _short_one_word),
        ("long rows with another number", False, _other_number),
        ("a form letter with three other names on both sides", False, _form_letter),
        ("one question, the opposite answer", False, _opposite_answer),
    ]


@dataclass(frozen=True, slots=True)
class KindResult:
    """How many pairs of a kind were taken for the same row."""

    name: str
    is_same: bool
    pairs: int
    found: int


def measure_duplicates(
    *, seed: int, pairs: int = PAIRS, similarity: float = SIMILARITY
) -> list[KindResult]:
    """Look for duplicates in all kinds at once, shuffled as in one file."""
    writer = Writer(seed)
    rows: list[tuple[Row, int]] = []
    kinds = list_kinds(writer)
    owners: list[int] = []
    for number, (_, _, make) in enumerate(kinds):
        for _ in range(pairs):
            rows += [(row, len(owners)) for row in make(writer)]
            owners.append(number)
    writer.random.shuffle(rows)
    found = [0] * len(kinds)
    for key, first in _find([row for row, _ in rows], similarity):
        pair, other = rows[key][1], rows[first][1]
        # What is taken for a row of another pair is a mistake too.
        found[owners[pair]] += pair == other or not kinds[owners[pair]][1]
    return [
        KindResult(name, is_same, pairs, count)
        for (name, is_same, _), count in zip(kinds, found, strict=True)
    ]


def _find(rows: list[Row], similarity: float) -> Iterator[tuple[int, int]]:
    sides = [read_sides(row) for row in rows]
    common = find_common_phrases([sides[at] for at in choose_sample(len(sides))])
    index = DuplicateRows(similarity=similarity, read=sides.__getitem__, common=common)
    for key, row in enumerate(sides):
        duplicate = index.find(key, row)
        if duplicate is not None:
            yield key, duplicate.first


def compute_precision_and_recall(results: list[KindResult]) -> tuple[float, float]:
    """Share of what was found that says the same, and share of that which was found."""
    right = sum(each.found for each in results if each.is_same)
    found = sum(each.found for each in results)
    return right / found, right / sum(each.pairs for each in results if each.is_same)


def write_shared_prompt_rows(path: Path, *, rows: int, seed: int) -> None:
    """Chats of different words under one system prompt of 120 words, as a file."""
    writer = Writer(seed)
    system = writer.write(_SYSTEM_WORDS)
    with path.open("w", encoding="utf-8") as out:
        for _ in range(rows):
            out.write(json.dumps(chat(writer.write(9), writer.write(12), system)) + "\n")
