"""Many holds in one transaction: each stands for itself."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction

from marketplace.common.errors import PaymentRequired, UserError
from marketplace.payments.holds import HoldRequest, place_holds
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.models import Entry, Hold
from marketplace.payments.selectors import Wallet, get_wallet
from tests import builders
from tests.builders import NOW

pytestmark = pytest.mark.django_db


def test_wallets_are_used_up_in_order_and_one_without_funds_stops_nobody():
    rich, poor = builders.organisation(usd="10"), builders.organisation(usd="1")
    wanted = [
        HoldRequest(rich.pk, 6_000_000, "a"),
        HoldRequest(poor.pk, 1_000_001, "b"),
        HoldRequest(rich.pk, 5_000_000, "c"),
        HoldRequest(poor.pk, 1_000_000, "d"),
        HoldRequest(rich.pk, 4_000_000, "e"),
    ]
    outcomes = place_holds(wanted=wanted, now=NOW)
    held = [outcome.reference for outcome in outcomes if isinstance(outcome, Hold)]
    assert held == ["a", "d", "e"]
    short = [outcome for outcome in outcomes if isinstance(outcome, PaymentRequired)]
    assert [error.extra["short_by"] for error in short] == ["0.000001", "1.000000"]
    assert get_wallet(organisation=rich) == Wallet(available_micros=0, held_micros=10_000_000)
    assert get_wallet(organisation=poor) == Wallet(available_micros=0, held_micros=1_000_000)
    assert set(Hold.objects.values_list("reference", flat=True)) == {"a", "d", "e"}
    assert check_ledger().balanced


def test_a_reference_that_was_used_before_refuses_all_and_moves_nothing():
    owner, other = builders.organisation(usd="10"), builders.organisation(usd="10")
    builders.hold_funds(organisation=owner, amount_micros=5, reference="a")
    for wanted in (
        [HoldRequest(other.pk, 7, "new"), HoldRequest(other.pk, 5, "a")],
        [HoldRequest(other.pk, 7, "new"), HoldRequest(owner.pk, 7, "new")],
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            place_holds(wanted=wanted, now=NOW)
    assert get_wallet(organisation=owner).held_micros == 5
    assert get_wallet(organisation=other) == Wallet(available_micros=10_000_000, held_micros=0)
    assert Entry.objects.filter(kind="hold").count() == 1


@pytest.mark.parametrize("amount_micros", [0, -1, 10**15 + 1])
def test_amounts_no_wallet_can_hold_are_refused_alone(amount_micros):
    owner = builders.organisation(usd="10")
    wanted = [HoldRequest(owner.pk, amount_micros, "a"), HoldRequest(owner.pk, 5, "b")]
    refused, held = place_holds(wanted=wanted, now=NOW)
    assert isinstance(refused, UserError)
    assert refused.code == "invalid_amount"
    assert isinstance(held, Hold)
    assert get_wallet(organisation=owner).held_micros == 5
