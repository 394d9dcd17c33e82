"""What a delivery did to a data set: rows kept, changed, left out and added, by their ids."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from workers.preparation.changes import cut_excerpt
from workers.preparation.duplicates import build_shingles, compute_jaccard_similarity, hash_text
from workers.preparation.personal_data import BuildMasker
from workers.preparation.reading import RawRow, read_raw_rows
from workers.preparation.repair import RowDroppedError, repair_row
from workers.preparation.texts import find_prompt, join_texts, read_label, read_learnt
from workers.preparation.tracing import ROW_ID, take_row_ids
from workers.protocol.likeness import say_the_same
from workers.protocol.record_types import ByteStream

#: A row that shares this part of its word triples with an original is that row, changed.
SIMILARITY = 0.5
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
    #: Rows that cannot be traced to one of the original: without its id, with one that another row
    #: has, or with a text that has little in common with it.
    added: int
    #: Usable rows of the original that are not in the delivery, repetitions included.
    dropped: int
    #: Different usable rows of the original that are in the delivery.
    covered: int
    #: Rows of the original whose answer the owner knows, and those of them that are delivered so.
    gold: int
    gold_right: int
    #: Excerpts ``[before, after]`` of changed rows, and of rows added and left out.
    samples: dict[str, list[list[str]]] = field(default_factory=dict[str, list[list[str]]])


@dataclass(frozen=True, slots=True)
class _ComparedRow:
    number: int
    text: str
    asks: str
    label: str
    excerpt: str
    #: Hashes of the answers that are learnt; empty where a row is no chat.
    learnt: tuple[bytes, ...] = ()
    is_usable: bool = True

    @property
    def key(self) -> bytes:
        return hash_text(f"{self.label}\n{self.text}")

    def is_changed_to(self, other: _ComparedRow) -> bool:
        """Whether another row is this one with other words in some places."""
        shingles, its = build_shingles(self.text), build_shingles(other.text)
        if not self.is_usable:
            # Signs of broken JSON stand between its words.
            return len(shingles & its) >= SIMILARITY * len(its)
        is_asked_again = bool(self.asks) and hash_text(self.asks) == hash_text(other.asks)
        return is_asked_again or compute_jaccard_similarity(shingles, its) >= SIMILARITY


def compare_datasets(
    original: ByteStream,
    delivered: ByteStream,
    *,
    build_masker: BuildMasker = lambda: None,
    translates: bool = False,
    roles: Mapping[str, str] | None = None,
    gold: ByteStream | None = None,
    gold_is_exact: bool = False,
) -> Comparison:
    """Match each row of a delivery with the row of the original that its id names.

    It is kept where all of its texts are the same but for spaces and case, and the same answers are
    learnt. It is changed if it asks the same, or shares half of its word triples with its original.

    Parameters
    ----------
    build_masker
        Gives what masked a row of the original before it was delivered, if anything did.
    translates
        The delivery is a translation, which has no words in common with its original.
    roles
        ``PreparationSettings.roles`` of the delivery.
    gold
        Some of the rows as they should be, with their ids.
    gold_is_exact
        They are to be delivered word for word; otherwise as another person would say it.

    Raises
    ------
    UnreadableFileError
        When one of the files is no text or is empty.
    """
    found = {row.number: row for row, _ in _iter_rows(read_raw_rows(original), build_masker, roles)}
    given = () if gold is None else take_row_ids(read_raw_rows(gold))
    known = {
        row.number: (row, value)
        for row, value in _iter_rows(given, build_masker, None)
        if row.number in found
    }
    usable = [row for row in found.values() if row.is_usable]
    counts: Counter[str] = Counter()
    samples: dict[str, list[list[str]]] = {"changed": [], "added": [], "dropped": []}
    seen: set[int] = set()
    for row, value in _iter_rows(take_row_ids(read_raw_rows(delivered)), lambda: None, None):
        counts["rows"] += 1
        if row.number in known and row.number not in seen:
            right, answer = known[row.number]
            is_alike = not gold_is_exact and say_the_same(answer, value)
            counts["gold"] += is_alike or right.key == row.key
        before = found.get(row.number)
        if before is None or row.number in seen or not row.is_usable:
            kind = "added"
        elif before.is_usable and (before.key, before.learnt) == (row.key, row.learnt):
            kind = "kept"
        else:
            kind = "changed" if translates or before.is_changed_to(row) else "added"
        counts[kind] += 1
        if kind != "added":
            seen.add(row.number)
        if kind != "kept" and len(samples[kind]) < SAMPLES:
            samples[kind].append(["" if before is None else before.excerpt, row.excerpt])
    left = [row for row in usable if row.number not in seen]
    samples["dropped"] = [[row.excerpt, ""] for row in left[:SAMPLES]]
    return Comparison(
        rows_in=len(found),
        unusable=len(found) - len(usable),
        distinct=len({row.key for row in usable}),
        rows_out=counts["rows"],
        kept=counts["kept"],
        changed=counts["changed"],
        added=counts["added"],
        dropped=len(left),
        covered=len({row.key for row in usable if row.number in seen}),
        gold=len(known),
        gold_right=counts["gold"],
        samples=samples,
    )


def _iter_rows(
    rows: Iterable[RawRow],
    build_masker: BuildMasker,
    roles: Mapping[str, str] | None,
) -> Iterator[tuple[_ComparedRow, dict[str, Any]]]:
    for raw in rows:
        masker = build_masker()
        try:
            value = repair_row(raw, to_chat=True, roles=roles).value
        except RowDroppedError:
            text = raw.text or ""
            text = text if masker is None else masker.mask_text(text)
            yield _ComparedRow(raw.number, text, "", "", cut_excerpt(text), is_usable=False), {}
            continue
        # A key of this name that the owner's file has gives way to the market's.
        value.pop(ROW_ID, None)
        if masker is not None:
            value = masker.mask_row(value)
        excerpt = cut_excerpt(json.dumps(value, ensure_ascii=False))
        text, label = join_texts(value), read_label(value)
        learnt = tuple(map(hash_text, read_learnt(value)))
        yield _ComparedRow(raw.number, text, find_prompt(value), label, excerpt, learnt), value
