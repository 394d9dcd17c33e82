"""What changes who may act."""

import hashlib
import secrets
from collections.abc import Collection
from datetime import datetime, timedelta

from django.db import transaction
from django.utils.text import slugify

from marketplace.accounts.models import ApiKey, Membership, Organisation, Role, Scope, User
from marketplace.common.errors import UserError

#: Letters and digits of the visible part and of the hidden part of a key.
PREFIX_LENGTH = 10
SECRET_BYTES = 32
LAST_USED_RESOLUTION = timedelta(minutes=1)


def user_register(
    *, email: str, password: str | None, name: str = "", is_operator: bool = False, now: datetime
) -> User:
    """Creates a person with a personal organisation, both or neither."""
    with transaction.atomic():
        user = User(email=email.strip().lower(), name=name, is_operator=is_operator)
        user.set_password(password)
        user.save()
        personal_organisation_ensure(user=user, now=now)
    return user


def personal_organisation_ensure(*, user: User, now: datetime) -> Organisation:
    """The person's own organisation, made now if they have none; safe to run twice at once."""
    with transaction.atomic():
        organisation, _ = Organisation.objects.get_or_create(
            personal_for=user,
            defaults={
                "name": (user.name or user.email.partition("@")[0])[:120],
                # Ids are unique, and so is a slug made of one.
                "slug": f"{slugify(user.email.partition('@')[0])[:100]}-{user.pk[-8:]}".lstrip("-"),
            },
        )
        Membership.objects.get_or_create(
            organisation=organisation, user=user, defaults={"role": Role.OWNER}
        )
    return organisation


def api_key_create(
    *,
    organisation: Organisation,
    created_by: User,
    name: str,
    scopes: Collection[str],
    now: datetime,
    expires_at: datetime | None = None,
) -> tuple[ApiKey, str]:
    """Makes a key and returns it with its secret, which nobody can read again."""
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
    prefix = f"ft_{secrets.token_hex(PREFIX_LENGTH // 2)}"
    secret = f"{prefix}_{secrets.token_urlsafe(SECRET_BYTES)}"
    key = ApiKey.objects.create(
        organisation=organisation,
        created_by=created_by,
        name=name.strip()[:80],
        prefix=prefix,
        secret_hash=_hash(secret),
        scopes=sorted(set(scopes)),
        expires_at=expires_at,
    )
    return key, secret


def api_key_authenticate(*, secret: str, now: datetime) -> ApiKey | None:
    """The live key behind ``secret``, or nothing: unknown, revoked, expired or owner gone."""
    prefix = "_".join(secret.split("_", 2)[:2])
    key = (
        ApiKey.objects.select_related("organisation", "created_by")
        .filter(prefix=prefix, revoked_at=None, created_by__is_active=True)
        .first()
    )
    if key is None or not secrets.compare_digest(key.secret_hash, _hash(secret)):
        return None
    if key.expires_at is not None and key.expires_at <= now:
        return None
    if key.last_used_at is None or now - key.last_used_at >= LAST_USED_RESOLUTION:
        ApiKey.objects.filter(pk=key.pk).update(last_used_at=now)
        key.last_used_at = now
    return key


def api_key_revoke(*, organisation: Organisation, key_id: str, now: datetime) -> None:
    """Ends a key for good; doing so twice changes nothing."""
    ApiKey.objects.filter(pk=key_id, organisation=organisation, revoked_at=None).update(
        revoked_at=now
    )


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
