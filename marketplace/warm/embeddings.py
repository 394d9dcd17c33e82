"""What a data set's text is like, as a vector: near data sets have near vectors.

Words and pairs of words of its first rows, hashed into a few hundred places and signed by another
bit of the hash (feature hashing, Weinberger et al. 2009). No model is needed, so the market makes
it by itself in milliseconds, and nothing of the text can be read from it.
"""

from __future__ import annotations

import itertools
import re
import zlib
from collections import Counter
from collections.abc import Iterable
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from marketplace.jobs.models import Dataset
from marketplace.warm.models import DatasetEmbedding
from workers.protocol.job_spec import DataFormat
from workers.protocol.records import Row, read_rows

WIDTH = 256
#: Rows that are read, and characters of each.
ROWS, ROW_CHARS = 64, 4_000
_WORD = re.compile(r"\w+|[^\w\s]")
Vector = NDArray[np.float32]


def ensure_embedding(dataset: Dataset) -> Vector:
    """The data set's vector, computed when it is first asked for."""
    known = DatasetEmbedding.objects.filter(dataset=dataset).first()
    if known is None:
        vector = embed_texts(_join(row) for row in read_first_rows(dataset, ROWS))
        known, _ = DatasetEmbedding.objects.get_or_create(
            dataset=dataset, defaults={"vector": vector.tobytes()}
        )
    return unpack(known.vector)


def unpack(vector: bytes) -> Vector:
    return np.frombuffer(bytes(vector), dtype=np.float32)


def embed_texts(texts: Iterable[str]) -> Vector:
    """``float32[WIDTH]``: a unit vector, or zeros where there are no words."""
    counts: Counter[str] = Counter()
    for text in texts:
        words = _WORD.findall(text[:ROW_CHARS].lower())
        counts.update(words)
        counts.update(f"{one} {other}" for one, other in itertools.pairwise(words))
    vector = np.zeros(WIDTH, dtype=np.float64)
    for word, count in counts.items():
        digest = zlib.crc32(word.encode())
        sign = 1.0 if digest & 0x80000000 else -1.0
        vector[digest % WIDTH] += sign * np.sqrt(count)
    length = float(np.linalg.norm(vector))
    return (vector / length if length else vector).astype(np.float32)


def read_first_rows(dataset: Dataset, most: int) -> list[Row]:
    """The first usable rows of a data set."""
    rows: list[Row] = []
    with dataset.file.open("rb") as file:
        for row in read_rows(
            cast(BinaryIO, file),
            format=DataFormat(dataset.format),
            name=dataset.name,
            skip_lines=frozenset(dataset.faulty_lines),
        ):
            if isinstance(row, Row):
                rows.append(row)
                if len(rows) == most:
                    break
    return rows


def _join(row: Row) -> str:
    return " ".join(segment.text for segment in row.segments)
