"""What changes who may act."""

import hashlib
import secrets
from collections.abc import Collection
from datetime import datetime, timedelta

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import transaction
from django.db.models import F, QuerySet

from marketplace.accounts.locks import lock_api_key, lock_invitation, lock_memberships
from marketplace.accounts.models import (
    WORKERS,
    ApiKey,
    Invitation,
    Membership,
    Organisation,
    Role,
    Scope,
    User,
    make_slug,
)
from marketplace.common.errors import Conflict, NotAllowed, NotFound, UserError

#: Letters and digits of the visible part and of the hidden part of a key.
PREFIX_LENGTH = 10
SECRET_BYTES = 32
#: Nothing longer is looked at.
KEY_LENGTH_MAX = 200
#: Live keys of one organisation.
API_KEYS_MAX = 100
#: The longest time for which a secret and the one that replaces it may both be used.
OVERLAP_MAX = timedelta(days=30)
INVITATION_LIFE = timedelta(days=14)
#: Invitations of one organisation that are still open.
INVITATIONS_MAX = 100
ROLES_IN_WORDS = "owner, billing, member or viewer"
LAST_USED_RESOLUTION = timedelta(minutes=1)


def register_user(
    *, email: str, password: str | None, name: str = "", is_operator: bool = False, now: datetime
) -> User:
    """Creates a person with a personal organisation, both or neither."""
    with transaction.atomic():
        user = User(email=email.strip().lower(), name=name, is_operator=is_operator)
        user.set_password(password)
        user.save()
        Organisation.objects.personal_ensure(user)
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
    check_owner(organisation=organisation, user=invited_by)
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
    secret = secrets.token_urlsafe(SECRET_BYTES)
    invitation = Invitation.objects.create(
        organisation=organisation,
        email=email,
        role=role,
        invited_by=invited_by,
        token_hash=_hash_secret(secret),
        expires_at=now + INVITATION_LIFE,
    )
    return invitation, secret


