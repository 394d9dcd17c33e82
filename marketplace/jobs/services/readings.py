"""Reading uploads, as durable work: what is found becomes a data set, a refusal or a question.

The file is read in a process of its own (``reading_process``).
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

from marketplace.common import clock
from marketplace.common.durable.kinds import Failure, HeldWork
from marketplace.common.durable.services import NewWork, enqueue_work, extend_lease
from marketplace.common.errors import StorageUnavailable, UserError
from marketplace.common.ids import rename_id
from marketplace.fleet.selectors import find_zone_tokenizer
from marketplace.jobs.dataset_reader import Reading
from marketplace.jobs.dataset_tokens import store_dataset_tokens
from marketplace.jobs.locks import lock_upload
from marketplace.jobs.models import Dataset, Upload, UploadStatus
from marketplace.jobs.reading_process import FileToRead, read_in_process
from marketplace.jobs.repairing import REPAIR_WALL_S, open_repaired
from marketplace.jobs.spooling import CHUNK_BYTES, spool_upload
from marketplace.jobs.upload_choices import ASK, LEAVE_OUT, REFUSE, UploadChoices, get_choices

log = logging.getLogger(__name__)

#: Also the name of the Celery task.
READ = "jobs.read_uploads"
#: The work that follows: a report on what is in the data.
INSPECT = "vendors.inspect"
#: A storage that does not answer is asked again after this, and no attempt counts.
STORAGE_ASKED_AGAIN = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class ReadUpload:
    """What was found in an upload that is not refused."""

    reading: Reading
    #: Its file is stored, its row is not; ``None``: its owner has to choose something first.
    dataset: Dataset | None = None
    #: ``TokenRuns``, packed.
    runs: bytes = b""


def load_upload(work: HeldWork) -> Upload | None:
    """Find the upload, and show its owner that it is being read."""
    unread = [UploadStatus.WAITING, UploadStatus.READING]
    found = Upload.objects.filter(pk=work.key, status__in=unread)
    found.update(status=UploadStatus.READING, rows_read=0, share_read=0.0)
    return found.select_related("organisation", "uploaded_by", "zone").first()


def read_upload(work: HeldWork, upload: Upload) -> ReadUpload | UserError | StorageUnavailable:
    """Read the file; gives why it is refused, or why it could not be fetched, as a value."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            return _read_upload(work, upload, Path(folder))
    except (UserError, StorageUnavailable) as reason:
        return reason


def _read_upload(work: HeldWork, upload: Upload, folder: Path) -> ReadUpload:
    source, rewritten, runs = folder / "upload", folder / "rewritten", folder / "runs"
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
    reading, is_rewritten = _read(asked, choices, partial(_note_progress, work))
    found = FoundFile(
        reading,
        rewritten if is_rewritten else source,
        runs,
        is_rewritten=is_rewritten,
        repaired=_repair(asked, reading, choices),
    )
    if found.repaired is not None and _is_unusable(reading):
        found = replace(found, file=source, is_rewritten=False)
    return _store_file(upload, found)


def _note_progress(work: HeldWork, rows: int, share: float) -> None:
    # A large file takes longer than the lease.
    if extend_lease(work, now=clock.now()):
        Upload.objects.filter(pk=work.key).update(rows_read=rows, share_read=share)


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
    asked: FileToRead, choices: UploadChoices, on_progress: Callable[[int, float], None]
) -> tuple[Reading, bool]:
    try:
        return read_in_process(asked, on_progress=on_progress)
    except UserError as refusal:
        if refusal.code != "invalid_dataset" or choices.faulty_lines == REFUSE:
            raise
        return Reading(fatal=refusal.message), False


def _repair(asked: FileToRead, reading: Reading, choices: UploadChoices) -> RepairedFile | None:
    """The file repaired, where a vendor may have to: a price is counted from it."""
    if _is_unusable(reading):
        is_table = bool(reading.columns or choices.columns)
        is_wanted = choices.faulty_lines != REFUSE and not is_table
    else:
        is_left_out = reading.faulty > 0 and choices.faulty_lines == LEAVE_OUT
        is_wanted = is_left_out or bool(reading.left_out_lines)
    if not is_wanted:
        return None
    try:
        with (
            asked.path.open("rb") as stored,
            open_repaired(stored, roles=choices.roles) as (path, beyond),
        ):
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


