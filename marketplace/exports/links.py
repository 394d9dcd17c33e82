"""Links to files of a job that need no sign-in: for one file, for some time, and to read only.

A link is a signed statement and is stored nowhere. It ends with its time, and before that when the
API key that made it ends or is frozen, or when the person who made it leaves the organisation.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.core import signing
from django.db.models import Q
from django.urls import reverse

from marketplace.accounts.models import ApiKey, Membership, User
from marketplace.common.downloads import FileDownload
from marketplace.common.errors import NotFound, UserError
from marketplace.exports.models import Export
from marketplace.exports.selectors import get_export, open_export
from marketplace.jobs.downloads import get_artifact, get_checkpoint, open_adapter, open_checkpoint
from marketplace.jobs.models import Artifact, Checkpoint, Job

#: What the adapter is called; checkpoints and exports are called by their ids.
ADAPTER = "adapter"
LIFETIME_MAX = timedelta(days=7)
_SALT = "finetender.file-link"


@dataclass(frozen=True, slots=True)
class FileLink:
    url: str
    expires_at: datetime


def make_link(
    *,
    job: Job,
    file: str,
    made_by: User,
    api_key: ApiKey | None,
    lifetime: timedelta,
    now: datetime,
) -> FileLink:
    """A link to the adapter of a job, or to one of its checkpoints or exports.

    Raises
    ------
    NotFound
        ``no_adapter``, ``unknown_checkpoint`` or ``unknown_export``.
    UserError
        ``invalid_lifetime``.
    """
    if not timedelta(seconds=1) <= lifetime <= LIFETIME_MAX:
        raise UserError(
            "invalid_lifetime",
            f"A link lives between a second and {LIFETIME_MAX.days} days.",
            param="expires_in_s",
        )
    _find_file(job, file)
    expires_at = (now + lifetime).replace(microsecond=0)
    terms = {
        "job": job.pk,
        "file": file,
        "user": made_by.pk,
        "key": None if api_key is None else api_key.pk,
        "until": int(expires_at.timestamp()),
    }
    token = signing.dumps(terms, salt=_SALT, compress=True)
    return FileLink(settings.PUBLIC_URL + reverse("file_link", args=[token]), expires_at)


def open_link(*, token: str, range_header: str | None, now: datetime) -> FileDownload:
    """The file of a link.

    Raises
    ------
    NotFound
        ``unknown_link``: it is not one of ours, has ended, or its file is gone.
    """
    try:
        terms = signing.loads(token, salt=_SALT)
    except signing.BadSignature:
        raise _unknown() from None
    job = Job.objects.filter(pk=terms["job"]).select_related("zone").first()
    if job is None or now >= datetime.fromtimestamp(terms["until"], UTC):
        raise _unknown()
    if not _may_still(job, terms, now):
        raise _unknown()
    found = _find_file(job, terms["file"])
    if isinstance(found, Artifact):
        return open_adapter(found, name=job.pk, range_header=range_header, now=now)
    if isinstance(found, Checkpoint):
        return open_checkpoint(found, name=job.pk, range_header=range_header, now=now)
    return open_export(found, range_header=range_header, now=now)


def _unknown() -> NotFound:
    return NotFound("unknown_link", "This link has ended. Ask the one who sent it for a new one.")


def _may_still(job: Job, terms: dict[str, Any], now: datetime) -> bool:
    """Whether who made the link could still fetch the file."""
    member = Membership.objects.filter(
        organisation=job.organisation_id, user=terms["user"], user__is_active=True
    )
    if not member.exists():
        return False
    if terms["key"] is None:
        return True
    key = ApiKey.objects.filter(
        pk=terms["key"], organisation=job.organisation_id, revoked_at=None, frozen_at=None
    ).filter(Q(expires_at=None) | Q(expires_at__gt=now))
    return key.exists()


def _find_file(job: Job, file: str) -> Artifact | Checkpoint | Export:
    if file == ADAPTER:
        return get_artifact(job)
    if Export.objects.filter(job=job, pk=file.replace("\0", "")).exists():
        return get_export(job, file)
    return get_checkpoint(job, file)
