"""A small market to begin with: three people, two organisations, a zone and a full wallet."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from marketplace.accounts.models import ApiKey, Organisation, Scope, User
from marketplace.accounts.services import (
    api_key_create,
    api_key_revoke,
    organisation_create,
    password_set,
    user_register,
)
from marketplace.common.locks import advisory_lock
from marketplace.fleet.services import (
    join_token_create,
    provider_approve,
    provider_ensure,
    zone_ensure,
)
from marketplace.payments.selectors import wallet
from marketplace.payments.services import wallet_grant

OWNER = "owner@example.com"
PROVIDER = "provider@example.com"
OPERATOR = "operator@example.com"
OWNERS_ORGANISATION = "Northwind Labs"
PROVIDERS_ORGANISATION = "Lakeside Compute"
KEY_NAME = "Demo"


@dataclass(frozen=True, slots=True)
class Terms:
    """What the demo may choose."""

    password: str
    grant_micros: int
    zone: str
    base_model: str
    #: Seconds; the demo's slots are short so that a person can watch them pass.
    slot_s: int
    horizon_slots: int
    base_memory_gb: float
    max_sequence_length: int
    ask_micros: int
    #: Tokens to make for nodes that are still to join.
    join_tokens: int


@dataclass(frozen=True, slots=True)
class Seeded:
    """What there is now; the secrets are shown here and never again."""

    people: dict[str, str]
    password: str
    organisation: str
    organisation_id: str
    available_micros: int
    provider: str
    zone: str
    slot_s: int
    api_key: str
    join_tokens: tuple[str, ...]


def market_seed(*, terms: Terms, now: datetime) -> Seeded:
    """Makes what is missing and leaves the rest; only secrets are made anew each time."""
    with advisory_lock("config.seed", "demo", wait=True):
        owner = _person(OWNER, "Olga Owner", terms.password, now=now)
        provider = _person(PROVIDER, "Pavel Provider", terms.password, now=now)
        operator = _person(OPERATOR, "Oona Operator", terms.password, now=now, is_operator=True)
        northwind = _organisation(OWNERS_ORGANISATION, owner, now=now)
        lakeside = _organisation(PROVIDERS_ORGANISATION, provider, now=now)
        wallet_grant(
            organisation=northwind,
            amount_micros=terms.grant_micros,
            granted_by=operator,
            # Once for each amount asked for, however often the market is seeded.
            reference=f"seed-demo:{terms.grant_micros}",
            now=now,
            memo="Opening balance",
        )
        zone = zone_ensure(
            name=terms.zone,
            base_model_name=terms.zone,
            base_model_source=terms.base_model,
            slot_s=terms.slot_s,
            horizon_slots=terms.horizon_slots,
            epoch_at=now.replace(microsecond=0),
            base_memory_gb=terms.base_memory_gb,
            max_sequence_length=terms.max_sequence_length,
            now=now,
            # A dead node is noticed, and its work taken up again, within a few slots.
            checkpoint_every_s=2.0 * terms.slot_s,
            lease_grace_s=2.0 * terms.slot_s,
            heartbeat_every_s=max(1.0, terms.slot_s / 2),
        )
        asked = provider_ensure(organisation=lakeside, now=now)
        listed = provider_approve(provider=asked, approved_by=None, now=now)
        tokens = tuple(
            join_token_create(
                zone=zone,
                provider=listed,
                created_by=provider,
                ask_micros=terms.ask_micros,
                now=now,
                life=timedelta(hours=24),
            )[1]
            for _ in range(terms.join_tokens)
        )
        return Seeded(
            people={"owner": OWNER, "provider": PROVIDER, "operator": OPERATOR},
            password=terms.password,
            organisation=northwind.name,
            organisation_id=northwind.pk,
            available_micros=wallet(organisation=northwind).available_micros,
            provider=lakeside.name,
            zone=zone.name,
            slot_s=zone.slot_s,
            api_key=_key(northwind, owner, now=now),
            join_tokens=tokens,
        )


def _person(
    email: str, name: str, password: str, *, now: datetime, is_operator: bool = False
) -> User:
    person = User.objects.filter(email=email).first()
    if person is None:
        return user_register(
            email=email, password=password, name=name, is_operator=is_operator, now=now
        )
    if not person.check_password(password):
        password_set(user=person, password=password)
    return person


def _organisation(name: str, owner: User, *, now: datetime) -> Organisation:
    found = Organisation.objects.filter(name=name, memberships__user=owner).first()
    return found or organisation_create(name=name, created_by=owner, now=now)


def _key(organisation: Organisation, owner: User, *, now: datetime) -> str:
    """A fresh key in place of the last one, whose secret nobody can read any more."""
    with transaction.atomic():
        for old in ApiKey.objects.filter(
            organisation=organisation, name=KEY_NAME, revoked_at=None
        ).values_list("pk", flat=True):
            api_key_revoke(organisation=organisation, key_id=old, now=now)
        _, secret = api_key_create(
            organisation=organisation,
            created_by=owner,
            name=KEY_NAME,
            scopes=Scope.values,
            now=now,
        )
    return secret
