"""Rows for tests, made the way the site makes them; each builder names only what matters."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from itertools import count

from marketplace.accounts.models import ApiKey, Organisation, Role, Scope, User
from marketplace.accounts.services import (
    api_key_create,
    organisation_create,
    provider_enable,
    user_register,
)
from marketplace.common.money import to_micros
from marketplace.payments.services import wallet_grant

#: The moment most tests happen at.
NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
PASSWORD = "correct horse battery"

_number = count(1)


def user(*, email: str | None = None, name: str = "", is_operator: bool = False) -> User:
    """A person with a personal organisation, who signs in with ``PASSWORD``."""
    return user_register(
        email=email or f"person{next(_number)}@example.com",
        password=PASSWORD,
        name=name,
        is_operator=is_operator,
        now=NOW,
    )


def operator(*, email: str | None = None) -> User:
    return user(email=email or f"operator{next(_number)}@example.com", is_operator=True)


def organisation(
    *, name: str | None = None, owner: User | None = None, usd: str | Decimal | None = None
) -> Organisation:
    """An organisation, with ``usd`` in its wallet when given."""
    made = organisation_create(
        name=name or f"Organisation {next(_number)}", created_by=owner or user(), now=NOW
    )
    if usd is not None:
        wallet_fund(made, usd=usd)
    return made


def provider_organisation(*, name: str | None = None, owner: User | None = None) -> Organisation:
    """An organisation that may list nodes."""
    made = organisation(name=name, owner=owner)
    return provider_enable(organisation=made, now=NOW)


def owner_of(made: Organisation) -> User:
    return made.memberships.filter(role=Role.OWNER).select_related("user").earliest("pk").user


def wallet_fund(made: Organisation, *, usd: str | Decimal) -> None:
    wallet_grant(
        organisation=made,
        amount_micros=to_micros(usd),
        granted_by=operator(),
        reference=f"builder-{next(_number)}",
        now=NOW,
    )


def api_key(
    made: Organisation, *, scopes: list[str] | None = None, created_by: User | None = None
) -> tuple[ApiKey, str]:
    """A key with every scope, or ``scopes``, and its secret."""
    return api_key_create(
        organisation=made,
        created_by=created_by or owner_of(made),
        name="test",
        scopes=Scope.values if scopes is None else scopes,
        now=NOW,
    )
