"""Rows that say the same as an earlier one: exactly, or but for a few words.

Candidates come from MinHash signatures in bands (Broder 1997; Leskovec et al., Mining of Massive
Datasets, 3.4) and count only when their exact Jaccard similarity is high enough, so no two rows
become near duplicates by a chance collision.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, cast

import rensa

from workers.preparation.texts import split_words

#: Compiled code without type stubs.
_minhash = cast(Any, rensa)
_PERMUTATIONS = 128
_BANDS = 16
_SEED = 20_260_101
#: Sets of shingles kept at hand, so that a row compared often is read once.
_SETS_KEPT = 4_096


def hash_text(text: str) -> bytes:
    """Equal for texts that differ in case, width or spaces only."""
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return hashlib.sha256(folded.encode("utf-8", "replace")).digest()


def build_shingles(text: str) -> frozenset[str]:
    """Runs of three words; a shorter text is one shingle."""
    words = split_words(text)
    if len(words) <= 3:
        return frozenset({" ".join(words)})
    return frozenset(map(" ".join, zip(words, words[1:], words[2:], strict=False)))


def compute_jaccard_similarity(left: frozenset[str], right: frozenset[str]) -> float:
    """Share of shingles that two sets have in common, 0 to 1."""
    together = len(left | right)
    return len(left & right) / together if together else 1.0


class NearDuplicateIndex:
    """Finds the first earlier text that a text is a near duplicate of, under the same label.

    Parameters
    ----------
    similarity : float
        Exact Jaccard similarity of word triples from which two texts are near duplicates.
    read : callable
        The text of a key that was added; texts are not held here.
    bands : int
        More bands find pairs that are less alike, among more candidates.

    Notes
    -----
    With 16 bands of 8 rows a pair at similarity 0.85 is a candidate with probability 0.994.
    Memory is about 1 KB for each text.
    """

    def __init__(
        self, *, similarity: float, read: Callable[[int], str], bands: int = _BANDS
    ) -> None:
        self._similarity = similarity
        self._bands = bands
        self._read = read
        self._indexes: dict[str, Any] = {}
        self._sets: OrderedDict[int, frozenset[str]] = OrderedDict()

    def find(self, key: int, text: str, *, label: str = "") -> int | None:
        """The smallest key of a text that is like this one; otherwise adds it, for ``None``."""
        found, shingles, signature = self._search(text, label)
        if found is None:
            self._indexes[label].insert(key, signature)
            self._hold_set(key, shingles)
        return found

    def search(self, text: str, *, label: str = "") -> int | None:
        """The smallest key of a text that is like this one, which is not added."""
        return self._search(text, label)[0]

    def _search(self, text: str, label: str) -> tuple[int | None, frozenset[str], Any]:
        if label not in self._indexes:
            self._indexes[label] = _minhash.RMinHashLSH(
                threshold=self._similarity, num_perm=_PERMUTATIONS, num_bands=self._bands
            )
        shingles = build_shingles(text)
        signature = _minhash.RMinHash(num_perm=_PERMUTATIONS, seed=_SEED)
        # In an order of their own, so that the signature is the same in every process.
        signature.update(sorted(shingles))
        for other in sorted(self._indexes[label].query(signature)):
            if compute_jaccard_similarity(shingles, self._load_set(other)) >= self._similarity:
                return int(other), shingles, signature
        return None, shingles, signature

    def _load_set(self, key: int) -> frozenset[str]:
        if key in self._sets:
            self._sets.move_to_end(key)
            return self._sets[key]
        shingles = build_shingles(self._read(key))
        self._hold_set(key, shingles)
        return shingles

    def _hold_set(self, key: int, shingles: frozenset[str]) -> None:
        self._sets[key] = shingles
        if len(self._sets) > _SETS_KEPT:
            self._sets.popitem(last=False)


class ExactDuplicates:
    """Remembers the first key of each text, whatever its case and spaces."""

    def __init__(self) -> None:
        self._first: dict[Hashable, int] = {}

    def find(self, key: int, text: str) -> int | None:
        """The key of an earlier equal text; otherwise remembers it, for ``None``."""
        first = self._first.setdefault(hash_text(text), key)
        return None if first == key else first


@dataclass(frozen=True, slots=True)
class Duplicate:
    """An earlier row that a row repeats."""

    first: int
    is_exact: bool


class DuplicateRows:
    """Finds rows that repeat an earlier one. A label makes two rows of one text different.

    Parameters
    ----------
    similarity, read
        As ``NearDuplicateIndex``.
    """

    def __init__(self, *, similarity: float, read: Callable[[int], str]) -> None:
        self._exact = ExactDuplicates()
        self._near = NearDuplicateIndex(similarity=similarity, read=read)

    def find(self, key: int, text: str, *, label: str) -> Duplicate | None:
        """The first row that this one repeats; otherwise remembers it, for ``None``."""
        first = self._exact.find(key, f"{label}\n{text}")
        if first is not None:
            return Duplicate(first, is_exact=True)
        first = self._near.find(key, text, label=label)
        return None if first is None else Duplicate(first, is_exact=False)
