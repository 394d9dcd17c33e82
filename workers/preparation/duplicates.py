"""Rows that say the same as an earlier one: exactly, or but for a few words.

Candidates come from MinHash signatures in bands (Broder 1997; Leskovec et al., Mining of Massive
Datasets, 3.4) and count only when their exact Jaccard similarity is high enough, so no two rows
become near duplicates by a chance collision.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import rensa

from workers.preparation.texts import RowSides, split_words

#: Compiled code without type stubs.
_minhash = cast(Any, rensa)
_PERMUTATIONS = 128
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


@dataclass(frozen=True, slots=True)
class Duplicate:
    """An earlier row that a row repeats."""

    first: int
    is_exact: bool


#: Rows in which phrases are counted, and the share of them that makes a phrase common.
SAMPLED_ROWS = 2_000
COMMON_SHARE = 0.05
COMMON_ROWS_MIN = 4
#: Words of its own that a side has at least before a similar one counts as the same: in a short
#: text one word is a difference. The second bounds hold where the row's other side is equal.
WORDS_MIN, WORDS_MIN_BESIDE_EQUAL = 20, 8
SIMILARITY_BESIDE_EQUAL = 0.7
#: Two sides of so many words each may have more words edited, at most about one in ten.
WORDS_MIN_LONG = 40
SIMILARITY_LONG = 0.5
#: Candidates from which a row is told apart by its texts.
CANDIDATES_MAX = 32
#: A pair of rows that share half of their phrases is a candidate with probability 0.87.
_ROW_BANDS = 32
_NUMBER = re.compile(r"\b\d+\b")


@dataclass(frozen=True, slots=True)
class CommonPhrases:
    """Word triples that many different rows have: templates, instructions, greetings."""

    asked: frozenset[str] = frozenset()
    learnt: frozenset[str] = frozenset()


def find_common_phrases(rows: Sequence[RowSides]) -> CommonPhrases:
    """Count word triples over different rows, each side by itself.

    Parameters
    ----------
    rows
        The data set, or rows of all its parts (``choose_sample``).
    """
    return CommonPhrases(
        asked=_find_common([row.asked for row in rows]),
        learnt=_find_common([row.learnt for row in rows]),
    )


def choose_sample(count: int) -> range:
    """Choose positions of at most ``SAMPLED_ROWS`` rows, evenly over the whole file."""
    return range(0, count, max(1, -(-count // SAMPLED_ROWS)))


def _find_common(texts: Sequence[str]) -> frozenset[str]:
    different = {hash_text(text): text for text in texts if text}
    counts = Counter(shingle for text in different.values() for shingle in build_shingles(text))
    least = max(COMMON_ROWS_MIN, COMMON_SHARE * len(different))
    return frozenset(shingle for shingle, rows in counts.items() if rows >= least)


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of a row as it is compared."""

    whole: bytes
    #: Triples that are not common.
    own: frozenset[str]
    words: int
    numbers: tuple[str, ...]

    def is_like(self, other: _Side, *, similarity: float, words_min: int) -> bool:
        if min(self.words, other.words) < words_min or self.numbers != other.numbers:
            return False
        return compute_jaccard_similarity(self.own, other.own) >= similarity

    def list_new_words(self, other: _Side) -> frozenset[str]:
        """Words of its own phrases that the other side's have not."""
        mine, its = (
            frozenset(word for phrase in side.own for word in phrase.split())
            for side in (self, other)
        )
        return mine - its


@dataclass(frozen=True, slots=True)
class _ComparedSides:
    frame: bytes
    asked: _Side
    learnt: _Side


