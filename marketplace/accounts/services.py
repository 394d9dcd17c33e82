"""What changes who may act."""

import secrets
from datetime import datetime, timedelta

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import transaction
from django.db.models import QuerySet

from marketplace.accounts.api_keys import SECRET_BYTES, hash_secret
from marketplace.accounts.erasure import RETAIN_DAYS_MAX, RETAIN_DAYS_MIN
from marketplace.accounts.locks import lock_invitation, lock_memberships
from marketplace.accounts.models import Invitation, Membership, Organisation, Role, User, make_slug
from marketplace.accounts.policy import Right, check_right
from marketplace.common.errors import Conflict, NotFound, UserError

INVITATION_LIFE = timedelta(days=14)
#: Invitations of one organisation that are still open, and those made within a day: each is a mail.
INVITATIONS_MAX = 100
INVITATIONS_MAX_WITHIN = timedelta(days=1)
ROLES_IN_WORDS = "owner, billing, member or viewer"


def register_user(
    *, email: str, password: str | None, name: str = "", is_operator: bool = False, now: datetime
) -> User:
    """Creates a person with a personal organisation, both or neither."""
    with transaction.atomic():
        user = User(email=email.strip().lower(), name=name, is_operator=is_operator)
        user.set_password(password)
        user.save()
        Organisation.objects.get_or_create_personal(user)
    return user


def change_password(*, user: User, password: str) -> None:
    """Replaces a password; sessions that signed in with the old one end."""
    user.set_password(password)
    user.save(update_fields=["password"])


def create_organisation(*, name: str, created_by: User, now: datetime) -> Organisation:
    """Makes an organisation owned by ``created_by``."""
    name = name.strip()
    if not 1 <= len(name) <= 120:
        raise UserError(
            "invalid_name", "Give the organisation a name of 1 to 120 letters.", param="name"
        )
    with transaction.atomic():
        organisation = Organisation(name=name)
        organisation.slug = make_slug(name, organisation.pk)
        organisation.save()
        Membership.objects.create(organisation=organisation, user=created_by, role=Role.OWNER)
    return organisation


def set_verified_only(*, organisation: Organisation, verified_only: bool, set_by: User) -> None:
    """Sets whose machines get the organisation's data, where a bid says nothing of it.

    Raises
    ------
    NotAllowed
        ``owners_only``.
    """
    check_right(organisation=organisation, user=set_by, right=Right.OWN)
    organisation.verified_only = verified_only
    organisation.save(update_fields=["verified_only", "updated_at"])


def set_retention(*, organisation: Organisation, retain_days: int | None, set_by: User) -> None:
    """Sets after how many days without use data sets and results are deleted; ``None``: never.

    Raises
    ------
    NotAllowed
        ``owners_only``.
    UserError
        ``invalid_retention``.
    """
    check_right(organisation=organisation, user=set_by, right=Right.OWN)
    if retain_days is not None and not RETAIN_DAYS_MIN <= retain_days <= RETAIN_DAYS_MAX:
        raise UserError(
            "invalid_retention",
            f"Give {RETAIN_DAYS_MIN} to {RETAIN_DAYS_MAX:,} days, or none to keep everything.",
            param="retain_days",
        )
    organisation.retain_days = retain_days
    organisation.save(update_fields=["retain_days", "updated_at"])


def create_invitation(
    *, organisation: Organisation, email: str, role: str, invited_by: User, now: datetime
) -> tuple[Invitation, str]:
    """Keeps a place for ``email`` and returns it with the secret that takes it, shown once.

    Raises
    ------
    NotAllowed
        ``owners_only``: ``invited_by`` does not own the organisation.
    Conflict
        ``already_a_member``.
    """
    check_right(organisation=organisation, user=invited_by, right=Right.OWN)
    email = email.strip().lower()
    try:
        validate_email(email)
    except ValidationError:
        raise UserError(
            "invalid_email", f"{email[:80]!r} is not an email address.", param="email"
        ) from None
    if role not in Role.values:
        raise UserError("invalid_role", f"The role is {ROLES_IN_WORDS}.", param="role")
    if organisation.memberships.filter(user__email=email).exists():
        raise Conflict("already_a_member", f"{email} is a member already.", param="email")
    if list_open_invitations(organisation, now=now).count() >= INVITATIONS_MAX:
        raise Conflict("too_many_invitations", "Withdraw invitations that are still open first.")
    if organisation.invitations.filter(created_at__gt=now - INVITATIONS_MAX_WITHIN).count() >= (
        INVITATIONS_MAX
    ):
        raise Conflict(
            "too_many_invitations",
            f"An organisation sends {INVITATIONS_MAX} invitations a day at most. Go on tomorrow.",
        )
    secret = secrets.token_urlsafe(SECRET_BYTES)
    invitation = Invitation.objects.create(
        organisation=organisation,
        email=email,
        role=role,
        invited_by=invited_by,
        token_hash=hash_secret(secret),
        expires_at=now + INVITATION_LIFE,
    )
    return invitation, secret


