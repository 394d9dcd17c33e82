"""Taking in training data: nothing is kept of a file that cannot be used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from django.conf import settings
from django.core.files import File
from django.db import IntegrityError, transaction

from marketplace.accounts.models import Organisation, User
from marketplace.common.errors import UserError
from marketplace.fleet import base_models
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import list_open_zones
from marketplace.jobs.dataset_reader import Reading, read_dataset
from marketplace.jobs.importing import is_json_list, write_json_lines
from marketplace.jobs.models import Dataset, DatasetTokens
from marketplace.jobs.spooling import Content, SpooledFile, spool_upload

_HEAD_BYTES = 4096
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069/\\]")


def create_dataset(
    *,
    organisation: Organisation,
    name: str,
    content: Content,
    uploaded_by: User | None,
    now: datetime,
    zone: Zone | None = None,
) -> Dataset:
    """Check an upload line by line and store it.

    Parameters
    ----------
    zone
        Whose tokenizer counts; the first open zone's unless named.

    Raises
    ------
    UserError
        ``file_empty``, ``file_too_large`` or ``invalid_dataset``, whose ``extra["errors"]`` name
        the first faulty lines. Nothing is stored then.
    """
    name = _clean_name(name)
    zone = zone or list_open_zones().first()
    with _spool_rows(content) as upload:
        tokenizer = None if zone is None else _load_tokenizer(zone)
        reading = read_dataset(upload.file, name=name, tokenizer=tokenizer)
        _check_reading(reading)
        dataset = Dataset(
            organisation=organisation,
            uploaded_by=uploaded_by,
            name=name,
            sha256=upload.sha256,
            bytes=upload.bytes,
            format=reading.format,
            rows=reading.rows,
            tokens=reading.tokens,
            longest_row_tokens=reading.longest_row_tokens,
            zone=zone,
            faulty=reading.faulty,
            faulty_lines=sorted(set(reading.faulty_lines)),
            errors=reading.errors,
            ignored_keys=reading.ignored_keys,
            created_at=now,
        )
        upload.file.seek(0)
        dataset.file.save(name, File(upload.file, name=name), save=False)
    try:
        dataset.save(force_insert=True)
    except BaseException:
        dataset.file.delete(save=False)
        raise
    return dataset


def is_dataset_counted(*, dataset: Dataset, zone: Zone) -> bool:
    """Whether ``ensure_dataset_tokens`` need not read the file."""
    if dataset.zone_id is not None and _shares_tokenizer(dataset.zone, zone):
        return True
    return DatasetTokens.objects.filter(dataset=dataset, zone=zone).exists()


def ensure_dataset_tokens(*, dataset: Dataset, zone: Zone) -> tuple[int, int]:
    """Tokens of a data set and of its longest row, by a zone's tokenizer; counted once."""
    if dataset.zone_id is not None and _shares_tokenizer(dataset.zone, zone):
        return dataset.tokens, dataset.longest_row_tokens
    counted = DatasetTokens.objects.filter(dataset=dataset, zone=zone).first()
    if counted is None:
        with dataset.file.open("rb") as file:
            reading = read_dataset(
                file,
                name=dataset.name,
                tokenizer=_load_tokenizer(zone),
                skip_lines=frozenset(dataset.faulty_lines),
            )
        counted = DatasetTokens(
            dataset=dataset,
            zone=zone,
            tokens=reading.tokens,
            longest_row_tokens=reading.longest_row_tokens,
        )
        try:
            with transaction.atomic():
                counted.save(force_insert=True)
        except IntegrityError:
            counted = DatasetTokens.objects.get(dataset=dataset, zone=zone)
    return counted.tokens, counted.longest_row_tokens


@contextmanager
def _spool_rows(content: Content) -> Iterator[SpooledFile]:
    """The file as training reads it: the items of a JSON list are written one a line."""
    limit, what = settings.UPLOAD_BYTES_MAX, "The data set"
    with spool_upload(content, limit_bytes=limit, what=what) as upload:
        is_list = is_json_list(upload.file.read(_HEAD_BYTES))
        upload.file.seek(0)
        if not is_list:
            yield upload
            return
        with (
            write_json_lines(upload.file) as lines,
            spool_upload(lines, limit_bytes=limit, what=what) as rewritten,
        ):
            yield rewritten


def _check_reading(reading: Reading) -> None:
    reason = reading.fatal
    if reason is None and reading.rows == 0:
        reason = "No line of the file is a usable row."
    if reason is not None:
        raise UserError(
            "invalid_dataset",
            reason,
            param="file",
            extra={"errors": reading.errors, "faulty": reading.faulty},
        )


def _clean_name(name: str) -> str:
    cleaned = _UNPRINTABLE.sub(" ", name.rpartition("/")[2].rpartition("\\")[2]).strip()[-255:]
    return cleaned or "dataset"


def _load_tokenizer(zone: Zone):
    return base_models.tokenizer(
        zone.tokenizer_source or zone.base_model_source, zone.base_model_revision or None
    )


def _shares_tokenizer(one: Zone | None, other: Zone) -> bool:
    return one is not None and (
        one.pk == other.pk
        or (one.tokenizer_source or one.base_model_source, one.base_model_revision)
        == (other.tokenizer_source or other.base_model_source, other.base_model_revision)
    )
