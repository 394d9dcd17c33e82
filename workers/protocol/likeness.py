"""Whether two people made the same of a row: equal labels, and texts alike word by word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, cast

#: Two persons seldom write the same words: the share of words in common of texts that agree.
ALIKE_MIN = 0.8


def say_the_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two rows agree, in a time that grows with their length.

    The last text, which is the answer where there is one, is compared by itself too: a short one
    would be lost beside a long question.
    """
    if one == other:
        return True
    texts, its_texts = list(_iter_texts(one)), list(_iter_texts(other))
    return (
        one.get("label") == other.get("label")
        and _are_alike(" ".join(texts), " ".join(its_texts))
        and _are_alike("".join(texts[-1:]), "".join(its_texts[-1:]))
    )


def _are_alike(one: str, other: str) -> bool:
    words, its_words = Counter(one.casefold().split()), Counter(other.casefold().split())
    return 2 * (words & its_words).total() >= ALIKE_MIN * (words.total() + its_words.total())


def _iter_texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for item in cast(dict[str, Any], value).values():
            yield from _iter_texts(item)
    elif isinstance(value, list):
        for item in cast(list[Any], value):
            yield from _iter_texts(item)
    else:
        yield str(value)
