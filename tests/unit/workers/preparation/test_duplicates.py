"""Duplicates are rows that say the same, never rows that only look alike to a hash."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from workers.preparation.duplicates import (
    ExactDuplicates,
    NearDuplicateIndex,
    build_shingles,
    compute_jaccard_similarity,
    hash_text,
)

WORDS = [f"word{n}" for n in range(60)]
LONG = " ".join(WORDS)


def test_case_width_and_spaces_make_no_difference() -> None:
    assert hash_text("Hello  World\n") == hash_text("hello \uff57orld")
    assert hash_text("hello world") != hash_text("hello worlds")


def test_an_exact_duplicate_names_the_first() -> None:
    seen = ExactDuplicates()
    assert [seen.find(n, text) for n, text in enumerate(["a", "b", "A ", "b"])] == [
        None,
        None,
        0,
        1,
    ]


def find_all(texts: list[str], *, similarity: float = 0.85) -> list[int | None]:
    index = NearDuplicateIndex(similarity=similarity, read=texts.__getitem__)
    return [index.find(n, text) for n, text in enumerate(texts)]


def test_one_changed_word_in_sixty_is_a_near_duplicate() -> None:
    other = LONG.replace("word30", "else")
    assert compute_jaccard_similarity(build_shingles(LONG), build_shingles(other)) == 55 / 61
    assert find_all([LONG, other]) == [None, 0]
    assert find_all([LONG, other], similarity=0.95) == [None, None]


def test_other_texts_and_other_labels_are_none() -> None:
    assert find_all([LONG, " ".join(reversed(WORDS))]) == [None, None]
    index = NearDuplicateIndex(similarity=0.85, read=lambda _: LONG)
    assert index.find(0, LONG, label="good") is None
    assert index.find(1, LONG, label="bad") is None
    assert index.find(2, LONG, label="good") == 0


def test_texts_without_spaces_are_compared_by_characters() -> None:
    text = "東京は日本の首都であり、世界最大の都市圏を有する。" * 3
    assert len(build_shingles(text)) > 20
    assert find_all([text, text.replace("世界", "地球", 1)], similarity=0.5) == [None, 0]


@settings(max_examples=60)
@given(st.lists(st.lists(st.sampled_from(WORDS[:12]), min_size=1, max_size=30), max_size=12))
def test_every_near_duplicate_is_one_by_exact_similarity(rows: list[list[str]]) -> None:
    texts = [" ".join(row) for row in rows]
    sets = [build_shingles(text) for text in texts]
    for position, first in enumerate(find_all(texts)):
        if first is not None:
            assert first < position
            assert compute_jaccard_similarity(sets[first], sets[position]) >= 0.85
        else:
            # Equal sets always share every band.
            assert all(sets[position] != earlier for earlier in sets[:position])
