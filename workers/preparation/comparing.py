"""What a delivery did to a data set: rows kept, changed, left out and added."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from workers.preparation.changes import cut_excerpt
from workers.preparation.duplicates import NearDuplicateIndex, hash_text
from workers.preparation.personal_data import Masker
from workers.preparation.reading import read_raw_rows
from workers.preparation.repair import RowDroppedError, repair_row
from workers.preparation.texts import find_prompt, join_texts, read_label
from workers.protocol.record_types import ByteStream, Limits

#: Of word triples: two rows that share so much are one row that was changed.
SIMILARITY = 0.5
#: A pair at that similarity is a candidate with probability 0.87.
_BANDS = 32
#: Rows shown of each kind.
SAMPLES = 5


@dataclass(frozen=True, slots=True)
class Comparison:
    """Counts of rows of two files, and some of the rows."""

    rows_in: int
    #: Rows of the original that no program can read.
    unusable: int
    #: Different usable rows of the original.
    distinct: int
    rows_out: int
    kept: int
    changed: int
    added: int
    #: Usable rows of the original that are not in the delivery, repetitions included.
    dropped: int
    #: Different usable rows of the original that are in the delivery.
    covered: int
    #: Excerpts ``[before, after]`` of changed rows, and of rows added and left out.
    samples: dict[str, list[list[str]]] = field(default_factory=dict[str, list[list[str]]])


@dataclass(frozen=True, slots=True)
class _ComparedRow:
    value: dict[str, Any]
    text: str
    label: str

    @property
    def key(self) -> bytes:
        return hash_text(f"{self.label}\n{self.text}")


def compare_datasets(
    original: ByteStream, delivered: ByteStream, *, masks: bool = False, translates: bool = False
) -> Comparison:
    """Match the rows of a delivery with those of the original.

    A row is kept where all of its texts are the same but for spaces and case. It is changed if it
    asks the same, or if it shares half of its word triples with a row of the original that the
    delivery does not contain otherwise.

    Parameters
    ----------
    masks
        The delivery was made from the original with personal data replaced.
    translates
        The delivery is a translation, which has no words in common with its original: rows that
        match no other way are matched in their order, and count as changed.

    Raises
    ------
    UnreadableFileError
        When one of the files is no text or is empty.
    """
    counts: Counter[str] = Counter()
    rows = list(_iter_rows(original, counts, masks=masks))
    exact: defaultdict[bytes, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        exact[row.key].append(index)
    distinct = len(exact)
    others: Counter[str] = Counter()
    news = list(_iter_rows(delivered, others, masks=False))
    left = set(range(len(rows)))
    changed_or_added: list[_ComparedRow] = []
    covered: set[bytes] = set()
    kept = 0
    for row in news:
        found = exact.get(row.key)
        if found:
            left.discard(found.pop(0))
            covered.add(row.key)
            kept += 1
        else:
            changed_or_added.append(row)
    pairs, added = _match_changed(rows, left, changed_or_added)
    if translates:
        translated = list(zip(sorted(left), added, strict=False))
        pairs, added = pairs + translated, added[len(translated) :]
        left -= {index for index, _ in translated}
    covered |= {rows[index].key for index, _ in pairs}
    return Comparison(
        rows_in=counts["rows"],
        unusable=counts["unusable"],
        distinct=distinct,
        rows_out=others["rows"],
        kept=kept,
        changed=len(pairs),
        added=len(added),
        dropped=len(left),
        covered=len(covered),
        samples={
            "changed": [[_cut(rows[index]), _cut(row)] for index, row in pairs[:SAMPLES]],
            "added": [["", _cut(row)] for row in added[:SAMPLES]],
            "dropped": [[_cut(rows[index]), ""] for index in sorted(left)[:SAMPLES]],
        },
    )


def _match_changed(
    rows: list[_ComparedRow], left: set[int], news: list[_ComparedRow]
) -> tuple[list[tuple[int, _ComparedRow]], list[_ComparedRow]]:
    """Pairs of an original's index and its changed row, and the rows that are new."""
    asks: defaultdict[bytes, list[int]] = defaultdict(list)
    index = NearDuplicateIndex(similarity=SIMILARITY, read=lambda key: rows[key].text, bands=_BANDS)
    for number in sorted(left):
        asks[hash_text(find_prompt(rows[number].value))].append(number)
        index.find(number, rows[number].text)
    pairs: list[tuple[int, _ComparedRow]] = []
    added: list[_ComparedRow] = []
    for row in news:
        same = asks.get(hash_text(find_prompt(row.value)), [])
        number = next((one for one in same if one in left), None)
        if number is None:
            number = index.search(row.text)
        if number is None or number not in left:
            added.append(row)
            continue
        left.discard(number)
        pairs.append((number, row))
    return pairs, added


def _iter_rows(stream: ByteStream, counts: Counter[str], *, masks: bool) -> Iterator[_ComparedRow]:
    limits = Limits()
    for raw in read_raw_rows(stream, limits=limits):
        counts["rows"] += 1
        try:
            value = repair_row(raw, to_chat=True, limits=limits).value
        except RowDroppedError:
            counts["unusable"] += 1
            continue
        if masks:
            value = Masker().mask_row(value)
        yield _ComparedRow(value, join_texts(value), read_label(value))


def _cut(row: _ComparedRow) -> str:
    return cut_excerpt(json.dumps(row.value, ensure_ascii=False))
