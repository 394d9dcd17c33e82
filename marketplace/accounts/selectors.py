"""What one may know about people and organisations."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.apps import apps

from marketplace.accounts.models import Membership, Organisation, User
from marketplace.common.errors import NotAllowed


def get_current_organisation(*, user: User, organisation_id: str | None = None) -> Organisation:
    """The organisation ``user`` acts for: the one named, or else their personal one.

    Raises
    ------
    NotAllowed
        ``not_a_member``: the named organisation is not theirs, or they have none.
    """
    memberships = Membership.objects.select_related("organisation").filter(user=user)
    if organisation_id is not None:
        membership = memberships.filter(organisation_id=organisation_id).first()
    else:
        membership = memberships.order_by("organisation__personal_for", "pk").first()
    if membership is None:
        raise NotAllowed("not_a_member", "You are not a member of this organisation.")
    return membership.organisation


def is_run_by_operator(*, organisation_id: str) -> bool:
    """Whether an operator is a member: the organisation is the market's own."""
    return Membership.objects.filter(organisation=organisation_id, user__is_operator=True).exists()


def share_members(organisation_id: str, other_id: str) -> bool:
    """Whether two organisations are one, or a person belongs to both."""
    members = Membership.objects.filter(organisation=organisation_id).values("user")
    both = Membership.objects.filter(organisation=other_id, user__in=members)
    return organisation_id == other_id or both.exists()


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One line of the audit log."""

    at: datetime
    #: Who did it, by mail address; empty: the market itself.
    by: str
    what: str


def list_changes(*, organisation: Organisation, limit: int = 200) -> list[AuditEntry]:
    """Who changed what of members, keys and the organisation itself, the latest first."""
    changes = [
        *_list_membership_changes(organisation, limit),
        *_list_key_changes(organisation, limit),
        *_list_own_changes(organisation, limit),
    ]
    return sorted(changes, key=lambda change: change.at, reverse=True)[:limit]


_VERBS = {"insert": "was added", "update": "was changed", "delete": "was removed"}


def _list_membership_changes(organisation: Organisation, limit: int) -> list[AuditEntry]:
    events = _load_events("MembershipChange", limit, organisation=organisation.pk)
    people = dict(
        User.objects.filter(pk__in=[event.user_id for event in events]).values_list("pk", "email")
    )
    return [
        _build_change(
            event,
            f"{people.get(event.user_id, event.user_id)} {_VERBS[event.pgh_label]} as {event.role}",
        )
        for event in events
    ]


def _list_key_changes(organisation: Organisation, limit: int) -> list[AuditEntry]:
    events = _load_events("ApiKeyChange", limit, organisation=organisation.pk)
    return [
        _build_change(
            event,
            f"The key {event.name} ({event.prefix}…)"
            f" {'was revoked' if event.revoked_at else _VERBS[event.pgh_label]}",
        )
        for event in events
    ]


def _list_own_changes(organisation: Organisation, limit: int) -> list[AuditEntry]:
    events = _load_events("OrganisationChange", limit, pgh_obj=organisation.pk)
    return [
        _build_change(event, f"The organisation {_VERBS[event.pgh_label]}: {event.name}")
        for event in events
    ]


def _load_events(model: str, limit: int, **of: str) -> list[Any]:
    """Rows of a table of changes, which the database fills."""
    events = apps.get_model("accounts", model).objects.filter(**of)
    return list(events.select_related("pgh_context").order_by("-pgh_created_at")[:limit])


def _build_change(event: Any, what: str) -> AuditEntry:
    context = event.pgh_context
    by = "" if context is None else str(context.metadata.get("user") or "")
    person = User.objects.filter(pk=by).values_list("email", flat=True).first() if by else None
    return AuditEntry(at=event.pgh_created_at, by=person or "", what=what)
