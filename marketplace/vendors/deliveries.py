"""What a vendor delivered, validated: the one way by which prepared data enter the market."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from pathlib import Path

from django.conf import settings
from django.core.files import File
from django.db.models.fields.files import FieldFile

from marketplace.common.errors import UserError
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import find_zone_tokenizer, get_model_shape
from marketplace.jobs.dataset_reader import Reading
from marketplace.jobs.dataset_tokens import ensure_dataset_tokens, store_dataset_tokens
from marketplace.jobs.models import Dataset
from marketplace.jobs.reading_process import FileToRead, read_in_process
from marketplace.jobs.spooling import spool_upload
from marketplace.vendors.handed_files import Delivery
from marketplace.vendors.models import Preparation
from marketplace.vendors.offers import measure_growth
from marketplace.vendors.plans import find_sold_plan
from marketplace.vendors.skills import Skill
from marketplace.vendors.wishes import parse_wish
from workers.protocol.job_spec import DataFormat

#: Prepared data may be larger than the raw: chat messages have more signs around each text.
GROWTH_MAX = 4
_SPARE_BYTES = 1_000_000
#: Tokens that a delivery may have beyond those sold, at the house's cost: a multiple for corrected
#: texts, another for translated ones, and a number for each row's label or chat markers.
TOKENS_GROWTH_MAX = Fraction(5, 4)
TRANSLATED_GROWTH_MAX = Fraction(2)
ADDED_TOKENS_MAX = 32


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


def copy_file(stored: FieldFile, path: Path) -> None:
    """Write a stored file to a local one."""
    with stored.open("rb") as content, path.open("wb") as copy:
        for chunk in content.chunks():
            copy.write(chunk)


def _take_no_step() -> None:
    """Nothing is kept up meanwhile."""


def check_rows(
    preparation: Preparation, path: Path, *, on_step: Callable[[], None] = _take_no_step
) -> None:
    """Refuse a file that holds anything but rows to train on, or more work than was sold.

    ``on_step`` is called now and then.

    Raises
    ------
    UserError
        ``invalid_delivery``.
    """
    limit = compute_delivery_limit(preparation)
    reading, _ = read_rows(path, preparation.job.zone, limit_bytes=limit, on_step=on_step)
    _check_format(preparation, reading)
    _check_count(preparation, reading.rows)
    most = _compute_tokens_limit(preparation)
    if reading.tokens > most:
        raise _invalid(f"It has {reading.tokens:,} tokens; work for at most {most:,} was sold.")


def compute_delivery_limit(preparation: Preparation) -> int:
    """Bytes that a delivered file may have."""
    limit = GROWTH_MAX * preparation.source.bytes + _SPARE_BYTES
    return min(limit, 2 * settings.UPLOAD_BYTES_MAX)


def _check_count(preparation: Preparation, rows: int) -> None:
    if rows > preparation.rows_bound:
        raise _invalid(f"It has {rows:,} rows; {preparation.rows_bound:,} were sold.")


def _check_format(preparation: Preparation, reading: Reading) -> None:
    """The job was sold for data of its source's format; a program makes chats of it."""
    formats = (preparation.source.format, DataFormat.CHAT)
    encoder = get_model_shape(preparation.job.zone).encoder
    if reading.format not in formats or (reading.format == DataFormat.CLASSIFICATION) != encoder:
        raise _invalid(
            f"Its rows are of the format {reading.format}, which this job does not train on."
        )


def _compute_tokens_limit(preparation: Preparation) -> int:
    """Tokens that rows by people or others may have; more would be training that was not paid."""
    source, zone = preparation.source, preparation.job.zone
    wish = parse_wish(preparation.wish)
    plan = find_sold_plan(wish, dataset=source)
    if plan is None:
        tokens = ensure_dataset_tokens(dataset=source, zone=zone).tokens * measure_growth(source)
    else:
        tokens = Fraction(plan.tokens)
    translates = Skill.TRANSLATION in wish.skills
    growth = TRANSLATED_GROWTH_MAX if translates else TOKENS_GROWTH_MAX
    return math.ceil(growth * tokens) + ADDED_TOKENS_MAX * preparation.rows_bound


def check_delivery(
    preparation: Preparation,
    delivery: Delivery,
    *,
    now: datetime,
    on_step: Callable[[], None] = _take_no_step,
) -> DeliveredData:
    """Read what was delivered as any upload is read, and store it if a job may train on it.

    ``on_step`` is called now and then.

    Raises
    ------
    UserError
        ``invalid_delivery``: not one row, a line that is no usable row, a format that the zone's
        model does not learn, more rows than were sold, or a file of another kind.
    """
    source = preparation.source
    limit = compute_delivery_limit(preparation)
    zone = preparation.job.zone
    training, training_runs = read_rows(delivery.training, zone, limit_bytes=limit, on_step=on_step)
    held_out, held_out_runs = None, b""
    if delivery.held_out is not None:
        on_step()
        held_out, held_out_runs = read_rows(
            delivery.held_out, zone, limit_bytes=limit, on_step=on_step
        )
        if held_out.format != training.format:
            raise _invalid("Its held-out rows are of another format than its training rows.")
    _check_format(preparation, training)
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


def read_rows(
    path: Path,
    zone: Zone,
    *,
    limit_bytes: int,
    on_step: Callable[[], None] = _take_no_step,
) -> tuple[Reading, bytes]:
    """What a file of prepared rows holds, and its stretches of tokens, packed.

    ``on_step`` is called now and then.

    Raises
    ------
    UserError
        ``invalid_delivery``: it holds anything but rows to train on.
    """
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
                on_progress=lambda rows, share: on_step(),
            )
        except UserError as refusal:
            raise _invalid(refusal.message) from refusal
        packed = runs.read_bytes() if runs.exists() else b""
    if is_rewritten:
        raise _invalid("The delivery is one JSON list. Deliver one JSON object a line.")
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
