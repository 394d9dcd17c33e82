"""Getting data ready for people and outside vendors, and the links by which the latter work.

A link is signed, names one preparation and one vendor, and ends with the time that the vendor has.
It stops working at once when the work is done or goes to another.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any

from django.conf import settings
from django.core import signing
from django.core.files import File
from django.db import transaction
from django.urls import reverse

from marketplace.accounts.models import User
from marketplace.common.durable.kinds import HeldWork, WorkFailed
from marketplace.common.durable.services import NewWork, enqueue_work
from marketplace.common.errors import Conflict, NotAllowed, NotFound, UserError
from marketplace.common.ids import new_id
from marketplace.common.outbound import AnswerLimits, FetchFailed
from marketplace.vendors.access import has_trust, is_of_vendor, note_access
from marketplace.vendors.deliveries import compute_delivery_limit
from marketplace.vendors.endpoints import send_message
from marketplace.vendors.handed_files import HandOver
from marketplace.vendors.locks import lock_preparation
from marketplace.vendors.models import DataAccess, Preparation, PreparationStatus, WorkRow
from marketplace.vendors.signatures import BadSignature, begin_check, end_check
from marketplace.vendors.wishes import parse_wish
from workers.protocol.wire import to_json

log = logging.getLogger(__name__)

WORK_ASSIGNED = "work.assigned"
#: The kinds of work that preparing data and telling a vendor are.
PREPARE = "vendors.prepare"
TELL = "vendors.tell"
#: A vendor that is late may still have its second delay; a link ends this time after the first.
GRACE = timedelta(hours=1)
_TOLD_WITHIN = AnswerLimits(timeout_s=5.0, answer_s=10.0, bytes_max=4_096)
_ROWS_A_TIME = 500
_CHUNK_BYTES = 1024 * 1024
_SALT = "marketplace.vendors.handover"


def build_work(held: Preparation, *, now: datetime) -> NewWork:
    """The next piece of work about a preparation: its vendor's own, or a check of what came."""
    return NewWork(PREPARE, held.work_key, due_at=now, deadline=held.due_at)


def start_work(held: Preparation, *, now: datetime) -> None:
    """Begin the next piece of work. Call while holding the preparation, and save it.

    A key of its own, for a worker locks its work before the preparation.
    """
    held.turn += 1
    enqueue_work(build_work(held, now=now))


def store_hand_over(held: Preparation, data: HandOver, *, now: datetime) -> None:
    """Let the vendor at the data that were got ready for it. Call while holding it."""
    if data.rows is not None:
        _store_rows(held, data.rows)
    if data.copy is not None:
        with data.copy.open("rb") as content:
            held.copy.save(f"{held.pk}-copy.jsonl", File(content), save=False)
    held.handed_over_at = now
    held.save()


def _store_rows(held: Preparation, path: Path) -> None:
    WorkRow.objects.filter(preparation=held).delete()
    rows: list[WorkRow] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            found = json.loads(line)
            rows.append(
                WorkRow(
                    preparation=held,
                    number=number,
                    line=found["line"],
                    raw=clean_text(found["raw"]),
                    proposal=clean_text(found["proposal"]),
                    notes=[clean_text(note) for note in found["notes"]],
                )
            )
            if len(rows) == _ROWS_A_TIME:
                WorkRow.objects.bulk_create(rows)
                rows.clear()
    WorkRow.objects.bulk_create(rows)


