"""API keys: created, rotated, revoked, and found by their secrets."""

import hashlib
import secrets
from collections.abc import Collection
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F

from marketplace.accounts.locks import lock_api_key
from marketplace.accounts.models import WORKERS, ApiKey, Organisation, Scope, User
from marketplace.accounts.policy import Right, check_right
from marketplace.common.errors import Conflict, NotFound, UserError

#: Random bytes of a secret.
SECRET_BYTES = 32
#: Letters and digits of the visible part and of the hidden part of a key.
PREFIX_LENGTH = 10
#: Nothing longer is looked at.
KEY_LENGTH_MAX = 200
#: Live keys of one organisation.
API_KEYS_MAX = 100
#: The longest time for which a secret and the one that replaces it may both be used.
OVERLAP_MAX = timedelta(days=30)
LAST_USED_RESOLUTION = timedelta(minutes=1)


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
        ``not_a_member`` or ``role_not_enough``: ``created_by`` may not work for the organisation.
    Conflict
        ``too_many_api_keys``.
    """
    check_right(organisation=organisation, user=created_by, right=Right.WORK)
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
        secret_hash=hash_secret(secret),
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
            check_right(organisation=organisation, user=rotated_by, right=Right.OWN)
        secret = f"{key.prefix}_{secrets.token_urlsafe(SECRET_BYTES)}"
        key.earlier_secret_hash, key.earlier_secret_until = key.secret_hash, now + overlap
        key.secret_hash = hash_secret(secret)
        key.save(update_fields=["secret_hash", "earlier_secret_hash", "earlier_secret_until"])
    return key, secret


def _is_secret_of(key: ApiKey, secret: str, *, now: datetime) -> bool:
    found = hash_secret(secret)
    if secrets.compare_digest(key.secret_hash, found):
        return True
    overlaps = key.earlier_secret_until is not None and now < key.earlier_secret_until
    return overlaps and secrets.compare_digest(key.earlier_secret_hash, found)


def authenticate_api_keys(*, given: Collection[str], now: datetime) -> dict[str, ApiKey | None]:
    """The live key behind each secret, or nothing, read together."""
    prefixes = {secret: "_".join(secret[:KEY_LENGTH_MAX].split("_", 2)[:2]) for secret in given}
    # Filter and annotation look at one membership: that of the key's maker.
    rows = (
        ApiKey.objects.select_related("organisation", "created_by")
        .filter(
            prefix__in={prefix for prefix in prefixes.values() if "\0" not in prefix},
            revoked_at=None,
            created_by__is_active=True,
            organisation__memberships__user=F("created_by"),
            organisation__memberships__role__in=WORKERS,
        )
        .annotate(maker_role=F("organisation__memberships__role"))
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
        check_right(organisation=organisation, user=revoked_by, right=Right.OWN)
    live.update(revoked_at=now)


def hash_secret(secret: str) -> str:
    """A secret is long and random: one round is enough, and the hash finds its row."""
    return hashlib.sha256(secret.encode()).hexdigest()
