"""Files that arrive in parts: announced, sent part by part, and put together in an order.

A part whose answer was lost is sent again; the one that is not named at the end is deleted. The
whole goes the way of every upload. A claim, and no lock, holds the parts while they are put
together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial

from django.conf import settings
from django.core.files import File
from django.core.files.storage import default_storage
from django.db import transaction
from django.db.models import Sum

from marketplace.accounts.models import Organisation, User
from marketplace.common.errors import Conflict, UserError
from marketplace.common.ids import new_id
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import list_open_zones
from marketplace.jobs.locks import lock_parted_upload
from marketplace.jobs.models import PartedStatus, PartedUpload, Upload, UploadPart
from marketplace.jobs.services.intake import (
    check_room,
    clean_name,
    lock_room,
    store_upload,
)
from marketplace.jobs.spooling import CHUNK_BYTES, Content, spool_upload
from marketplace.jobs.upload_choices import UploadChoices
from workers.protocol.wire import to_json

#: As OpenAI's.
PART_BYTES_MAX = 64 * 1024**2
PARTS_MAX = 10_000
#: Parts are deleted after this.
PARTED_LIFE = timedelta(hours=24)
#: A claim that was not renewed for this time belongs to a process that is gone. It is renewed at
#: each part; then 2 GB are stored.
CLAIM_LIFE = timedelta(minutes=3)
#: Announced by one organisation and not completed.
PENDING_MAX = 20


def open_parted_upload(
    *, organisation: Organisation, created_by: User | None, name: str, size: int, now: datetime
) -> PartedUpload:
    """Announce a file of this size.

    Raises
    ------
    UserError
        ``file_too_large``, ``storage_full`` or ``too_many_uploads``.
    """
    limit = settings.UPLOAD_BYTES_MAX
    if size > limit:
        raise UserError(
            "file_too_large",
            f"The file is larger than {limit:,} bytes. Send a smaller one.",
            param="bytes",
            status=413,
        )
    with transaction.atomic():
        # Several that are announced at once share one room.
        lock_room(organisation)
        pending = PartedUpload.objects.filter(
            organisation=organisation, status__in=PartedUpload.OPEN
        )
        if pending.count() >= PENDING_MAX:
            raise UserError(
                "too_many_uploads",
                f"{PENDING_MAX} uploads are not completed. Complete or cancel one of them.",
                status=429,
            )
        check_room(organisation, size, now=now)
        return PartedUpload.objects.create(
            organisation=organisation,
            created_by=created_by,
            name=clean_name(name),
            bytes=size,
            created_at=now,
            expires_at=now + PARTED_LIFE,
        )


def find_part_limit(upload_id: str, *, now: datetime) -> int:
    """Bytes that a part of an upload may have; 0: it takes none now."""
    rows = PartedUpload.objects.filter(pk=upload_id.replace("\0", ""), status__in=PartedUpload.OPEN)
    found = rows.filter(expires_at__gt=now).first()
    return 0 if found is None else min(found.bytes, PART_BYTES_MAX)


def add_part(*, upload: PartedUpload, content: Content, now: datetime) -> UploadPart:
    """Store some bytes of a file.

    Raises
    ------
    Conflict
        ``upload_not_pending``.
    UserError
        ``file_empty``, ``file_too_large``, or ``binary_file``.
    """
    _check_pending(upload, now)
    with spool_upload(content, limit_bytes=PART_BYTES_MAX, what="The part") as spooled:
        while chunk := spooled.file.read(CHUNK_BYTES):
            if b"\0" in chunk:
                raise UserError(
                    "binary_file",
                    "The part holds NUL bytes, which no text has. Send JSON lines, CSV or text.",
                    param="data",
                )
        spooled.file.seek(0)
        _check_parts_size(upload, spooled.bytes)
        part = UploadPart(upload=upload, bytes=spooled.bytes, created_at=now)
        part.file.save(part.pk, File(spooled.file), save=False)
    try:
        with transaction.atomic():
            locked = lock_parted_upload(upload.pk)
            _check_pending(locked, now)
            # Others may have come since.
            _check_parts_size(locked, part.bytes)
            part.save(force_insert=True)
    except BaseException:
        part.file.delete(save=False)
        raise
    return part


def _check_parts_size(upload: PartedUpload, size: int) -> None:
    """Each part may come twice, and one more for good measure."""
    held = upload.parts.aggregate(bytes=Sum("bytes"))["bytes"] or 0
    if held + size > 2 * upload.bytes + PART_BYTES_MAX:
        raise UserError(
            "file_too_large",
            f"The parts are more than the {upload.bytes:,} bytes that were announced.",
            param="data",
            status=413,
        )


def complete_parted_upload(
    *,
    upload: PartedUpload,
    part_ids: Sequence[str],
    md5: str | None,
    choices: UploadChoices,
    clock: Callable[[], datetime],
    zone: Zone | None = None,
) -> Upload:
    """Put the parts together in an order, and have the file read; once, however often asked.

    Without a zone, the first one's tokenizer counts the tokens.

    Raises
    ------
    Conflict
        ``upload_not_pending``, or ``upload_joining``: another process is at it.
    UserError
        ``unknown_part``, ``wrong_size`` or ``file_damaged``; the parts stay.
    """
    claim = new_id("claim")
    claimed = _claim_parts(upload.pk, part_ids, claim, clock())
    if isinstance(claimed, Upload):
        return claimed
    mine = PartedUpload.objects.filter(pk=upload.pk, claim=claim, status=PartedStatus.JOINING)

    def renew() -> None:
        if not mine.update(claimed_at=clock()):
            raise _JoinClaimLost

    try:
        return store_upload(
            Upload(
                organisation=upload.organisation,
                uploaded_by=upload.created_by,
                name=upload.name,
                zone=zone or list_open_zones().first(),
                choices=to_json(choices),
                created_at=clock(),
            ),
            _JoinedParts(claimed, md5=md5, renew=renew),
            announced_as=upload.pk,
            on_stored=partial(_complete, upload.pk, claim),
        )
    except _JoinClaimLost:
        raise _build_joining_conflict() from None
    except BaseException:
        mine.update(status=PartedStatus.PENDING, claim="", claimed_at=None)
        raise


def _claim_parts(
    upload_id: str, part_ids: Sequence[str], claim: str, now: datetime
) -> Upload | list[UploadPart]:
    """The parts to put together, now claimed, or the file that they were put together to."""
    with transaction.atomic():
        upload = lock_parted_upload(upload_id)
        if upload.status == PartedStatus.COMPLETED and upload.whole is not None:
            return upload.whole
        _check_pending(upload, now)
        parts = _find_parts(upload, part_ids)
        upload.status, upload.claim, upload.claimed_at = PartedStatus.JOINING, claim, now
        upload.save(update_fields=["status", "claim", "claimed_at"])
    return parts


def _complete(upload_id: str, claim: str, whole: Upload) -> None:
    """Call in the transaction that makes the whole."""
    upload = lock_parted_upload(upload_id)
    if upload.claim != claim or upload.status != PartedStatus.JOINING:
        raise _JoinClaimLost
    upload.status, upload.whole = PartedStatus.COMPLETED, whole  # pyright: ignore[reportAttributeAccessIssue]
    upload.claim = ""
    upload.save(update_fields=["status", "whole", "claim"])
    _delete_parts(upload)


class _JoinClaimLost(Exception):
    """Another process puts the parts together, or has done so."""


def _build_joining_conflict() -> Conflict:
    return Conflict(
        "upload_joining",
        "The parts are being put together. Send the same request again in some seconds.",
        extra={"retry": True},
    )


def _find_parts(upload: PartedUpload, part_ids: Sequence[str]) -> list[UploadPart]:
    """The parts of these ids, in their order."""
    parts = {part.pk: part for part in upload.parts.all()}
    problem = None
    if unknown := [part_id for part_id in part_ids if part_id not in parts]:
        problem = f"The upload has no such part: {unknown[0][:60]!r}."
    elif len(set(part_ids)) < len(part_ids):
        problem = "A part is named twice. Name each once, in the file's order."
    if problem is not None:
        raise UserError("unknown_part", problem, param="part_ids")
    found = [parts[part_id] for part_id in part_ids]
    size = sum(part.bytes for part in found)
    if size != upload.bytes:
        raise UserError(
            "wrong_size",
            f"The parts have {size:,} bytes, and {upload.bytes:,} were announced.",
            param="part_ids",
        )
    return found


class _JoinedParts:
    """The bytes of parts, one part after another; read to their end, they have the hash given."""

    def __init__(
        self, parts: Sequence[UploadPart], *, md5: str | None, renew: Callable[[], None]
    ) -> None:
        self._chunks = self._read_all(parts, md5, renew)

    def read(self, size: int, /) -> bytes:
        """The next bytes, at most a chunk of them; none at the end.

        Raises
        ------
        UserError
            ``file_damaged``, at the end.
        """
        return next(self._chunks, b"")

    def _read_all(
        self, parts: Sequence[UploadPart], md5: str | None, renew: Callable[[], None]
    ) -> Iterator[bytes]:
        digest = hashlib.md5(usedforsecurity=False)
        for part in parts:
            renew()
            with part.file.open("rb") as file:
                while chunk := file.read(CHUNK_BYTES):
                    digest.update(chunk)
                    yield chunk
        if md5 is not None and digest.hexdigest() != md5.lower():
            raise UserError(
                "file_damaged",
                "The parts together have another MD5 hash. Send the damaged one again.",
                param="md5",
            )


def cancel_parted_upload(*, upload: PartedUpload, now: datetime) -> PartedUpload:
    """Delete the parts of a file that will not be completed; twice is no error.

    Raises
    ------
    Conflict
        ``upload_not_pending``: it is completed.
    """
    with transaction.atomic():
        upload = lock_parted_upload(upload.pk)
        if upload.status != PartedStatus.CANCELLED:
            _check_pending(upload, now)
            _end(upload, PartedStatus.CANCELLED)
    return upload


def sweep_parted_uploads(*, now: datetime) -> None:
    """Delete the parts of files that were not completed in time."""
    late = PartedUpload.objects.filter(status__in=PartedUpload.OPEN, expires_at__lte=now)
    for pk in list(late.values_list("pk", flat=True)[:100]):
        with transaction.atomic():
            upload = lock_parted_upload(pk)
            if upload.status in PartedUpload.OPEN and not _is_joined(upload, now):
                _end(upload, PartedStatus.EXPIRED)


def _is_joined(upload: PartedUpload, now: datetime) -> bool:
    """Whether a process puts the parts together now."""
    return (
        upload.status == PartedStatus.JOINING
        and upload.claimed_at is not None
        and upload.claimed_at + CLAIM_LIFE > now
    )


def _check_pending(upload: PartedUpload, now: datetime) -> None:
    """A claim that is not renewed is over: the upload waits to be completed again."""
    if _is_joined(upload, now):
        raise _build_joining_conflict()
    if upload.status == PartedStatus.JOINING:
        upload.status = PartedStatus.PENDING
    is_late = upload.expires_at <= now
    if upload.status != PartedStatus.PENDING or is_late:
        is_late = is_late and upload.status == PartedStatus.PENDING
        status = PartedStatus.EXPIRED if is_late else upload.status
        raise Conflict("upload_not_pending", f"The upload is {status}. Begin a new one.")


def _end(upload: PartedUpload, status: PartedStatus) -> None:
    upload.status = status
    upload.save(update_fields=["status"])
    _delete_parts(upload)


def _delete_parts(upload: PartedUpload) -> None:
    """Call while holding the upload; the files go once that is committed."""
    for part in upload.parts.all():
        transaction.on_commit(partial(default_storage.delete, part.file.name), robust=True)
    upload.parts.all().delete()
