"""Uploads on their way to data sets: stored by a web process, read by a worker, then decided.

``receive_upload`` stores the bytes and asks for a worker; ``readings`` reads them; where a person
has to choose, ``decide_upload`` takes the choice and has the file read once more.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from django.conf import settings
from django.core.files import File
from django.db import connection, transaction
from django.db.models import Sum

from marketplace.accounts.models import Organisation, User
from marketplace.accounts.new_accounts import STORAGE_DIVISOR, filter_new
from marketplace.common.durable.services import NewWork, enqueue_work
from marketplace.common.errors import Conflict, UserError
from marketplace.common.locks import lock_until_commit
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import list_open_zones
from marketplace.jobs.locks import lock_upload
from marketplace.jobs.models import Dataset, PartedUpload, Upload, UploadStatus
from marketplace.jobs.services.readings import READ, delete_file
from marketplace.jobs.spooling import Content, spool_upload
from marketplace.jobs.upload_choices import UploadChoices, check_choices
from workers.protocol.wire import to_json

#: Undecided and finished uploads are deleted after this.
UPLOAD_LIFE = timedelta(hours=24)
#: Who stores a file of an organisation is alone with that.
_ROOM = "jobs.room"
_LOOK_EVERY_S = 0.1
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069/\\]")


def receive_upload(
    *,
    organisation: Organisation,
    name: str,
    content: Content,
    uploaded_by: User | None,
    now: datetime,
    zone: Zone | None = None,
    choices: UploadChoices | None = None,
    key: str | None = None,
) -> Upload:
    """Store a file and have it read.

    Parameters
    ----------
    zone
        The zone whose tokenizer counts the tokens; by default the first open one.
    key
        The request's; a file that came under it before is that upload.

    Raises
    ------
    UserError
        ``file_empty``, ``file_too_large``, ``storage_full``, ``invalid_choice`` or
        ``idempotency_key_reused``. Nothing is stored then.
    """
    choices = choices or UploadChoices()
    check_choices(choices)
    draft = Upload(
        organisation=organisation,
        uploaded_by=uploaded_by,
        name=clean_name(name),
        zone=zone or list_open_zones().first(),
        choices=to_json(choices),
        key=key,
        created_at=now,
    )
    return store_upload(draft, content)


def store_upload(
    upload: Upload,
    content: Content,
    *,
    announced_as: str | None = None,
    on_stored: Callable[[Upload], None] | None = None,
) -> Upload:
    """Store the file of an upload that is not in the database yet, and have it read.

    Parameters
    ----------
    announced_as
        The id of the upload in parts whose whole it is; its room was taken then.
    on_stored
        Called in the transaction that makes the upload; if it raises, nothing is stored.

    Raises
    ------
    UserError
        As ``receive_upload``.
    """
    owner, limit = upload.organisation, settings.UPLOAD_BYTES_MAX
    with spool_upload(content, limit_bytes=limit, what="The data set") as spooled:
        if upload.key is not None:
            earlier = _find_earlier(owner, upload.key, spooled.sha256)
            if earlier is not None:
                return earlier
        check_room(owner, spooled.bytes, now=upload.created_at, announced_as=announced_as)
        upload.sha256, upload.bytes = spooled.sha256, spooled.bytes
        upload.file.save(upload.name, File(spooled.file), save=False)
    try:
        with transaction.atomic():
            lock_room(owner)
            # Others may have come since.
            check_room(owner, upload.bytes, now=upload.created_at, announced_as=announced_as)
            upload.save(force_insert=True)
            if on_stored is not None:
                on_stored(upload)
            _have_it_read(upload, now=upload.created_at)
    except BaseException:
        upload.file.delete(save=False)
        raise
    return upload


def decide_upload(*, upload: Upload, choices: UploadChoices, now: datetime) -> Upload:
    """Take what a person chose, and have the file read once more with it.

    Raises
    ------
    UserError
        ``invalid_choice``.
    Conflict
        ``upload_not_open``: it waits for no decision.
    """
    check_choices(choices)
    with transaction.atomic():
        held = lock_upload(upload.pk)
        if held is None or held.status != UploadStatus.UNDECIDED:
            raise Conflict("upload_not_open", "There is nothing to decide about this upload.")
        held.choices, held.status = to_json(choices), UploadStatus.WAITING
        held.save(update_fields=["choices", "status"])
        _have_it_read(held, now=now)
    return held


def wait_for_upload(upload: Upload, *, within_s: float) -> Upload:
    """Wait until the upload is read, for this many seconds at most, and give it as it is."""
    ends_at = time.monotonic() + within_s
    while True:
        upload = Upload.objects.select_related("dataset", "zone", "organisation").get(pk=upload.pk)
        is_read = upload.status not in (UploadStatus.WAITING, UploadStatus.READING)
        if is_read or time.monotonic() >= ends_at:
            return upload
        if not connection.in_atomic_block:
            connection.close()
        time.sleep(_LOOK_EVERY_S)


def sweep_uploads(*, now: datetime) -> int:
    """Delete old uploads that are done or that nobody decided; how many there were."""
    old = Upload.objects.filter(created_at__lte=now - UPLOAD_LIFE)
    done = old.exclude(status__in=[UploadStatus.WAITING, UploadStatus.READING])
    forgotten = 0
    for upload in done[:1000]:
        name = upload.file.name
        if done.filter(pk=upload.pk).delete()[0]:
            forgotten += 1
            delete_file(name)
    return forgotten


def clean_name(name: str) -> str:
    """A file's name without its path, and without what a page could not show."""
    cleaned = _UNPRINTABLE.sub(" ", name.rpartition("/")[2].rpartition("\\")[2]).strip()[-255:]
    return cleaned or "dataset"


def _find_earlier(organisation: Organisation, key: str, sha256: str) -> Upload | None:
    """The upload that came under a request's key before."""
    earlier = Upload.objects.filter(organisation=organisation, key=key).first()
    if earlier is not None and earlier.sha256 != sha256:
        raise Conflict(
            "idempotency_key_reused",
            "This Idempotency-Key came with another file before. Send a new key with a new file.",
            param="Idempotency-Key",
        )
    return earlier


def lock_room(organisation: Organisation) -> None:
    """Be alone with what an organisation has stored until the transaction ends."""
    lock_until_commit(_ROOM, organisation.pk)


def check_room(
    organisation: Organisation, size: int, *, now: datetime, announced_as: str | None = None
) -> None:
    """Refuse what an organisation has no room for, beside what it announced in parts."""
    announced = PartedUpload.objects.filter(organisation=organisation, status__in=PartedUpload.OPEN)
    held = sum(
        rows.aggregate(bytes=Sum("bytes"))["bytes"] or 0
        for rows in (
            Dataset.everything.filter(organisation=organisation, is_withheld=False).exclude(
                file=""
            ),
            Upload.objects.filter(organisation=organisation).exclude(file=""),
            announced.exclude(pk=announced_as),
        )
    )
    limit = settings.DATASET_BYTES_PER_ORGANISATION
    if filter_new([organisation.pk], now=now):
        limit //= STORAGE_DIVISOR
    if held + size > limit:
        raise UserError(
            "storage_full",
            f"{organisation.name} may store {limit:,} bytes of data sets. Delete some, "
            "or cancel uploads in parts.",
            param="file",
            status=413,
        )


def _have_it_read(upload: Upload, *, now: datetime) -> None:
    enqueue_work(NewWork(READ, upload.pk, due_at=now, owner=upload.organisation_id))
