"""What one may know about people and organisations."""

from types import SimpleNamespace
from typing import cast

from django.contrib import auth
from django.contrib.sessions.backends.db import SessionStore
from django.http import HttpRequest

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


def find_session_user(session_key: str | None) -> User | None:
    """Who is signed in with a session now: it may have ended since it was looked at."""
    request = SimpleNamespace(session=SessionStore(session_key))
    user = auth.get_user(cast(HttpRequest, request))
    return user if isinstance(user, User) else None


def is_run_by_operator(*, organisation_id: str) -> bool:
    """Whether an operator is a member: the organisation is the market's own."""
    return Membership.objects.filter(organisation=organisation_id, user__is_operator=True).exists()


def list_operator_organisations() -> set[str]:
    """Ids of the organisations that are the market's own."""
    own = Membership.objects.filter(user__is_operator=True)
    return set(own.values_list("organisation_id", flat=True))


def share_members(organisation_id: str, other_id: str) -> bool:
    """Whether two organisations are one, or a person belongs to both."""
    members = Membership.objects.filter(organisation=organisation_id).values("user")
    both = Membership.objects.filter(organisation=other_id, user__in=members)
    return organisation_id == other_id or both.exists()
