"""What a comparison says of a delivery: rows match by words, translations by order."""

from __future__ import annotations

import io
import json

from workers.preparation.comparing import compare_datasets

ENGLISH = [("How are you?", "Fine."), ("Where is it?", "There."), ("What is it?", "A book.")]
GERMAN = [("Wie geht es?", "Gut."), ("Wo ist es?", "Dort."), ("Was ist es?", "Ein Buch.")]


def write(rows: list[tuple[str, str]]) -> io.BytesIO:
    lines = [
        {"messages": [{"role": "user", "content": a}, {"role": "assistant", "content": b}]}
        for a, b in rows
    ]
    return io.BytesIO("\n".join(map(json.dumps, lines)).encode())


def test_a_translation_is_the_same_rows_changed() -> None:
    found = compare_datasets(write(ENGLISH), write(GERMAN), translates=True)
    assert (found.changed, found.added, found.dropped, found.covered) == (3, 0, 0, 3)
    assert [("Wo ist" in after, "Where" in before) for before, after in found.samples["changed"]][
        1
    ] == (True, True)


def test_the_same_rows_are_new_ones_where_no_translation_was_ordered() -> None:
    found = compare_datasets(write(ENGLISH), write(GERMAN))
    assert (found.changed, found.added, found.dropped) == (0, 3, 3)


def test_a_translation_with_more_rows_than_its_original_adds_the_rest() -> None:
    found = compare_datasets(write(ENGLISH[:1]), write([*ENGLISH[:1], *GERMAN]), translates=True)
    assert (found.kept, found.changed, found.added, found.dropped) == (1, 0, 3, 0)
