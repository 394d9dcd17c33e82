"""How money comes into a new wallet."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from marketplace.accounts.models import Organisation
from marketplace.common.errors import Conflict, NotAllowed, NotFound, UserError
from marketplace.payments.funding import (
    can_take_demo_money,
    decline_funds,
    find_funds_request,
    grant_funds,
    list_open_funds_requests,
    request_funds,
    take_demo_money,
)
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.models import Entry, FundsRequest
from marketplace.payments.selectors import get_wallet
from tests import builders
from tests.builders import NOW
from tests.unit.marketplace.common.threads import at_once

pytestmark = pytest.mark.django_db


@pytest.fixture
def organisation() -> Organisation:
    return builders.organisation()


def ask(organisation: Organisation, micros: int = 5_000_000) -> FundsRequest:
    owner = builders.owner_of(organisation)
    return request_funds(organisation=organisation, amount_micros=micros, asked_by=owner, now=NOW)


def available(organisation: Organisation) -> int:
    return get_wallet(organisation=organisation).available_micros


def grant(request: FundsRequest, micros: int = 5_000_000) -> FundsRequest:
    return grant_funds(
        request_id=request.pk, amount_micros=micros, granted_by=builders.operator(), now=NOW
    )


def test_a_request_is_seen_by_the_operator_and_granted_once(organisation: Organisation) -> None:
    request = ask(organisation)
    assert list_open_funds_requests() == [request]
    first, second = grant(request), grant(request)
    assert (first.answered_by_id, second.answered_by_id) == (first.answered_by_id,) * 2
    assert available(organisation) == 5_000_000
    assert list_open_funds_requests() == []
    assert find_funds_request(organisation=organisation) == request
    assert check_ledger().balanced


def test_asked_again_before_the_answer_the_new_amount_counts(organisation: Organisation) -> None:
    request = ask(organisation)
    assert ask(organisation, 7_000_000) == request
    with pytest.raises(Conflict, match=r"By now \$7.00 is asked for"):
        grant(request)
    assert available(organisation) == 0
    grant(request, 7_000_000)
    assert available(organisation) == 7_000_000


def test_a_declined_request_moves_nothing_and_may_be_made_again(
    organisation: Organisation,
) -> None:
    request = ask(organisation)
    operator = builders.operator()
    for _ in range(2):
        decline_funds(request_id=request.pk, declined_by=operator, now=NOW)
    with pytest.raises(Conflict, match="declined already"):
        grant(request)
    assert Entry.objects.count() == 0
    later = ask(organisation)
    assert later != request
    grant(later)
    with pytest.raises(Conflict, match="granted already"):
        decline_funds(request_id=later.pk, declined_by=operator, now=NOW + timedelta(seconds=1))
    assert available(organisation) == 5_000_000


def test_only_operators_answer(organisation: Organisation) -> None:
    request = ask(organisation)
    owner = builders.owner_of(organisation)
    with pytest.raises(NotAllowed):
        grant_funds(request_id=request.pk, amount_micros=5_000_000, granted_by=owner, now=NOW)
    with pytest.raises(NotAllowed):
        decline_funds(request_id=request.pk, declined_by=owner, now=NOW)
    with pytest.raises(NotFound):
        decline_funds(request_id="fund_\0x", declined_by=builders.operator(), now=NOW)
    request.refresh_from_db()
    assert (request.is_granted, available(organisation)) == (None, 0)


@pytest.mark.parametrize("micros", [0, -1, 100_000_000_001])
def test_an_amount_that_cannot_be_asked_for_leaves_no_request(
    organisation: Organisation, micros: int
) -> None:
    with pytest.raises(UserError, match="Ask for more than"):
        ask(organisation, micros)
    assert FundsRequest.objects.count() == 0


def test_demo_money_is_taken_once_for_each_organisation(
    organisation: Organisation, settings: Any
) -> None:
    settings.DEMO_MONEY_MICROS = 20_000_000
    owner = builders.owner_of(organisation)
    assert can_take_demo_money(organisation=organisation)
    for _ in range(2):
        take_demo_money(organisation=organisation, taken_by=owner, now=NOW)
    assert available(organisation) == 20_000_000
    assert not can_take_demo_money(organisation=organisation)
    assert can_take_demo_money(organisation=builders.organisation())
    assert check_ledger().balanced


def test_a_real_market_gives_no_demo_money(organisation: Organisation, settings: Any) -> None:
    settings.DEMO_MONEY_MICROS = 0
    assert not can_take_demo_money(organisation=organisation)
    with pytest.raises(NotAllowed):
        take_demo_money(
            organisation=organisation, taken_by=builders.owner_of(organisation), now=NOW
        )
    assert available(organisation) == 0


@pytest.mark.django_db(transaction=True)
def test_a_request_granted_and_declined_at_once_has_one_answer() -> None:
    organisation = builders.organisation()
    request, operator = ask(organisation), builders.operator()
    results = at_once(
        [
            lambda: grant(request),
            lambda: decline_funds(request_id=request.pk, declined_by=operator, now=NOW),
        ]
    )
    assert sorted(type(result).__name__ for result in results) == ["Conflict", "FundsRequest"]
    request.refresh_from_db()
    assert available(organisation) == (5_000_000 if request.is_granted else 0)