def _store_file(upload: Upload, found: FoundFile) -> ReadUpload:
    """Store the file of what becomes a data set.

    Raises
    ------
    UserError
        The file cannot be used.
    """
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
            return ReadUpload(reading)
    dataset = build_dataset(upload, reading, now=upload.created_at)
    dataset.needs_preparation = needs_preparation
    dataset.roles = choices.roles if needs_preparation else {}
    dataset.repaired_tokens = 0 if repaired is None else repaired.reading.tokens
    with found.file.open("rb") as content:
        if found.is_rewritten:
            with spool_upload(
                content, limit_bytes=2 * settings.UPLOAD_BYTES_MAX, what="The data set"
            ) as rewritten:
                dataset.sha256, dataset.bytes = rewritten.sha256, rewritten.bytes
        content.seek(0)
        dataset.file.save(upload.name, File(content, name=upload.name), save=False)
    return ReadUpload(reading, dataset, runs)


def discard_reading(result: ReadUpload | UserError | StorageUnavailable) -> None:
    """Delete the file of a data set that is not stored."""
    if isinstance(result, ReadUpload) and result.dataset is not None:
        result.dataset.file.delete(save=False)


def store_reading(
    work: HeldWork,
    upload: Upload,
    result: ReadUpload | UserError | StorageUnavailable,
    *,
    now: datetime,
) -> datetime | None:
    """Make the upload a data set, a refusal, or a question to its owner."""
    held = lock_upload(upload.pk)
    if held is None:
        # Its owner's data were deleted meanwhile.
        discard_reading(result)
    elif isinstance(result, StorageUnavailable):
        log.warning("the file of upload %s could not be fetched: %s", upload.pk, result)
        held.status = UploadStatus.WAITING
        held.save(update_fields=["status"])
        return now + STORAGE_ASKED_AGAIN
    elif isinstance(result, UserError):
        _refuse(held, result)
    elif result.dataset is None:
        Upload.objects.filter(pk=held.pk).update(
            status=UploadStatus.UNDECIDED, reading=asdict(result.reading), share_read=1.0
        )
    else:
        dataset, reading = result.dataset, result.reading
        dataset.created_at = now
        dataset.save(force_insert=True)
        if held.zone is not None:
            store_dataset_tokens(dataset=dataset, zone=held.zone, reading=reading, runs=result.runs)
        _close(held, status=UploadStatus.STORED, reading=asdict(reading), dataset=dataset)
        enqueue_work(NewWork(INSPECT, dataset.pk, due_at=now, owner=held.organisation_id))
    return None


def fail_reading(work: HeldWork, failure: Failure, *, now: datetime) -> None:
    """Refuse the file once nothing more is tried."""
    held = lock_upload(work.key)
    if held is not None and failure.retry_at is None:
        error = UserError(
            "dataset_unreadable",
            "The market failed to read the file. The fault is ours; upload it again later.",
            status=500,
        )
        _refuse(held, error)


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
    is_named = bool(choices.columns or choices.roles)
    if (reading.columns or reading.keys) and choices.asks and not is_named:
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
        reason = f"{reading.faulty:,} {lines} cannot be used. Correct them, or have them left out: "
        reason += "faulty_lines=leave_out."
    if reason is None and reading.long_rows and choices.long_rows == REFUSE:
        rows = "row is" if reading.long_rows == 1 else "rows are"
        reason = f"{reading.long_rows:,} {rows} longer than the model takes, from line "
        reason += f"{reading.long_lines[0]:,} on. Shorten them, or have them cut or left out: "
        reason += "long_rows=cut or leave_out."
    if reason is None:
        return None
    extra = {"errors": reading.errors, "faulty": reading.faulty}
    extra["columns"] = reading.columns or reading.keys
    return UserError("invalid_dataset", reason, param="file", extra=extra)


def _is_open(reading: Reading, choices: UploadChoices) -> bool:
    """Whether a person has to choose before this is a data set."""
    return bool(
        _is_unusable(reading)
        or (reading.faulty and choices.faulty_lines == ASK)
        or (reading.long_rows and choices.long_rows == ASK)
    )


def _refuse(held: Upload, refusal: UserError) -> None:
    """Call while holding the upload."""
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
    upload.status, upload.file.name, upload.share_read = status, "", 1.0
    for name, value in result.items():
        setattr(upload, name, value)
    upload.save()


def delete_file(name: str | None) -> None:
    """Delete a stored file; one that is gone already is no fault."""
    if name:
        default_storage.delete(name)
