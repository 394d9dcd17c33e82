"""What a data set is about, in a few numbers that say nothing of any row.

Hashed counts of three-letter pieces (feature hashing with signs, Weinberger et al. 2009), of what
is given and of what is learnt, each part of length one. Two data sets of one task point the same
way; no row can be read off them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from workers.protocol.records import Row

Features = NDArray[np.float32]

#: Numbers of the learnt part and of the given part.
LEARNT, GIVEN = 48, 16
WIDTH = LEARNT + GIVEN
#: Rows and characters of one that are looked at.
ROWS_MAX, CHARS_MAX = 256, 400
_PIECE = 3


def compute_features(rows: Iterable[Row]) -> Features:
    """The features of a task, ``float32[WIDTH]`` of length one, or zero for no text.

    Parameters
    ----------
    rows
        Of the data set; the first ``ROWS_MAX`` are read.
    """
    learnt, given = np.zeros(LEARNT), np.zeros(GIVEN)
    for number, row in enumerate(rows):
        if number == ROWS_MAX:
            break
        for segment in row.segments:
            _count_pieces(segment.text[:CHARS_MAX], learnt if segment.train else given)
    whole = np.concatenate([_scale(learnt), _scale(given)])
    return _scale(whole).astype(np.float32)


def rank_by_likeness(task: Features, known: NDArray[np.float32]) -> NDArray[np.int64]:
    """Places of the known tasks, the most similar first; the first among equals.

    Parameters
    ----------
    known
        ``float32[N, WIDTH]``.
    """
    return np.argsort(-(known @ task), kind="stable").astype(np.int64)


def _count_pieces(text: str, counts: NDArray[np.float64]) -> None:
    lowered = text.lower()
    for at in range(len(lowered) - _PIECE + 1):
        key = zlib.crc32(lowered[at : at + _PIECE].encode("utf-8", "replace"))
        counts[(key >> 1) % len(counts)] += 1.0 if key & 1 else -1.0


def _scale(values: NDArray[np.float64]) -> NDArray[np.float64]:
    length = float(np.linalg.norm(values))
    return values / length if length else values