def accept_invitation(*, secret: str, user: User, now: datetime) -> Membership:
    """Takes the kept place; taking it twice gives the same membership.

    Raises
    ------
    NotFound
        ``invitation_not_found``: unknown, revoked, expired, kept for another address, or taken
        before by who has left the organisation since.
    """
    with transaction.atomic():
        invitation = lock_invitation(token_hash=hash_secret(secret))
        usable = invitation is not None and (
            (invitation.accepted_by_id == user.pk and _is_member(invitation, user))
            or (
                invitation.accepted_at is None
                and invitation.revoked_at is None
                and invitation.expires_at > now
                and invitation.email == user.email
            )
        )
        if invitation is None or not usable:
            raise NotFound(
                "invitation_not_found",
                "This invitation is not valid for you. Ask for a new one, sent to the address"
                " you sign in with.",
            )
        membership, _ = Membership.objects.get_or_create(
            organisation_id=invitation.organisation_id,
            user=user,
            defaults={"role": invitation.role},
        )
        if invitation.accepted_at is None:
            invitation.accepted_at = now
            invitation.accepted_by = user
            invitation.save(update_fields=["accepted_at", "accepted_by", "updated_at"])
    return membership


def _is_member(invitation: Invitation, user: User) -> bool:
    organisation_id = invitation.organisation_id
    return Membership.objects.filter(organisation=organisation_id, user=user).exists()


def list_open_invitations(organisation: Organisation, *, now: datetime) -> QuerySet[Invitation]:
    """Invitations that can still be accepted, the latest first."""
    waiting = organisation.invitations.filter(accepted_at=None, revoked_at=None)
    return waiting.filter(expires_at__gt=now).order_by("-created_at")


def revoke_invitation(
    *, organisation: Organisation, invitation_id: str, revoked_by: User, now: datetime
) -> None:
    """Takes back an invitation that is still open; doing so twice changes nothing.

    Raises
    ------
    NotAllowed
        ``owners_only``.
    NotFound
        ``unknown_invitation``.
    Conflict
        ``invitation_accepted``.
    """
    check_right(organisation=organisation, user=revoked_by, right=Right.OWN)
    found = Invitation.objects.filter(
        pk=invitation_id.replace("\0", ""), organisation=organisation
    ).first()
    if found is None:
        raise NotFound("unknown_invitation", "There is no such invitation.")
    open_still = Invitation.objects.filter(pk=found.pk, accepted_at=None, revoked_at=None)
    if not open_still.update(revoked_at=now, updated_at=now) and found.revoked_at is None:
        raise Conflict("invitation_accepted", "It was accepted. Remove the member instead.")


def end_membership(*, organisation: Organisation, user: User, ended_by: User) -> None:
    """Takes a person out of an organisation; the last owner stays.

    Raises
    ------
    NotAllowed
        ``owners_only``: only owners end the membership of others.
    Conflict
        ``last_owner``.
    """
    if user != ended_by:
        check_right(organisation=organisation, user=ended_by, right=Right.OWN)
    with transaction.atomic():
        memberships = lock_memberships(organisation_id=organisation.pk)
        ending = [m for m in memberships if m.user_id == user.pk]
        staying = [m for m in memberships if m.user_id != user.pk and m.role == Role.OWNER]
        if ending and not staying:
            raise _build_last_owner()
        for membership in ending:
            membership.delete()


def _build_last_owner() -> Conflict:
    return Conflict("last_owner", "An organisation needs an owner. Make somebody else one first.")


def change_role(
    *, organisation: Organisation, user_id: str, role: str, changed_by: User
) -> Membership:
    """Give a member another role; the last owner stays one.

    Raises
    ------
    NotAllowed
        ``owners_only``.
    NotFound
        ``unknown_member``.
    Conflict
        ``last_owner``.
    """
    check_right(organisation=organisation, user=changed_by, right=Right.OWN)
    if role not in Role.values:
        raise UserError("invalid_role", f"The role is {ROLES_IN_WORDS}.", param="role")
    with transaction.atomic():
        memberships = {m.user_id: m for m in lock_memberships(organisation_id=organisation.pk)}
        membership = memberships.get(user_id)
        if membership is None:
            raise NotFound("unknown_member", "There is no such member.")
        others = [m for m in memberships.values() if m != membership and m.role == Role.OWNER]
        if role != Role.OWNER and not others:
            raise _build_last_owner()
        if membership.role != role:
            membership.role = role
            membership.save(update_fields=["role", "updated_at"])
    return membership


def transfer_ownership(*, organisation: Organisation, to_user_id: str, by: User) -> None:
    """Make another member the owner and oneself a plain member, both or neither.

    Raises
    ------
    NotAllowed
        ``owners_only``.
    NotFound
        ``unknown_member``.
    Conflict
        ``personal_organisation``: it was made for one person and stays theirs.
    """
    if organisation.personal_for_id == by.pk:
        raise Conflict("personal_organisation", "Your personal organisation stays yours.")
    with transaction.atomic():
        change_role(organisation=organisation, user_id=to_user_id, role=Role.OWNER, changed_by=by)
        if to_user_id != by.pk:
            change_role(organisation=organisation, user_id=by.pk, role=Role.MEMBER, changed_by=by)
