"""Validation data beside data to train on: of one format, with known labels and no row in both.

A row that stands in both would be measured after it was learned, and the validation loss would
say nothing. Each pair of data sets is compared once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b

import numpy as np

from marketplace.common.errors import UserError
from marketplace.jobs.models import Dataset, HeldOutCheck
from workers.protocol.job_spec import DataFormat
from workers.protocol.records import Row, read_rows

#: Lines of the validation data that a refusal names.
_LINES_NAMED = 5
_LABEL_CHARS = 60


def is_held_out_checked(*, dataset: Dataset, held_out: Dataset) -> bool:
    """Whether ``check_held_out`` need not read the files."""
    return HeldOutCheck.objects.filter(dataset=dataset, held_out=held_out).exists()


def check_held_out(
    *, dataset: Dataset, held_out: Dataset, param: str = "validation_dataset_id"
) -> None:
    """Refuse validation data that do not fit the data to train on.

    ``param`` is what the caller knows them as.

    Raises
    ------
    UserError
        ``unfit_dataset``.
    """
    problem = _find_plain_problem(dataset, held_out)
    if not problem:
        found = HeldOutCheck.objects.filter(dataset=dataset, held_out=held_out).first()
        if found is None:
            found, _ = HeldOutCheck.objects.get_or_create(
                dataset=dataset,
                held_out=held_out,
                defaults={"problem": _compare_rows(dataset, held_out)},
            )
        problem = found.problem
    if problem:
        raise UserError("unfit_dataset", problem, param=param)


def _find_plain_problem(dataset: Dataset, held_out: Dataset) -> str:
    """What is wrong without reading the files; empty for nothing."""
    if held_out.format != dataset.format:
        return (
            f"The validation data are {held_out.format} and the training data {dataset.format}. "
            "Give validation data of the same format."
        )
    if held_out.faulty or held_out.needs_preparation:
        return (
            f"{held_out.faulty:,} lines of the validation data are no rows. Upload them corrected."
        )
    return ""


def _compare_rows(dataset: Dataset, held_out: Dataset) -> str:
    digests, labels = _read_digests(dataset)
    own = np.sort(digests)
    leaks, first_lines = 0, list[int]()
    for row in _read_rows(held_out):
        label = _get_label(row)
        if label is not None and label not in labels:
            return (
                f"Line {row.line:,} of the validation data has the label "
                f"{label[:_LABEL_CHARS]!r}, which no training row has."
            )
        digest = _hash_row(row)
        place = int(np.searchsorted(own, digest))
        if place < len(own) and own[place] == digest:
            leaks += 1
            if len(first_lines) < _LINES_NAMED:
                first_lines.append(row.line)
    if not leaks:
        return ""
    rows = "1 row stands" if leaks == 1 else f"{leaks:,} rows stand"
    lines = ", ".join(f"{line:,}" for line in first_lines)
    return (
        f"{rows} both in the training data and in the validation data, whose loss would say "
        f"nothing about them: line {lines}{' and more' if leaks > _LINES_NAMED else ''} of the "
        "validation data. Take them out of one of the two."
    )


def _read_digests(dataset: Dataset) -> tuple[np.ndarray, set[str]]:
    """A digest of each row, and the labels there are."""
    labels: set[str] = set()

    def hash_rows() -> Iterator[np.uint64]:
        for row in _read_rows(dataset):
            label = _get_label(row)
            if label is not None:
                labels.add(label)
            yield _hash_row(row)

    return np.fromiter(hash_rows(), dtype=np.uint64), labels


def list_labels(dataset: Dataset) -> list[str]:
    """The classes of a data set in the order of their numbers: 2 before 10."""
    found = {label for row in _read_rows(dataset) if (label := _get_label(row)) is not None}
    return sorted(found, key=lambda label: (len(label), label))


def _read_rows(dataset: Dataset) -> Iterator[Row]:
    with dataset.file.open("rb") as file:
        for row in read_rows(
            file,
            format=DataFormat(dataset.format),
            name=dataset.name,
            skip_lines=frozenset(dataset.faulty_lines),
        ):
            if isinstance(row, Row):
                yield row


def _get_label(row: Row) -> str | None:
    if row.format is not DataFormat.CLASSIFICATION:
        return None
    return next(segment.text for segment in row.segments if segment.role == "label")


def _hash_row(row: Row) -> np.uint64:
    """64 bits of a row's content; unread keys, letter case and spaces do not count."""
    said = [[segment.role, segment.text] for segment in (*row.segments, *row.rejected)]
    digest = blake2b(json.dumps(said).encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest))