def accept_invitation(*, secret: str, user: User, now: datetime) -> Membership:
    """Takes the kept place; taking it twice gives the same membership.

    Raises
    ------
    NotFound
        ``invitation_not_found``: unknown, revoked, expired, or kept for another address.
    """
    with transaction.atomic():
        invitation = lock_invitation(token_hash=_hash_secret(secret))
        usable = invitation is not None and (
            invitation.accepted_by_id == user.pk
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


def list_open_invitations(organisation: Organisation, *, now: datetime) -> QuerySet[Invitation]:
    """Invitations that can still be accepted, the latest first."""
    waiting = organisation.invitations.filter(accepted_at=None, revoked_at=None)
    return waiting.filter(expires_at__gt=now).order_by("-created_at")


def revoke_invitation(
    *, organisation: Organisation, invitation_id: str, revoked_by: User, now: datetime
) -> None:
    """Takes back an invitation that is still open.

    Raises
    ------
    NotAllowed
        ``owners_only``.
    """
    check_owner(organisation=organisation, user=revoked_by)
    Invitation.objects.filter(
        pk=invitation_id, organisation=organisation, accepted_at=None, revoked_at=None
    ).update(revoked_at=now, updated_at=now)


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
        check_owner(organisation=organisation, user=ended_by)
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
    check_owner(organisation=organisation, user=changed_by)
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


def create_api_key(
    *,
    organisation: Organisation,
    created_by: User,
    name: str,
    scopes: Collection[str],
    now: datetime,
    expires_at: datetime | None = None,
    bid_price_micros: int | None = None,
    bid_deadline_s: int | None = None,
) -> tuple[ApiKey, str]:
    """Makes a key and returns it with its secret, which cannot be read again.

    Parameters
    ----------
    bid_price_micros, bid_deadline_s
        What the key bids, and by when, where a request names no bid.

    Raises
    ------
    NotAllowed
        ``not_a_member``: ``created_by`` does not belong to the organisation.
    Conflict
        ``too_many_api_keys``.
    """
    if not organisation.memberships.filter(user=created_by, role__in=WORKERS).exists():
        raise NotAllowed(
            "not_a_member", "Only owners and members of an organisation make keys for it."
        )
    if not name.strip():
        raise UserError(
            "invalid_name", "Give the key a name, so that you know it later.", param="name"
        )
    unknown = sorted(set(scopes) - set(Scope.values))
    if unknown or not scopes:
        raise UserError(
            "invalid_scopes",
            f"Choose one scope or more of {', '.join(Scope.values)}"
            + (f"; {', '.join(unknown)} is not one." if unknown else "."),
            param="scopes",
        )
    if expires_at is not None and expires_at <= now:
        raise UserError("invalid_expiry", "The key must expire in the future.", param="expires_at")
    # Of keys made at the same moment one may be too many: harmless, for limits count for all.
    live = ApiKey.objects.filter(organisation=organisation, revoked_at=None).exclude(
        expires_at__lte=now
    )
    if live.count() >= API_KEYS_MAX:
        raise Conflict(
            "too_many_api_keys",
            f"{organisation.name} has {API_KEYS_MAX} keys. Revoke one that is not used any more.",
        )
    prefix = f"ft_{secrets.token_hex(PREFIX_LENGTH // 2)}"
    secret = f"{prefix}_{secrets.token_urlsafe(SECRET_BYTES)}"
    key = ApiKey.objects.create(
        organisation=organisation,
        created_by=created_by,
        name=name.strip()[:80],
        prefix=prefix,
        secret_hash=_hash_secret(secret),
        scopes=sorted(set(scopes)),
        bid_price_micros=bid_price_micros,
        bid_deadline_s=bid_deadline_s,
        expires_at=expires_at,
    )
    return key, secret


def rotate_api_key(
    *, organisation: Organisation, key_id: str, rotated_by: User, overlap: timedelta, now: datetime
) -> tuple[ApiKey, str]:
    """Give a key a new secret; the earlier one may be used as well until ``overlap`` is over.

    The key stays the same one: its scopes, caps and what it spent.

    Raises
    ------
    NotFound
        ``unknown_api_key``: it is another organisation's, revoked or expired.
    NotAllowed
        ``owners_only``: only owners replace the secrets of others' keys.
    UserError
        ``invalid_overlap``.
    """
    if not timedelta(0) <= overlap <= OVERLAP_MAX:
        raise UserError(
            "invalid_overlap",
            f"The secrets may overlap by {OVERLAP_MAX.days} days at most.",
            param="overlap_s",
        )
    with transaction.atomic():
        key = lock_api_key(key_id.replace("\0", ""), organisation=organisation)
        is_live = key is not None and (key.expires_at is None or key.expires_at > now)
        if key is None or not is_live or key.revoked_at is not None:
            raise NotFound("unknown_api_key", f"{organisation.name} has no such live key.")
        if key.created_by_id != rotated_by.pk:
            check_owner(organisation=organisation, user=rotated_by)
        secret = f"{key.prefix}_{secrets.token_urlsafe(SECRET_BYTES)}"
        key.earlier_secret_hash, key.earlier_secret_until = key.secret_hash, now + overlap
        key.secret_hash = _hash_secret(secret)
        key.save(update_fields=["secret_hash", "earlier_secret_hash", "earlier_secret_until"])
    return key, secret


def _is_secret_of(key: ApiKey, secret: str, *, now: datetime) -> bool:
    found = _hash_secret(secret)
    if secrets.compare_digest(key.secret_hash, found):
        return True
    overlaps = key.earlier_secret_until is not None and now < key.earlier_secret_until
    return overlaps and secrets.compare_digest(key.earlier_secret_hash, found)


def authenticate_api_keys(*, given: Collection[str], now: datetime) -> dict[str, ApiKey | None]:
    """The live key behind each secret, or nothing, read together."""
    prefixes = {secret: "_".join(secret[:KEY_LENGTH_MAX].split("_", 2)[:2]) for secret in given}
    rows = ApiKey.objects.select_related("organisation", "created_by").filter(
        prefix__in={prefix for prefix in prefixes.values() if "\0" not in prefix},
        revoked_at=None,
        created_by__is_active=True,
        organisation__memberships__user=F("created_by"),
        organisation__memberships__role__in=WORKERS,
    )
    live = {key.prefix: key for key in rows if key.expires_at is None or key.expires_at > now}
    found: dict[str, ApiKey | None] = {}
    for secret, prefix in prefixes.items():
        key = live.get(prefix)
        own = key is not None and _is_secret_of(key, secret, now=now)
        found[secret] = key if own else None
    used = [
        key
        for key in live.values()
        if key in found.values()
        and (key.last_used_at is None or now - key.last_used_at >= LAST_USED_RESOLUTION)
    ]
    if used:
        ApiKey.objects.filter(pk__in=[key.pk for key in used]).update(last_used_at=now)
    for key in used:
        key.last_used_at = now
    return found


def revoke_api_key(
    *, organisation: Organisation, key_id: str, revoked_by: User, now: datetime
) -> None:
    """Ends a key for good; doing so twice changes nothing.

    Raises
    ------
    NotAllowed
        ``owners_only``: only owners end the keys of others.
    """
    live = ApiKey.objects.filter(pk=key_id, organisation=organisation, revoked_at=None)
    if live.exclude(created_by=revoked_by).exists():
        check_owner(organisation=organisation, user=revoked_by)
    live.update(revoked_at=now)


def check_owner(*, organisation: Organisation, user: User) -> None:
    """Refuse who only works for an organisation what commits it to others.

    Raises
    ------
    NotAllowed
        ``owners_only``.
    """
    if not organisation.memberships.filter(user=user, role=Role.OWNER).exists():
        raise NotAllowed("owners_only", "Only an owner of the organisation may do this.")


def check_role(*, organisation: Organisation, user: User, roles: Collection[str]) -> None:
    """Refuse a member whose role does not allow a change.

    Raises
    ------
    NotAllowed
        ``role_not_enough``.
    """
    membership = organisation.memberships.filter(user=user).first()
    if membership is None or membership.role not in roles:
        have = "no role" if membership is None else f"the role {membership.role}"
        raise NotAllowed(
            "role_not_enough",
            f"You have {have} in {organisation.name}, which does not allow this. Ask an owner.",
        )


def _hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
