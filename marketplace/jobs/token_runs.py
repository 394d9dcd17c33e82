"""The tokens of a data set as stretches: enough to count its work for any settings of a job.

A sequence is a list of stretches, each some tokens that the loss does not count and then some that
it does. What of them is left after truncation follows for every sequence length, without reading
the file again. A row of a few messages takes a few dozen bytes, before compression.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.protocol.token_layout import TokenRun
from workers.protocol.work import RowLengths

Counts = NDArray[np.uint32]


@dataclass(frozen=True, slots=True, eq=False)
class TokenRuns:
    """All sequences of a data set, row by row."""

    #: 2 for preferences, else 1.
    sequences_per_row: int
    #: ``uint32[sequences]``: how many stretches each sequence has, at least one.
    stretches: Counts
    #: ``uint32[stretches, 2]``: tokens not counted by the loss, then tokens counted.
    tokens: Counts

    def cut(self, sequence_length: int) -> RowLengths:
        """Give the rows' lengths once sequences are cut at a limit of tokens."""
        if not len(self.stretches):
            empty = np.zeros((0, self.sequences_per_row), dtype=np.int64)
            return RowLengths(empty, empty)
        tokens = self.tokens.astype(np.int64)
        lengths = tokens.sum(axis=1)
        ends = np.cumsum(lengths)
        stretches = self.stretches.astype(np.int64)
        firsts = np.cumsum(stretches) - stretches
        before = np.repeat((ends - lengths)[firsts], stretches)
        trained_from = ends - tokens[:, 1] - before
        trained = np.clip(sequence_length - trained_from, 0, tokens[:, 1])
        shape = (-1, self.sequences_per_row)
        whole = np.add.reduceat(lengths, firsts)
        return RowLengths(
            np.minimum(whole, sequence_length).reshape(shape),
            np.add.reduceat(trained, firsts).reshape(shape),
        )

    def to_bytes(self) -> bytes:
        """Packed, for the database."""
        head = np.array([self.sequences_per_row, len(self.stretches)], dtype="<u4")
        parts = (head, self.stretches.astype("<u4"), self.tokens.astype("<u4").reshape(-1))
        return zlib.compress(b"".join(part.tobytes() for part in parts), level=1)

    @staticmethod
    def from_bytes(packed: bytes) -> TokenRuns:
        """What ``to_bytes`` packed."""
        values = np.frombuffer(zlib.decompress(packed), dtype="<u4")
        sequences_per_row, sequences = int(values[0]), int(values[1])
        return TokenRuns(
            sequences_per_row,
            values[2 : 2 + sequences],
            values[2 + sequences :].reshape(-1, 2),
        )


class TokenRunsBuilder:
    """Collects rows one by one."""

    def __init__(self) -> None:
        self._sequences_per_row = 1
        self._stretches = array("I")
        self._tokens = array("I")
        #: Over all sequences, and of the longest one.
        self.token_count = 0
        self.longest = 0

    def add_row(self, sequences: Sequence[Iterable[TokenRun]]) -> int:
        """Add a row as ``lay_out_rows`` lays it out, and say how long its longest sequence is."""
        self._sequences_per_row = len(sequences)
        longest = 0
        for runs in sequences:
            stretches = [[0, 0]]
            for tokens, train in runs:
                if not train and stretches[-1][1]:
                    stretches.append([0, 0])
                stretches[-1][train] += len(tokens)
            length = sum(map(sum, stretches))
            self.token_count += length
            longest = max(longest, length)
            self._stretches.append(len(stretches))
            for stretch in stretches:
                self._tokens.extend(stretch)
        self.longest = max(self.longest, longest)
        return longest

    def build(self) -> TokenRuns:
        return TokenRuns(
            self._sequences_per_row,
            np.array(self._stretches, dtype=np.uint32),
            np.array(self._tokens, dtype=np.uint32).reshape(-1, 2),
        )