class DuplicateRows:
    """Finds rows that repeat an earlier one.

    What frames a row (a system prompt, tools) and its label must be equal, and says nothing more:
    rows that share a long system prompt are as different as their questions and answers. Of these,
    phrases that many rows share are left out. Then both sides must be nearly the same, or one equal
    and the other nearly the same. Long sides may differ more, unless one word is new on both: that
    is what the row is about, as in a form letter with another name. Texts with other numbers are
    different.

    Parameters
    ----------
    similarity
        Exact Jaccard similarity of word triples from which two long sides are nearly the same.
    read
        The sides of a key that was added; they are not held here.
    common
        Phrases to leave out.
    """

    def __init__(
        self,
        *,
        similarity: float,
        read: Callable[[int], RowSides],
        common: CommonPhrases | None = None,
    ) -> None:
        self._similarity = similarity
        self._read = read
        self._common = common or CommonPhrases()
        self._exact: dict[tuple[bytes, bytes, bytes], int] = {}
        self._index = _minhash.RMinHashLSH(
            threshold=0.5, num_perm=_PERMUTATIONS, num_bands=_ROW_BANDS
        )
        self._held: OrderedDict[int, _ComparedSides] = OrderedDict()

    def find(self, key: int, row: RowSides) -> Duplicate | None:
        """The first row that this one repeats; otherwise remembers it, for ``None``."""
        sides = self._compare(row)
        first = self._exact.setdefault((sides.frame, sides.asked.whole, sides.learnt.whole), key)
        if first != key:
            return Duplicate(first, is_exact=True)
        own = [f"a {each}" for each in sides.asked.own] + [f"l {each}" for each in sides.learnt.own]
        if not own:
            return None
        signature = _minhash.RMinHash(num_perm=_PERMUTATIONS, seed=_SEED)
        # In an order of their own, so that the signature is the same in every process.
        signature.update(sorted(own))
        for other in sorted(self._index.query(signature))[:CANDIDATES_MAX]:
            if self._is_same(sides, self._load(other)):
                return Duplicate(int(other), is_exact=False)
        self._index.insert(key, signature)
        self._hold(key, sides)
        return None

    def _is_same(self, one: _ComparedSides, other: _ComparedSides) -> bool:
        if one.frame != other.frame:
            return False
        pairs = ((one.asked, other.asked), (one.learnt, other.learnt))
        # A side without a word, as of plain texts, is no agreement.
        equal = [mine.whole == its.whole and mine.words > 0 for mine, its in pairs]
        if any(equal):
            near, its = pairs[equal.index(True) - 1]
            return near.is_like(
                its, similarity=SIMILARITY_BESIDE_EQUAL, words_min=WORDS_MIN_BESIDE_EQUAL
            )
        sides = [pair for pair in pairs if pair[0].words or pair[1].words]
        if _are_alike(sides, similarity=self._similarity, words_min=WORDS_MIN):
            return True
        if not _are_alike(pairs, similarity=SIMILARITY_LONG, words_min=WORDS_MIN_LONG):
            return False
        asked, learnt = (mine.list_new_words(its) for mine, its in pairs)
        return asked.isdisjoint(learnt)

    def _compare(self, row: RowSides) -> _ComparedSides:
        return _ComparedSides(
            frame=hash_text(f"{row.label}\n{row.frame}"),
            asked=_build_side(row.asked, self._common.asked),
            learnt=_build_side(row.learnt, self._common.learnt),
        )

    def _load(self, key: int) -> _ComparedSides:
        if key in self._held:
            self._held.move_to_end(key)
            return self._held[key]
        sides = self._compare(self._read(key))
        self._hold(key, sides)
        return sides

    def _hold(self, key: int, sides: _ComparedSides) -> None:
        self._held[key] = sides
        if len(self._held) > _SETS_KEPT:
            self._held.popitem(last=False)


def _are_alike(pairs: Iterable[tuple[_Side, _Side]], *, similarity: float, words_min: int) -> bool:
    return all(mine.is_like(its, similarity=similarity, words_min=words_min) for mine, its in pairs)


def _build_side(text: str, common: frozenset[str]) -> _Side:
    own = build_shingles(text) - common if text else frozenset[str]()
    return _Side(
        whole=hash_text(text),
        own=own,
        words=len(split_words(text)),
        numbers=tuple(_NUMBER.findall(text)),
    )
