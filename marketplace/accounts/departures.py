"""How people and organisations leave: nobody acts for them at once, the rest is erased later."""

from __future__ import annotations

from datetime import datetime

from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from allauth.usersessions.models import UserSession
from django.db import transaction

from marketplace.accounts.erasure import ask_deletion, list_needs
from marketplace.accounts.locks import lock_memberships
from marketplace.accounts.models import (
    ApiKey,
    AuditEntry,
    Deletion,
    Invitation,
    Membership,
    Organisation,
    Role,
    Subject,
    User,
    make_slug,
)
from marketplace.accounts.policy import Right, check_right
from marketplace.common.errors import Conflict

DELETED_NAME = "Deleted"
#: No mail goes there (RFC 2606).
_DELETED_MAIL = "{}@deleted.invalid"


def end_organisation(*, organisation: Organisation, asked_by: User, now: datetime) -> Deletion:
    """Close an organisation for all its members and keys, and have all that it has erased.

    Raises
    ------
    NotAllowed
        ``owners_only``.
    Conflict
        ``organisation_in_use``: jobs, money, nodes or work for others; ``personal_organisation``:
        it goes with its person's account.
    """
    check_right(organisation=organisation, user=asked_by, right=Right.OWN)
    if organisation.personal_for_id is not None:
        raise Conflict("personal_organisation", "It belongs to an account. Delete the account.")
    return _close(organisation, asked_by, now)


def _close(organisation: Organisation, asked_by: User, now: datetime) -> Deletion:
    """End it for its members and keys, unless something needs it."""
    with transaction.atomic():
        lock_memberships(organisation_id=organisation.pk)
        needs = list_needs(Subject.ORGANISATION, organisation.pk)
        if needs:
            raise Conflict(
                "organisation_in_use",
                f"{organisation.name} cannot be deleted yet. {' '.join(needs)}",
                extra={"needs": needs},
            )
        Membership.objects.filter(organisation=organisation).delete()
        ApiKey.objects.filter(organisation=organisation, revoked_at=None).update(revoked_at=now)
        invitations = Invitation.objects.filter(organisation=organisation, accepted_at=None)
        invitations.filter(revoked_at=None).update(revoked_at=now)
        return ask_deletion(
            subject=Subject.ORGANISATION,
            subject_id=organisation.pk,
            organisation_id=organisation.pk,
            asked_by=asked_by,
            now=now,
        )


def end_person(*, person: User, now: datetime) -> Deletion:
    """Sign a person out for good, end their own organisation and have both erased.

    Raises
    ------
    Conflict
        ``organisation_in_use``: their own; ``last_owner``: another one would have no owner.
    """
    with transaction.atomic():
        own = Organisation.objects.filter(personal_for=person, erased_at=None).first()
        if own is not None:
            _close(own, person, now)
        for membership in Membership.objects.filter(user=person).order_by("organisation"):
            members = lock_memberships(organisation_id=membership.organisation_id)
            if not any(m.role == Role.OWNER for m in members if m.user_id != person.pk):
                raise Conflict(
                    "last_owner",
                    f"{membership.organisation.name} has no other owner. Make somebody else one, "
                    "or delete it first.",
                )
            membership.delete()
        person.is_active = False
        person.save(update_fields=["is_active"])
        UserSession.objects.filter(user=person).delete()
        return ask_deletion(
            subject=Subject.PERSON,
            subject_id=person.pk,
            organisation_id="",
            asked_by=person,
            now=now,
        )


def erase_organisation(organisation_id: str, *, now: datetime) -> None:
    """Leave an id that books and logs name, and nothing else."""
    organisation = Organisation.objects.get(pk=organisation_id)
    organisation.name = DELETED_NAME
    organisation.slug = make_slug(DELETED_NAME, organisation.pk)
    organisation.erased_at = now
    organisation.save(update_fields=["name", "slug", "erased_at", "updated_at"])
    ApiKey.objects.filter(organisation=organisation).update(name=DELETED_NAME)
    Invitation.objects.filter(organisation=organisation).update(
        email=_DELETED_MAIL.format(organisation.pk)
    )


def erase_person(user_id: str, *, now: datetime) -> None:
    """The same of a person."""
    person = User.objects.get(pk=user_id)
    known_as = person.email
    person.email, person.name = _DELETED_MAIL.format(person.pk), ""
    person.set_unusable_password()
    person.is_operator = person.is_superuser = False
    person.save()
    EmailAddress.objects.filter(user=person).delete()
    Authenticator.objects.filter(user=person).delete()
    Invitation.objects.filter(email=known_as).update(email=_DELETED_MAIL.format(person.pk))
    AuditEntry.objects.filter(person_id=user_id).update(address=None)