def clean_text(text: str) -> str:
    """A text as the database can hold it."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


@dataclass(frozen=True, slots=True)
class WorkLink:
    """Where an outside vendor fetches the data and delivers, until when."""

    data_url: str
    delivery_url: str
    expires_at: datetime


def make_link(*, preparation: Preparation, asked_by: User | None, now: datetime) -> WorkLink:
    """A link for the vendor that has the work; noted for the owner.

    Raises
    ------
    NotAllowed
        ``not_your_work``.
    Conflict
        ``not_handed_over``: the data are not ready, or the vendor has the work no more.
    """
    if asked_by is not None:
        _check_is_of(asked_by, preparation)
    has_copy = bool(preparation.copy)
    if not has_copy or not has_work(preparation) or preparation.handed_over_at is None:
        raise Conflict("not_handed_over", "There are no data to fetch now.")
    expires_at = preparation.due_at + GRACE
    token = signing.dumps(
        [preparation.pk, preparation.vendor_id, int(expires_at.timestamp())], salt=_SALT
    )
    note_access(preparation=preparation, kind=DataAccess.Kind.LINK, person=asked_by, now=now)
    return WorkLink(
        data_url=settings.PUBLIC_URL + reverse("vendor-data", args=[token]),
        delivery_url=settings.PUBLIC_URL + reverse("vendor-delivery", args=[token]),
        expires_at=expires_at,
    )


def _check_is_of(user: User, preparation: Preparation) -> None:
    if not is_of_vendor(user, preparation.vendor):
        raise NotAllowed("not_your_work", "This work is another vendor's.")


def has_work(preparation: Preparation) -> bool:
    """Whether a vendor may see the data now: it is to work on them, and its owner lets its kind.

    A vendor that became one of another kind, or lost its approval, sees nothing any more.
    """
    is_allowed = preparation.vendor.kind in parse_wish(preparation.wish).kinds
    is_open = preparation.status == PreparationStatus.WORKING and not preparation.problem
    return is_open and is_allowed and has_trust(preparation.vendor)


def open_link(token: str, *, now: datetime) -> Preparation:
    """The preparation that a link names, while its vendor has the work.

    Raises
    ------
    NotFound
        ``unknown_link``: forged, expired, or the work is done or has gone to another vendor.
    """
    unknown = NotFound("unknown_link", "This link is not valid, or not any more.")
    try:
        preparation_id, vendor_id, expires = signing.loads(token, salt=_SALT)
    except (signing.BadSignature, ValueError) as error:
        raise unknown from error
    found = (
        Preparation.objects.select_related("vendor", "source", "job")
        .filter(pk=preparation_id, vendor=vendor_id)
        .first()
    )
    if found is None or now.timestamp() >= expires or not has_work(found):
        raise unknown
    return found


def open_data(*, token: str, address: str, now: datetime) -> tuple[IO[bytes], int, str]:
    """The data behind a link, their size and a name for them; noted for the owner.

    Raises
    ------
    NotFound
        As ``open_link``.
    """
    preparation = open_link(token, now=now)
    note_access(
        preparation=preparation,
        kind=DataAccess.Kind.DOWNLOAD,
        person=None,
        address=address,
        now=now,
    )
    return preparation.copy.open("rb"), preparation.copy.size, preparation.pk


def receive_delivery(
    *, token: str, content: Any, headers: Mapping[str, str], now: datetime
) -> Preparation:
    """Take what an outside vendor delivers, signed with its secret; a worker checks it.

    Raises
    ------
    NotFound
        As ``open_link``.
    NotAllowed
        ``bad_signature``.
    UserError
        ``file_empty`` or ``file_too_large``.
    Conflict
        ``delivered_already``: an earlier delivery is still being checked.
    """
    preparation = open_link(token, now=now)
    vendor, limit = preparation.vendor, compute_delivery_limit(preparation)
    with tempfile.TemporaryFile() as spool:
        size = 0
        try:
            signer = begin_check(
                vendor.endpoint_secret, headers, message_id=preparation.pk, now=now
            )
            while piece := content.read(_CHUNK_BYTES):
                size += len(piece)
                if size > limit:
                    raise UserError(
                        "file_too_large",
                        f"A delivery has at most {limit:,} bytes here.",
                        status=413,
                    )
                signer.update(piece)
                spool.write(piece)
            end_check(signer, headers)
        except BadSignature as error:
            raise NotAllowed("bad_signature", f"The delivery is not signed: {error}.") from error
        if not size:
            raise UserError("file_empty", "The delivery is empty.")
        spool.seek(0)
        return _store_submission(preparation, spool, now=now)


def _store_submission(
    preparation: Preparation, content: IO[bytes], *, now: datetime
) -> Preparation:
    with transaction.atomic():
        held = lock_preparation(preparation.pk)
        if held.vendor_id != preparation.vendor_id or not has_work(held):
            raise NotFound("unknown_link", "This link is not valid, or not any more.")
        store_submission(held, content, now=now)
    return held


def store_submission(held: Preparation, content: IO[bytes], *, now: datetime) -> None:
    """Hand in a file for the worker to check. Call while holding the preparation.

    Raises
    ------
    Conflict
        ``delivered_already``.
    """
    if held.submitted_at is not None:
        raise Conflict("delivered_already", "An earlier delivery is being checked. Wait for it.")
    held.submission.save(f"{held.pk}-{new_id('sub')}.jsonl", File(content), save=False)
    held.submitted_at = now
    start_work(held, now=now)
    held.save(update_fields=["submission", "submitted_at", "turn"])


def load_assigned(work: HeldWork) -> Preparation | None:
    """The preparation whose vendor is to be told, while the vendor may see the data."""
    handed_over = Preparation.objects.exclude(handed_over_at=None)
    found = handed_over.select_related("vendor", "source").filter(pk=work.key).first()
    return found if found is not None and has_work(found) else None


def tell_vendor(work: HeldWork, preparation: Preparation) -> None:
    """Tell a vendor's own system of its work, with a link.

    Raises
    ------
    WorkFailed
        It does not answer.
    """
    now, wish = work.begun_at, parse_wish(preparation.wish)
    link = make_link(preparation=preparation, asked_by=None, now=now)
    message = {
        "type": WORK_ASSIGNED,
        "timestamp": now.isoformat(),
        "data": {
            "preparation_id": preparation.pk,
            "data_url": link.data_url,
            "delivery_url": link.delivery_url,
            "due_at": preparation.due_at.isoformat(),
            "rows_bound": preparation.rows_bound,
            # Who knows which rows are looked at takes care with these.
            "wish": to_json(replace(wish, gold={})),
        },
    }
    body = json.dumps(message).encode()
    try:
        send_message(
            preparation.vendor, body, message_id=preparation.pk, limits=_TOLD_WITHIN, now=now
        )
    except (BadSignature, FetchFailed) as error:
        raise WorkFailed(str(error)) from error


def apply_told(work: HeldWork, preparation: Preparation, result: None, *, now: datetime) -> None:
    """The link that was made is noted already."""
