"""Deleting what somebody stored, as durable work, and what each app keeps of it.

Who asks for a deletion marks the thing at once, so that nothing new uses it. ``erase`` deletes its
content as soon as nothing needs it: files first, then texts and rows. Hashes, counts, money and the
auction's log stay, so books and logs verify as before.

An app says in its module ``kept_data`` what it keeps of each kind of subject.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from django.core.files.storage import default_storage
from django.utils.module_loading import autodiscover_modules

from marketplace.accounts.models import Deletion, Organisation, Subject, User
from marketplace.common.durable.kinds import HeldWork
from marketplace.common.durable.services import NewWork, schedule_work

ERASE = "accounts.erase"
#: Requests that found a thing before it was marked are over by then, and what they began shows.
GRACE = timedelta(minutes=10)
#: How often is looked whether something needs it still.
LOOKED_EVERY = timedelta(minutes=10)
#: Content is gone within this time after its last use; most of it is for a busy market.
ERASED_WITHIN = timedelta(hours=24)
#: Least days of retention: results may be disputed, and their providers' pay waits, for less.
RETAIN_DAYS_MIN, RETAIN_DAYS_MAX = 7, 10_000


def _mark_nothing(subject_id: str, *, asked_by: User | None, now: datetime) -> None:
    """Who asked has done so."""


def _list_nothing(subject_id: str) -> Iterable[Any]:
    return ()


def _remove_nothing(subject_id: str) -> None:
    """There is no copy elsewhere."""


def _erase_nothing(subject_id: str, *, now: datetime) -> None:
    """All of it is files."""


@dataclass(frozen=True, slots=True)
class KeptData:
    """What one app keeps of the subjects of one kind. All functions take a subject's id."""

    subject: Subject
    #: ``mark(subject_id, asked_by=, now=)`` keeps anybody from using what is to be deleted.
    mark: Callable[..., None] = _mark_nothing
    #: Sentences for the owner: what still needs the content. It stays until there are none.
    list_needs: Callable[[str], Iterable[str]] = _list_nothing
    #: Names of stored files. A node deletes its copies once their job is closed.
    list_files: Callable[[str], Iterable[str]] = _list_nothing
    #: Takes away what is elsewhere, and files that no row names; it may be done again. Call with
    #: no transaction open.
    remove: Callable[[str], None] = _remove_nothing
    #: ``erase(subject_id, now=)`` takes content out of rows. Call in a transaction.
    erase: Callable[..., None] = _erase_nothing
    #: The files and tables that an owner gets as their own, of an organisation or a person:
    #: pairs of a path and of what gives its bytes.
    list_own: Callable[[str], Iterable[tuple[str, Callable[[], Iterable[bytes]]]]] = _list_nothing


_KEPT: list[KeptData] = []


def register_kept_data(*kept: KeptData) -> None:
    """Make known what an app keeps. Call in its module ``kept_data``."""
    _KEPT.extend(kept)


@cache
def _load_kept_data() -> tuple[KeptData, ...]:
    autodiscover_modules("kept_data")
    return tuple(_KEPT)


def list_needs(subject: str, subject_id: str) -> list[str]:
    """Sentences on what needs the content of a subject now."""
    return [need for kept in list_kept_data(subject) for need in kept.list_needs(subject_id)]


def list_kept_data(subject: str) -> list[KeptData]:
    """What all apps keep of the subjects of a kind; those above others first."""
    return [kept for kept in _load_kept_data() if kept.subject == subject]


def ask_deletion(
    *,
    subject: Subject,
    subject_id: str,
    organisation_id: str,
    asked_by: User | None,
    now: datetime,
) -> Deletion:
    """Have content deleted; asked twice it is one deletion. Call in a transaction.

    ``asked_by`` is ``None`` where its time of retention is over.
    """
    for kept in list_kept_data(subject):
        kept.mark(subject_id, asked_by=asked_by, now=now)
    deletion, _ = Deletion.objects.get_or_create(
        subject=subject,
        subject_id=subject_id,
        defaults={
            "organisation_id": organisation_id,
            "asked_by_id": "" if asked_by is None else asked_by.pk,
            "asked_at": now,
        },
    )
    if deletion.erased_at is None:
        work = NewWork(ERASE, deletion.pk, due_at=now + GRACE, owner=organisation_id)
        schedule_work(work)
    return deletion


@dataclass(frozen=True, slots=True)
class Erasure:
    """What is to be deleted now, or why it is not."""

    deletion: Deletion
    needs: tuple[str, ...]
    files: tuple[str, ...]


def load_erasure(work: HeldWork) -> Erasure | None:
    """Find what still needs the content, and its files where nothing does."""
    deletion = Deletion.objects.filter(pk=work.key, erased_at=None).first()
    if deletion is None:
        return None
    kept, subject_id = list_kept_data(deletion.subject), deletion.subject_id
    needs = (*list_needs(deletion.subject, subject_id), *_list_parts(deletion))
    files = () if needs else tuple(file for each in kept for file in each.list_files(subject_id))
    return Erasure(deletion, needs, files)


def _list_parts(deletion: Deletion) -> Iterable[str]:
    """An organisation is gone after all that it had."""
    others = Deletion.objects.filter(organisation_id=deletion.organisation_id, erased_at=None)
    if deletion.subject == Subject.ORGANISATION and others.exclude(pk=deletion.pk).exists():
        yield "Its data sets and jobs are being deleted."


def delete_files(work: HeldWork, erasure: Erasure) -> None:
    """Delete the files; one that is gone is no fault, so a worker that died is no matter."""
    if erasure.needs:
        return
    for name in filter(None, erasure.files):
        default_storage.delete(name)
    # After them: a copy elsewhere may be out of reach for long.
    for kept in list_kept_data(erasure.deletion.subject):
        kept.remove(erasure.deletion.subject_id)


def apply_erasure(
    work: HeldWork, erasure: Erasure, result: None, *, now: datetime
) -> datetime | None:
    """Take the content out of the rows, or look again later."""
    deletion = erasure.deletion
    if erasure.needs:
        Deletion.objects.filter(pk=deletion.pk).update(waits_for=" ".join(erasure.needs)[:300])
        return now + LOOKED_EVERY
    for kept in list_kept_data(deletion.subject):
        kept.erase(deletion.subject_id, now=now)
    Deletion.objects.filter(pk=deletion.pk).update(erased_at=now, waits_for="")
    return None


def list_deletions(organisation: Organisation, *, limit: int = 100) -> list[Deletion]:
    """What an organisation had deleted, the latest first."""
    return list(
        Deletion.objects.filter(organisation_id=organisation.pk).order_by("-asked_at")[:limit]
    )


def find_deletion(subject: Subject, subject_id: str) -> Deletion | None:
    """The deletion of a thing, if it was asked for."""
    return Deletion.objects.filter(subject=subject, subject_id=subject_id).first()
