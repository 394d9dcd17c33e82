"""What a data set holds and what a preparation would do to it, without changing anything."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from workers.preparation.changes import name_kind
from workers.preparation.duplicates import DuplicateRows, choose_sample, find_common_phrases
from workers.preparation.filters import is_repetitive
from workers.preparation.languages import detect_language
from workers.preparation.personal_data import find_personal_data
from workers.preparation.reading import read_raw_rows
from workers.preparation.repair import RowDroppedError, repair_row
from workers.preparation.texts import RowSides, iter_texts, join_texts, read_sides
from workers.protocol.record_types import ByteStream

#: Rows looked at, by default: enough to see what a file is like, few enough to do it at upload.
ROWS_INSPECTED = 20_000
_SIMILARITY = 0.85


@dataclass(frozen=True, slots=True)
class Inspection:
    """Counts over the rows that were looked at."""

    rows: int
    #: Whether the file ended before the limit of rows.
    is_complete: bool
    #: Characters of text in a row: the shortest, the median, the 95th percentile, the longest.
    chars: tuple[int, int, int, int]
    #: Rows by characters of text, ``[at most, rows]``; each second bound is twice as much.
    lengths: list[tuple[int, int]]
    rows_to_repair: int
    rows_unusable: int
    exact_duplicates: int
    near_duplicates: int
    repetitive_rows: int
    #: Rows by ISO 639-1 code; ``?`` where the language is not certain.
    languages: dict[str, int]
    #: Places that look like personal data or secrets, by kind. Names are not looked for.
    personal_data: dict[str, int]
    #: Rows by label, where rows have labels; at most 50, the most frequent first.
    labels: dict[str, int]
    #: Kinds of faults and how many rows have them, most frequent first.
    faults: dict[str, int]


def inspect_dataset(
    stream: ByteStream,
    *,
    max_rows: int = ROWS_INSPECTED,
    roles: Mapping[str, str] | None = None,
) -> Inspection:
    """Count what a preparation would find in the first rows of a file.

    Parameters
    ----------
    roles
        What its owner said of columns.

    Raises
    ------
    UnreadableFileError
        When the file is no text or is empty.
    """
    lengths: list[int] = []
    counts: Counter[str] = Counter()
    languages: Counter[str] = Counter()
    personal: Counter[str] = Counter()
    labels: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    sides: list[RowSides] = []
    is_complete = True
    rows = 0
    for raw in read_raw_rows(stream):
        if rows == max_rows:
            is_complete = False
            break
        rows += 1
        try:
            row = repair_row(raw, to_chat=False, roles=roles)
        except RowDroppedError as dropped:
            counts["unusable"] += 1
            faults[name_kind(str(dropped))] += 1
            continue
        if row.reasons:
            counts["to_repair"] += 1
            faults.update(map(name_kind, row.reasons))
        text = join_texts(row.value)
        lengths.append(len(text))
        sides.append(read_sides(row.value))
        counts["repetitive"] += is_repetitive(text)
        languages[detect_language(text) or "?"] += 1
        for piece in iter_texts(row.value):
            personal.update(finding.kind.value for finding in find_personal_data(piece))
        if label := sides[-1].label:
            labels[label[:64]] += 1
    counts.update(_count_duplicates(sides))
    return Inspection(
        rows=rows,
        is_complete=is_complete,
        chars=_describe_lengths(lengths),
        lengths=_count_lengths(lengths),
        rows_to_repair=counts["to_repair"],
        rows_unusable=counts["unusable"],
        exact_duplicates=counts["exact"],
        near_duplicates=counts["near"],
        repetitive_rows=counts["repetitive"],
        languages=dict(languages.most_common()),
        personal_data=dict(sorted(personal.items())),
        labels=dict(labels.most_common(50)),
        faults=dict(faults.most_common(50)),
    )


def _count_duplicates(sides: list[RowSides]) -> Counter[str]:
    common = find_common_phrases([sides[position] for position in choose_sample(len(sides))])
    earlier = DuplicateRows(similarity=_SIMILARITY, read=sides.__getitem__, common=common)
    found = (earlier.find(key, row) for key, row in enumerate(sides))
    return Counter("exact" if each.is_exact else "near" for each in found if each is not None)


def _count_lengths(lengths: list[int]) -> list[tuple[int, int]]:
    counts = Counter(math.ceil(2 * math.log2(max(1, length))) for length in lengths)
    if not counts:
        return []
    return [(round(2 ** (half / 2)), counts[half]) for half in range(min(counts), max(counts) + 1)]


def _describe_lengths(lengths: list[int]) -> tuple[int, int, int, int]:
    if not lengths:
        return 0, 0, 0, 0
    ordered = sorted(lengths)
    last = len(ordered) - 1
    return ordered[0], ordered[last // 2], ordered[last * 95 // 100], ordered[last]
