"""A worker reads an upload under a claim, and what it finds becomes a data set once.

The file is read in a process of its own (``reading_process``). A worker that dies leaves a claim
that runs out; a result counts only under the current claim.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.files import File
from django.core.files.storage import default_storage
from django.db import transaction
from django.db.models import F, Q, QuerySet

from marketplace.common.errors import MarketFault, StorageUnavailable, UserError
from marketplace.common.ids import new_id, rename_id
from marketplace.fleet.selectors import find_zone_tokenizer
from marketplace.jobs.dataset_reader import Reading
from marketplace.jobs.dataset_tokens import store_dataset_tokens
from marketplace.jobs.locks import lock_first_upload, lock_upload
from marketplace.jobs.models import Dataset, Upload, UploadStatus
from marketplace.jobs.reading_process import WALL_S, FileToRead, read_in_process
from marketplace.jobs.repairing import REPAIR_WALL_S, open_repaired
from marketplace.jobs.spooling import CHUNK_BYTES, spool_upload
from marketplace.jobs.upload_choices import ASK, LEAVE_OUT, REFUSE, UploadChoices, get_choices

log = logging.getLogger(__name__)

#: Uploads read at once, by all workers together: the others have slots to dispatch.
READ_AT_ONCE = 2
ATTEMPTS_MAX = 3
#: A claim without progress for so long belongs to a worker that is gone.
CLAIM_LIFE = timedelta(seconds=WALL_S + 2 * REPAIR_WALL_S + 60)


def read_next_upload(*, clock: Callable[[], datetime]) -> bool:
    """Read the next upload in turn; whether there was one that could be read.

    The oldest comes first, but those of organisations that none is read of before the others.
    """
    upload = _claim(now=clock())
    if upload is None:
        return False
    mine = Upload.objects.filter(pk=upload.pk, claim=upload.claim)
    try:
        with tempfile.TemporaryDirectory() as folder:
            source, rewritten = Path(folder) / "upload", Path(folder) / "rewritten"
            runs = Path(folder) / "runs"
            with upload.file.open("rb") as stored, source.open("wb") as copy:
                shutil.copyfileobj(stored, copy, CHUNK_BYTES)
            choices = get_choices(upload)
            asked = FileToRead(
                path=source,
                output_path=rewritten,
                runs_path=runs,
                name=upload.name,
                tokenizer=upload.zone and find_zone_tokenizer(upload.zone),
                max_tokens=upload.zone and upload.zone.max_sequence_length,
                leaves_out_long=choices.long_rows == LEAVE_OUT,
                columns=choices.columns,
            )
            reading, is_rewritten = _read(asked, choices, mine, clock)
            found = FoundFile(
                reading,
                rewritten if is_rewritten else source,
                runs,
                is_rewritten=is_rewritten,
                repaired=_repair(asked, reading, choices),
            )
            if found.repaired is not None and _is_unusable(reading):
                found = replace(found, file=source, is_rewritten=False)
            _finish(upload, found, now=clock())
    except UserError as refusal:
        _refuse(upload, refusal)
    except StorageUnavailable:
        log.warning("the file of upload %s could not be fetched", upload.pk, exc_info=True)
        _put_back(mine)
        return False
    except MarketFault:
        # The next attempt begins when the claim has run out, until there are no more.
        log.exception("upload %s could not be read", upload.pk)
    return True


def _claim(*, now: datetime) -> Upload | None:
    fresh = now - CLAIM_LIFE
    with transaction.atomic():
        reading = Upload.objects.filter(status=UploadStatus.READING, claimed_at__gt=fresh)
        busy = list(reading.values_list("organisation_id", flat=True))
        if len(busy) >= READ_AT_ONCE:
            return None
        due = Upload.objects.filter(
            Q(status=UploadStatus.WAITING) | Q(status=UploadStatus.READING, claimed_at__lte=fresh)
        ).order_by("created_at", "pk")
        upload = lock_first_upload(due.exclude(organisation__in=busy)) or lock_first_upload(due)
        if upload is None:
            return None
        if upload.attempts >= ATTEMPTS_MAX:
            upload.claim = ""
            upload.save(update_fields=["claim"])
            _refuse(
                upload,
                UserError(
                    "dataset_unreadable",
                    "The market failed to read the file. The fault is ours; upload it again later.",
                    status=500,
                ),
            )
            return None
        upload.status, upload.claim, upload.claimed_at = UploadStatus.READING, new_id("claim"), now
        upload.attempts += 1
        upload.rows_read, upload.share_read = 0, 0.0
        upload.save()
    return upload


def _put_back(mine: QuerySet[Upload]) -> None:
    """It waits for the storage; an attempt that read nothing does not count."""
    mine.update(status=UploadStatus.WAITING, claim="", attempts=F("attempts") - 1)


def _note_progress(mine: QuerySet[Upload], rows: int, share: float, now: datetime) -> None:
    # A large file takes longer than a claim lives.
    mine.update(rows_read=rows, share_read=share, claimed_at=now)


@dataclass(frozen=True, slots=True)
class RepairedFile:
    """The rows of a file as the program that prepares data repairs them, none left out."""

    reading: Reading
    #: ``TokenRuns``, packed.
    runs: bytes
    #: Rows that it cannot repair.
    beyond: int


@dataclass(frozen=True, slots=True)
class FoundFile:
    """What was found in an upload."""

    reading: Reading
    #: What becomes the data set's file, and its stretches of tokens.
    file: Path
    runs: Path
    is_rewritten: bool
    #: ``None`` where there is nothing to repair, or no program can.
    repaired: RepairedFile | None


def _read(
    asked: FileToRead,
    choices: UploadChoices,
    mine: QuerySet[Upload],
    clock: Callable[[], datetime],
) -> tuple[Reading, bool]:
    try:
        return read_in_process(
            asked, on_progress=lambda rows, share: _note_progress(mine, rows, share, clock())
        )
    except UserError as refusal:
        if refusal.code != "invalid_dataset" or choices.faulty_lines == REFUSE:
            raise
        return Reading(fatal=refusal.message), False


def _repair(asked: FileToRead, reading: Reading, choices: UploadChoices) -> RepairedFile | None:
    """The file repaired, where a vendor may have to: a price is counted from it."""
    if _is_unusable(reading):
        is_wanted = choices.faulty_lines != REFUSE and not reading.columns and not choices.columns
    else:
        is_left_out = reading.faulty > 0 and choices.faulty_lines == LEAVE_OUT
        is_wanted = is_left_out or bool(reading.left_out_lines)
    if not is_wanted:
        return None
    try:
        with asked.path.open("rb") as stored, open_repaired(stored) as (path, beyond):
            runs = path.with_suffix(".runs")
            repaired, _ = read_in_process(
                # Its lines are not those of the upload, so none is named as too long.
                replace(
                    asked,
                    path=path,
                    runs_path=runs,
                    name="repaired.jsonl",
                    max_tokens=None,
                    leaves_out_long=False,
                ),
                on_progress=lambda rows, share: None,
                wall_s=REPAIR_WALL_S,
            )
            if _is_unusable(repaired):
                return None
            return RepairedFile(repaired, runs.read_bytes(), beyond + repaired.faulty)
    except UserError as refusal:
        log.info("%s cannot be repaired: %s", asked.path, refusal.message)
        return None


def _is_unusable(reading: Reading) -> bool:
    """Whether no job can train on a file as it is."""
    return reading.fatal is not None or reading.rows == 0


def _finish(upload: Upload, found: FoundFile, *, now: datetime) -> None:
    """What was found becomes a data set, a refusal, or a question; once, under the claim."""
    choices = get_choices(upload)
    reading, repaired = found.reading, found.repaired
    runs = found.runs.read_bytes() if found.runs.exists() else b""
    needs_preparation = _is_unusable(reading) and repaired is not None
    if repaired is not None and needs_preparation:
        # Counted as it will be, and trained on only then.
        reading = replace(
            repaired.reading, faulty=repaired.beyond, faulty_lines=[], errors=reading.errors
        )
        runs = repaired.runs
    else:
        refusal = _find_refusal(reading, choices)
        if refusal is not None:
            raise refusal
        if _is_open(reading, choices):
            Upload.objects.filter(pk=upload.pk, claim=upload.claim).update(
                status=UploadStatus.UNDECIDED, reading=asdict(reading), share_read=1.0
            )
            return
    dataset = build_dataset(upload, reading, now=now)
    dataset.needs_preparation = needs_preparation
    dataset.repaired_tokens = 0 if repaired is None else repaired.reading.tokens
    with found.file.open("rb") as content:
        if found.is_rewritten:
            with spool_upload(
                content, limit_bytes=2 * settings.UPLOAD_BYTES_MAX, what="The data set"
            ) as rewritten:
                dataset.sha256, dataset.bytes = rewritten.sha256, rewritten.bytes
        content.seek(0)
        dataset.file.save(upload.name, File(content, name=upload.name), save=False)
    try:
        with transaction.atomic():
            held = lock_upload(upload.pk)
            if held.claim != upload.claim or held.status != UploadStatus.READING:
                raise _ReadingClaimLost
            dataset.save(force_insert=True)
            if upload.zone is not None:
                store_dataset_tokens(dataset=dataset, zone=upload.zone, reading=reading, runs=runs)
            _close(held, status=UploadStatus.STORED, reading=asdict(reading), dataset=dataset)
    except _ReadingClaimLost:
        dataset.file.delete(save=False)
    except BaseException:
        dataset.file.delete(save=False)
        raise


class _ReadingClaimLost(Exception):
    """Another worker reads the upload, or has read it."""


def build_dataset(upload: Upload, reading: Reading, *, now: datetime) -> Dataset:
    """The data set that an upload was found to be, without its file."""
    return Dataset(
        # One name for the file from its upload on.
        id=rename_id(upload.pk, "ds"),
        organisation=upload.organisation,
        uploaded_by=upload.uploaded_by,
        name=upload.name,
        sha256=upload.sha256,
        bytes=upload.bytes,
        format=reading.format,
        rows=reading.rows,
        tokens=reading.tokens,
        longest_row_tokens=reading.longest_row_tokens,
        zone=upload.zone,
        faulty=reading.faulty,
        faulty_lines=sorted({*reading.faulty_lines, *reading.left_out_lines}),
        errors=reading.errors,
        ignored_keys=reading.ignored_keys,
        long_rows=reading.long_rows,
        long_lines=reading.long_lines,
        left_out_long=len(reading.left_out_lines),
        created_at=now,
    )


def _find_refusal(reading: Reading, choices: UploadChoices) -> UserError | None:
    """Why a file cannot be used at all, with any choice of its owner."""
    reason = reading.fatal
    if reason is not None and reading.columns and choices.asks and not choices.columns:
        return None
    if reason is None and reading.rows == 0:
        reason = (
            "No line of the file is a usable row, and the program that prepares data can repair "
            "none. Correct one at least: a price is counted from it."
        )
        if choices.faulty_lines == REFUSE:
            reason = "No line of the file is a usable row."
    if reason is None and reading.faulty and choices.faulty_lines == REFUSE:
        lines = "line" if reading.faulty == 1 else "lines"
        reason = f"{reading.faulty:,} {lines} cannot be used. Correct them, or leave them out."
    if reason is None and reading.long_rows and choices.long_rows == REFUSE:
        rows = "row is" if reading.long_rows == 1 else "rows are"
        reason = f"{reading.long_rows:,} {rows} longer than the model takes, from line "
        reason += f"{reading.long_lines[0]:,} on. Shorten them, or let them be cut or left out."
    if reason is None:
        return None
    extra = {"errors": reading.errors, "faulty": reading.faulty, "columns": reading.columns}
    return UserError("invalid_dataset", reason, param="file", extra=extra)


def _is_open(reading: Reading, choices: UploadChoices) -> bool:
    """Whether a person has to choose before this is a data set."""
    return bool(
        reading.fatal is not None
        or (reading.faulty and choices.faulty_lines == ASK)
        or (reading.long_rows and choices.long_rows == ASK)
    )


def _refuse(upload: Upload, refusal: UserError) -> None:
    with transaction.atomic():
        held = lock_upload(upload.pk)
        if held.claim != upload.claim or held.status == UploadStatus.STORED:
            return
        error = {
            "code": refusal.code,
            "message": refusal.message,
            "param": refusal.param,
            "status": refusal.status,
            "extra": refusal.extra,
        }
        # A file that was put right may come under the same key.
        _close(held, status=UploadStatus.REFUSED, error=error, key=None)


def _close(upload: Upload, *, status: UploadStatus, **result: Any) -> None:
    """Call while holding the upload."""
    transaction.on_commit(partial(delete_file, upload.file.name), robust=True)
    upload.status, upload.claim, upload.file.name = status, "", ""
    upload.share_read = 1.0
    for name, value in result.items():
        setattr(upload, name, value)
    upload.save()


def delete_file(name: str | None) -> None:
    """Delete a stored file; one that is gone already is no fault."""
    if name:
        default_storage.delete(name)
