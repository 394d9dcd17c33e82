"""A small market to begin with: a few people, two customers with money, a provider, a zone."""

from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from marketplace.accounts.api_keys import create_api_key, revoke_api_key
from marketplace.accounts.models import ApiKey, Organisation, Scope, User
from marketplace.accounts.services import change_password, create_organisation, register_user
from marketplace.common.locks import advisory_lock
from marketplace.express.bank import give_consent
from marketplace.express.models import Sharing
from marketplace.fleet.models import Zone
from marketplace.fleet.services import (
    ListingTerms,
    ZoneModel,
    ZoneSlots,
    approve_provider,
    create_join_token,
    ensure_provider,
    ensure_zone,
)
from marketplace.payments.selectors import get_wallet
from marketplace.payments.services import grant_money
from marketplace.vendors.registration import ensure_automatic_vendor

OWNER = "owner@example.com"
PROVIDER = "provider@example.com"
OPERATOR = "operator@example.com"
OWNERS_ORGANISATION = "Northwind Labs"
PROVIDERS_ORGANISATION = "Lakeside Compute"
#: Another customer, so that the market has more than one.
NEIGHBOUR = "neighbour@example.com"
NEIGHBOURS_ORGANISATION = "Harbour Analytics"
#: Whose machines the automatic vendor runs on, and who pays for the express lane's seats.
HOUSES_ORGANISATION = "Finetender House"
KEY_NAME = "Demo"


@dataclass(frozen=True, slots=True)
class SeedTerms:
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
    #: Asks of nodes that are still to join; a token is made for each.
    join_asks_micros: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SeededMarket:
    """What there is now; the secrets are shown here and never again."""

    people: dict[str, str]
    password: str
    organisation: str
    organisation_id: str
    available_micros: int
    provider: str
    zone: str
    slot_s: int
    #: The organisation that pays for what the market buys itself.
    house: str
    api_key: str
    #: Of the other customer, who only trades.
    neighbour_api_key: str
    join_tokens: tuple[str, ...]


def seed_market(*, terms: SeedTerms, now: datetime) -> SeededMarket:
    """Makes what is missing and leaves the rest; only secrets are new each time."""
    with advisory_lock("demo.seed", "market", wait=True):
        owner = _ensure_person(OWNER, "Olga Owner", terms.password, now=now)
        provider = _ensure_person(PROVIDER, "Pavel Provider", terms.password, now=now)
        operator = _ensure_person(
            OPERATOR, "Oona Operator", terms.password, now=now, is_operator=True
        )
        northwind = _ensure_organisation(OWNERS_ORGANISATION, owner, now=now)
        lakeside = _ensure_organisation(PROVIDERS_ORGANISATION, provider, now=now)
        neighbour = _ensure_person(NEIGHBOUR, "Nora Neighbour", terms.password, now=now)
        harbour = _ensure_organisation(NEIGHBOURS_ORGANISATION, neighbour, now=now)
        house = _ensure_organisation(HOUSES_ORGANISATION, operator, now=now)
        for organisation, purpose in (
            (northwind, "seed-demo"),
            (harbour, "seed-neighbour"),
            (house, "seed-house"),
        ):
            grant_money(
                organisation=organisation,
                amount_micros=terms.grant_micros,
                granted_by=operator,
                # Once for each amount asked for, however often the market is seeded.
                reference=f"{purpose}:{terms.grant_micros}",
                now=now,
                memo="Opening balance",
            )
        zone = _ensure_zone(terms, now=now)
        ensure_automatic_vendor(
            organisation=house,
            zones=[zone],
            now=now,
        )
        give_consent(organisation=northwind, sharing=Sharing.PRIVATE, given_by=owner, now=now)
        asked = ensure_provider(organisation=lakeside, now=now)
        listed = approve_provider(provider=asked, approved_by=None, now=now)
        tokens = tuple(
            create_join_token(
                zone=zone,
                provider=listed,
                created_by=provider,
                terms=ListingTerms(ask_micros),
                now=now,
            )[1]
            for ask_micros in terms.join_asks_micros
        )
        return SeededMarket(
            people={"owner": OWNER, "provider": PROVIDER, "operator": OPERATOR},
            password=terms.password,
            organisation=northwind.name,
            organisation_id=northwind.pk,
            available_micros=get_wallet(organisation=northwind).available_micros,
            provider=lakeside.name,
            zone=zone.name,
            slot_s=zone.slot_s,
            house=house.name,
            api_key=_replace_key(northwind, owner, now=now),
            neighbour_api_key=_replace_key(harbour, neighbour, now=now),
            join_tokens=tokens,
        )


def _ensure_zone(terms: SeedTerms, *, now: datetime) -> Zone:
    return ensure_zone(
        name=terms.zone,
        base_model=ZoneModel(
            name=terms.zone,
            source=terms.base_model,
            memory_gb=terms.base_memory_gb,
            max_sequence_length=terms.max_sequence_length,
        ),
        slots=ZoneSlots(
            length_s=terms.slot_s,
            horizon=terms.horizon_slots,
            epoch_at=now.replace(microsecond=0),
        ),
        now=now,
        # A dead node is noticed, and its work taken up again, within a few slots.
        checkpoint_every_s=2.0 * terms.slot_s,
        lease_grace_s=2.0 * terms.slot_s,
        heartbeat_every_s=max(1.0, terms.slot_s / 2),
    )


def _ensure_person(
    email: str, name: str, password: str, *, now: datetime, is_operator: bool = False
) -> User:
    person = User.objects.filter(email=email).first()
    if person is None:
        return register_user(
            email=email, password=password, name=name, is_operator=is_operator, now=now
        )
    if not person.check_password(password):
        change_password(user=person, password=password)
    return person


def _ensure_organisation(name: str, owner: User, *, now: datetime) -> Organisation:
    found = Organisation.objects.filter(name=name, memberships__user=owner).first()
    return found or create_organisation(name=name, created_by=owner, now=now)


def _replace_key(organisation: Organisation, owner: User, *, now: datetime) -> str:
    """Replace the last key by a fresh one; the last one's secret cannot be read any more."""
    with transaction.atomic():
        for old in ApiKey.objects.filter(
            organisation=organisation, name=KEY_NAME, revoked_at=None
        ).values_list("pk", flat=True):
            revoke_api_key(organisation=organisation, key_id=old, revoked_by=owner, now=now)
        _, secret = create_api_key(
            organisation=organisation,
            created_by=owner,
            name=KEY_NAME,
            scopes=Scope.values,
            now=now,
        )
    return secret
