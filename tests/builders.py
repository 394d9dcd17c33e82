"""Rows for tests, made the way the site makes them; each builder names only what matters."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from itertools import count
from typing import Any

from django.conf import settings

from marketplace.accounts.api_keys import authenticate_api_keys, create_api_key
from marketplace.accounts.models import ApiKey, Organisation, Role, Scope, User
from marketplace.accounts.services import create_organisation, register_user
from marketplace.auction.probes import name_zone_task
from marketplace.common.errors import UserError
from marketplace.common.models import Heartbeat
from marketplace.common.money import to_micros
from marketplace.fleet.models import Zone
from marketplace.fleet.services import ensure_provider
from marketplace.payments.holds import HoldRequest, HoldSettlement, place_holds, settle_holds
from marketplace.payments.models import Hold
from marketplace.payments.services import CostSplit, Share, grant_money

#: The moment most tests happen at.
NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
PASSWORD = "correct horse battery"

_number = count(1)


def user(*, email: str | None = None, name: str = "", is_operator: bool = False) -> User:
    """A person with a personal organisation, who signs in with ``PASSWORD``."""
    return register_user(
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
    made = create_organisation(
        name=name or f"Organisation {next(_number)}", created_by=owner or user(), now=NOW
    )
    if usd is not None:
        fund_wallet(made, usd=usd)
    return made


def provider_organisation(*, name: str | None = None, owner: User | None = None) -> Organisation:
    """An organisation that may list nodes."""
    made = organisation(name=name, owner=owner)
    return ensure_provider(organisation=made, now=NOW).organisation


def owner_of(made: Organisation) -> User:
    return made.memberships.filter(role=Role.OWNER).select_related("user").earliest("pk").user


def fund_wallet(made: Organisation, *, usd: str | Decimal) -> None:
    grant_money(
        organisation=made,
        amount_micros=to_micros(usd),
        granted_by=operator(),
        reference=f"builder-{next(_number)}",
        now=NOW,
    )


def hold_funds(
    *, organisation: Organisation, amount_micros: int, reference: str, now: datetime = NOW
) -> Hold:
    """Money set aside as for one bid; raises what refuses it."""
    wanted = [HoldRequest(organisation.pk, amount_micros, reference)]
    [outcome] = place_holds(wanted=wanted, now=now)
    if isinstance(outcome, UserError):
        raise outcome
    return outcome


def settle_hold(*, hold_reference: str, charge_micros: int, now: datetime = NOW) -> Hold:
    """Charge part of what was set aside and give the rest back, as for one decision."""
    settle_holds(settlements=[HoldSettlement(hold_reference, charge_micros)], now=now)
    return Hold.objects.get(reference=hold_reference)


def cost_split(*shares: Share, returned: int = 0, borne: int = 0, **more: Any) -> CostSplit:
    """The operational cost of a job as these shares and what went back to its owner make it."""
    paid = sum(share.amount_micros for share in shares)
    return CostSplit(
        asks_micros=paid + returned - borne,
        asks_returned_micros=returned,
        shares=shares,
        borne_pay_micros=borne,
        **more,
    )


def authenticate(*, secret: str, now: datetime = NOW) -> ApiKey | None:
    """The live key behind a secret, if there is one."""
    return authenticate_api_keys(given=[secret], now=now)[secret]


def api_key(
    made: Organisation,
    *,
    scopes: list[str] | None = None,
    created_by: User | None = None,
    **terms: Any,
) -> tuple[ApiKey, str]:
    """A key with every scope, or ``scopes``, and its secret."""
    return create_api_key(
        organisation=made,
        created_by=created_by or owner_of(made),
        name="test",
        scopes=Scope.values if scopes is None else scopes,
        now=NOW,
        **terms,
    )


def beat_everything(*, now: datetime = NOW) -> None:
    """Note that every task of the clock, and each zone's lane, has just done its work."""
    tasks = {entry["task"] for entry in settings.CELERY_BEAT_SCHEDULE.values()}
    tasks |= {name_zone_task(pk) for pk in Zone.objects.values_list("pk", flat=True)}
    Heartbeat.objects.bulk_create(
        (Heartbeat(task=task, ok_at=now) for task in tasks),
        update_conflicts=True,
        unique_fields=["task"],
        update_fields=["ok_at", "error"],
    )
