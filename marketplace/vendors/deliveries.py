"""What a vendor delivered, validated: the one way by which prepared data enter the market."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.files import File
from django.db.models.fields.files import FieldFile

from marketplace.common.errors import UserError
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import find_zone_tokenizer
from marketplace.jobs.dataset_reader import Reading
from marketplace.jobs.dataset_tokens import store_dataset_tokens
from marketplace.jobs.models import Dataset
from marketplace.jobs.reading_process import FileToRead, read_in_process
from marketplace.jobs.spooling import spool_upload
from marketplace.vendors.models import Preparation

#: Prepared data may be larger than the raw: chat messages have more signs around each text.
GROWTH_MAX = 4
_SPARE_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Delivery:
    """Files of a vendor and its account of them."""

    training: Path
    #: None when no rows were held out.
    held_out: Path | None
    #: Every change, one JSON object a line; None where the vendor gives no account.
    changes: Path | None
    report: dict[str, Any]
    #: ``workers.preparation.Comparison`` as JSON; None where the account says it all.
    comparison: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class DeliveredRows:
    """A data set with its file stored, not saved yet, and what was read of it."""

    dataset: Dataset
    reading: Reading
    #: ``TokenRuns``, packed.
    runs: bytes

    def save(self, zone: Zone) -> Dataset:
        """Save the data set and its tokens by the zone's tokenizer."""
        self.dataset.save(force_insert=True)
        store_dataset_tokens(dataset=self.dataset, zone=zone, reading=self.reading, runs=self.runs)
        return self.dataset


@dataclass(frozen=True, slots=True)
class DeliveredData:
    """A delivery that may be trained on."""

    training: DeliveredRows
    held_out: DeliveredRows | None

    def delete_files(self) -> None:
        """Take the stored files away again."""
        for rows in (self.training, self.held_out):
            if rows is not None:
                rows.dataset.file.delete(save=False)


@contextmanager
def open_source(preparation: Preparation) -> Iterator[tuple[Path, Path]]:
    """The raw data as a file, and an empty folder; both are gone after the block."""
    with tempfile.TemporaryDirectory(prefix="preparation-") as name:
        folder = Path(name)
        path = folder / "raw"
        _copy(preparation.source.file, path)
        yield path, folder


@contextmanager
def open_submission(preparation: Preparation) -> Iterator[Path]:
    """What was handed in, as a file that is gone after the block."""
    with tempfile.TemporaryDirectory(prefix="submission-") as name:
        path = Path(name) / "submission"
        _copy(preparation.submission, path)
        yield path


def _copy(stored: FieldFile, path: Path) -> None:
    with stored.open("rb") as content, path.open("wb") as copy:
        for chunk in content.chunks():
            copy.write(chunk)


def check_rows(preparation: Preparation, path: Path) -> None:
    """Refuse a file that holds anything but rows to train on, no more of them than were sold.

    Raises
    ------
    UserError
        ``invalid_delivery``.
    """
    limit = compute_delivery_limit(preparation)
    reading, _ = _read(path, preparation.job.zone, limit_bytes=limit)
    _check_count(preparation, reading.rows)


def compute_delivery_limit(preparation: Preparation) -> int:
    """Bytes that a delivered file may have."""
    limit = GROWTH_MAX * preparation.source.bytes + _SPARE_BYTES
    return min(limit, 2 * settings.UPLOAD_BYTES_MAX)


def _check_count(preparation: Preparation, rows: int) -> None:
    if rows > preparation.rows_bound:
        raise _invalid(f"It has {rows:,} rows; {preparation.rows_bound:,} were sold.")


def check_delivery(preparation: Preparation, delivery: Delivery, *, now: datetime) -> DeliveredData:
    """Read what was delivered as any upload is read, and store it if a job may train on it.

    Raises
    ------
    UserError
        ``invalid_delivery``: not one row, a line that is no usable row, a format that the zone's
        model does not learn, more rows than were sold, or a file of another kind.
    """
    source = preparation.source
    limit = compute_delivery_limit(preparation)
    zone = preparation.job.zone
    training, training_runs = _read(delivery.training, zone, limit_bytes=limit)
    held_out, held_out_runs = None, b""
    if delivery.held_out is not None:
        held_out, held_out_runs = _read(delivery.held_out, zone, limit_bytes=limit)
        if held_out.format != training.format:
            raise _invalid("Its held-out rows are of another format than its training rows.")
    _check_count(preparation, training.rows + (held_out.rows if held_out else 0))
    stored = _store(source, training, delivery.training, suffix="prepared", limit=limit, now=now)
    first = DeliveredRows(stored, training, training_runs)
    if held_out is None or delivery.held_out is None:
        return DeliveredData(first, None)
    try:
        beside = _store(
            source, held_out, delivery.held_out, suffix="held out", limit=limit, now=now
        )
    except BaseException:
        stored.file.delete(save=False)
        raise
    return DeliveredData(first, DeliveredRows(beside, held_out, held_out_runs))


def _read(path: Path, zone: Zone, *, limit_bytes: int) -> tuple[Reading, bytes]:
    """What a file holds, and its stretches of tokens, packed."""
    if path.is_symlink() or not path.is_file():
        raise _invalid("It has no file of rows.")
    if path.stat().st_size > limit_bytes:
        raise _invalid(f"It has more than {limit_bytes:,} bytes.")
    with tempfile.TemporaryDirectory(prefix="delivery-") as name:
        runs = Path(name) / "runs"
        try:
            reading, is_rewritten = read_in_process(
                FileToRead(
                    path=path,
                    output_path=Path(name) / "rewritten",
                    runs_path=runs,
                    name="delivery.jsonl",
                    tokenizer=find_zone_tokenizer(zone),
                    max_tokens=None,
                ),
                on_progress=lambda rows, share: None,
            )
        except UserError as refusal:
            raise _invalid(refusal.message) from refusal
        packed = runs.read_bytes() if runs.exists() else b""
    if is_rewritten:
        raise _invalid("It is one JSON list; rows are delivered one JSON object a line.")
    if reading.fatal is not None:
        raise _invalid(reading.fatal)
    if reading.faulty or not reading.rows:
        first = reading.errors[0]["message"] if reading.errors else "It has no rows."
        raise _invalid(f"{reading.faulty:,} of its lines are no usable rows. The first: {first}")
    return reading, packed


def _store(
    source: Dataset, reading: Reading, path: Path, *, suffix: str, limit: int, now: datetime
) -> Dataset:
    """The file in storage, and its data set, which is not saved."""
    with (
        path.open("rb") as content,
        spool_upload(content, limit_bytes=limit, what="The delivery") as spooled,
    ):
        sha256, size = spooled.sha256, spooled.bytes
    name = f"{source.name[:230]} ({suffix})"
    dataset = Dataset(
        organisation_id=source.organisation_id,
        uploaded_by=source.uploaded_by,
        name=name,
        sha256=sha256,
        bytes=size,
        format=reading.format,
        rows=reading.rows,
        tokens=reading.tokens,
        longest_row_tokens=reading.longest_row_tokens,
        zone=source.zone,
        ignored_keys=reading.ignored_keys,
        is_withheld=True,
        created_at=now,
    )
    with path.open("rb") as content:
        dataset.file.save(name, File(content, name=name), save=False)
    return dataset


def _invalid(reason: str) -> UserError:
    return UserError("invalid_delivery", f"The delivery cannot be trained on. {reason}")
