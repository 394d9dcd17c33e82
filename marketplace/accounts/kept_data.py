"""What this app keeps of people and organisations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from allauth.usersessions.models import UserSession
from django.db.models import Q

from marketplace.accounts.departures import erase_organisation, erase_person
from marketplace.accounts.erasure import KeptData, register_kept_data
from marketplace.accounts.models import (
    ApiKey,
    AuditEntry,
    Deletion,
    Membership,
    Organisation,
    Subject,
    User,
)
from marketplace.accounts.own_data import write_rows

_Tables = Iterable[tuple[str, Callable[[], Iterable[bytes]]]]


def _list_person_needs(user_id: str) -> Iterator[str]:
    own = Organisation.objects.filter(personal_for=user_id, erased_at=None)
    if own.exists():
        yield "The person's own organisation is being deleted."


def _list_own_of_organisation(organisation_id: str) -> _Tables:
    mine = Organisation.objects.filter(pk=organisation_id)
    yield "organisation.jsonl", write_rows(mine, "name", "created_at", "retain_days")
    members = Membership.objects.filter(organisation=organisation_id)
    yield "members.jsonl", write_rows(members, "user__email", "user__name", "role", "created_at")
    keys = ApiKey.objects.filter(organisation=organisation_id)
    yield "api-keys.jsonl", write_rows(keys, "name", "prefix", "scopes", "created_at", "revoked_at")
    yield (
        "audit-log.jsonl",
        _write_entries(AuditEntry.objects.filter(organisation_id=organisation_id)),
    )
    deletions = Deletion.objects.filter(organisation_id=organisation_id)
    yield "deletions.jsonl", write_rows(deletions, "subject", "subject_id", "asked_at", "erased_at")


def _list_own_of_person(user_id: str) -> _Tables:
    person = User.objects.filter(pk=user_id)
    yield "person.jsonl", write_rows(person, "email", "name", "date_joined", "last_login")
    members = Membership.objects.filter(user=user_id)
    yield "memberships.jsonl", write_rows(members, "organisation__name", "role", "created_at")
    sessions = UserSession.objects.filter(user=user_id)
    yield "sessions.jsonl", write_rows(sessions, "ip", "user_agent", "created_at", "last_seen_at")
    mine = Q(person_id=user_id) | Q(subject=user_id)
    yield "audit-log.jsonl", _write_entries(AuditEntry.objects.filter(mine))


def _write_entries(entries) -> Callable[[], Iterator[bytes]]:
    return write_rows(entries, "at", "act", "subject", "details", "done", "address")


register_kept_data(
    KeptData(Subject.ORGANISATION, erase=erase_organisation, list_own=_list_own_of_organisation),
    KeptData(
        Subject.PERSON,
        list_needs=_list_person_needs,
        erase=erase_person,
        list_own=_list_own_of_person,
    ),
)
