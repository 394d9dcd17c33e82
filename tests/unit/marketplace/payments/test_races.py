"""Everything at the same moment, on real connections."""

from threading import Event

import pytest
from django.db import transaction

from marketplace.common.errors import PaymentRequired
from marketplace.payments.holds import HoldRequest, place_holds
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.locks import lock_payment
from marketplace.payments.models import CardPayment, Entry, Hold
from marketplace.payments.selectors import Wallet, get_earnings, get_house_balances, get_wallet
from marketplace.payments.services import (
    Share,
    distribute_charge,
    grant_money,
    lock_wallets,
    refund_charge,
    release_hold,
)
from tests import builders
from tests.builders import NOW
from tests.unit.marketplace.common.threads import at_once

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def funded():
    """An organisation with ten dollars."""
    return builders.organisation(usd="10")


def test_of_two_holds_for_the_last_dollar_exactly_one_wins() -> None:
    funded = builders.organisation(usd="1")
    results = at_once(
        [
            lambda n=n: builders.hold_funds(
                organisation=funded, amount_micros=1_000_000, reference=f"bid_{n}"
            )
            for n in range(2)
        ]
    )
    assert sorted(type(result).__name__ for result in results) == ["Hold", "PaymentRequired"]
    assert get_wallet(organisation=funded) == Wallet(available_micros=0, held_micros=1_000_000)
    assert check_ledger().balanced


def test_eight_holds_share_a_wallet_that_has_room_for_three(funded) -> None:
    results = at_once(
        [
            lambda n=n: builders.hold_funds(
                organisation=funded, amount_micros=3_000_000, reference=f"bid_{n}"
            )
            for n in range(8)
        ]
    )
    assert sum(isinstance(result, Hold) for result in results) == 3
    assert sum(isinstance(result, PaymentRequired) for result in results) == 5
    assert get_wallet(organisation=funded) == Wallet(
        available_micros=1_000_000, held_micros=9_000_000
    )
    assert check_ledger().balanced


def test_one_reference_at_once_is_one_hold(funded) -> None:
    other = builders.organisation(usd="10")
    results = at_once(
        [
            lambda o=o: builders.hold_funds(
                organisation=o, amount_micros=4_000_000, reference="bid_1"
            )
            for o in (funded, other, funded)
        ]
    )
    assert sorted(type(result).__name__ for result in results) == [
        *("Hold", "IntegrityError", "IntegrityError")
    ]
    assert sorted(get_wallet(organisation=o).held_micros for o in (funded, other)) == [0, 4_000_000]
    assert check_ledger().balanced


def test_a_grant_repeated_at_once_is_booked_once(funded) -> None:
    operator = builders.operator()
    results = at_once(
        [
            lambda: grant_money(
                organisation=funded,
                amount_micros=5_000_000,
                granted_by=operator,
                reference="bonus",
                now=NOW,
            )
        ]
        * 6
    )
    assert len({entry.pk for entry in results}) == 1
    assert get_wallet(organisation=funded).available_micros == 15_000_000


def test_a_hold_settled_many_times_at_once_is_charged_once(funded) -> None:
    builders.hold_funds(organisation=funded, amount_micros=8_000_000, reference="bid_1")
    results = at_once(
        [lambda: builders.settle_hold(hold_reference="bid_1", charge_micros=3_000_000)] * 6
    )
    assert {hold.charged_micros for hold in results} == {3_000_000}
    assert Entry.objects.filter(kind="charge").count() == 1
    assert get_wallet(organisation=funded) == Wallet(available_micros=7_000_000, held_micros=0)


def test_a_hold_charged_and_released_at_once_ends_one_way(funded) -> None:
    for n in range(10):
        builders.hold_funds(organisation=funded, amount_micros=500_000, reference=f"bid_{n}")
    for n in range(10):
        results = at_once(
            [
                lambda n=n: builders.settle_hold(hold_reference=f"bid_{n}", charge_micros=200_000),
                lambda n=n: release_hold(hold_reference=f"bid_{n}", now=NOW),
            ]
        )
        assert sorted(type(result).__name__ for result in results) == ["Conflict", "Hold"]
    charged = Hold.objects.filter(status="charged").count()
    assert get_wallet(organisation=funded) == Wallet(
        available_micros=10_000_000 - 200_000 * charged, held_micros=0
    )
    assert check_ledger().balanced


def test_refunds_at_once_never_exceed_the_charge(funded) -> None:
    builders.hold_funds(organisation=funded, amount_micros=8_000_000, reference="bid_1")
    builders.settle_hold(hold_reference="bid_1", charge_micros=3_000_000)
    results = at_once(
        [
            lambda n=n: refund_charge(
                hold_reference="bid_1", amount_micros=1_000_000, reason=f"reason {n}", now=NOW
            )
            for n in range(5)
        ]
    )
    assert sum(isinstance(result, Hold) for result in results) == 3
    assert get_wallet(organisation=funded).available_micros == 10_000_000
    assert get_house_balances()["clearing"] == 0


def test_sharing_out_and_refunding_at_once_leaves_nothing_in_clearing(funded) -> None:
    provider = builders.provider_organisation()
    builders.hold_funds(organisation=funded, amount_micros=8_000_000, reference="bid_1")
    builders.settle_hold(hold_reference="bid_1", charge_micros=3_000_000)
    split = builders.cost_split(Share(provider.pk, 1_000_000))
    at_once(
        [
            lambda: distribute_charge(hold_reference="bid_1", split=split, now=NOW),
            lambda: refund_charge(
                hold_reference="bid_1", amount_micros=2_000_000, reason="late", now=NOW
            ),
            lambda: distribute_charge(hold_reference="bid_1", split=split, now=NOW),
        ]
    )
    balances = get_house_balances()
    assert balances["clearing"] == 0
    assert balances["revenue"] + balances["refunds"] == 0
    assert get_earnings(organisation=provider).pending_micros == 1_000_000
    assert check_ledger().balanced


def test_batches_over_the_same_wallets_in_opposite_orders_do_not_block_each_other() -> None:
    one, two = builders.organisation(usd="10"), builders.organisation(usd="10")

    def batch(name: str, organisations) -> None:
        with transaction.atomic():
            lock_wallets(organisation.pk for organisation in organisations)
            for organisation in organisations:
                reference = f"{name}-{organisation.pk}"
                builders.hold_funds(
                    organisation=organisation, amount_micros=10_000, reference=reference
                )
                builders.settle_hold(hold_reference=reference, charge_micros=10_000)

    for n in range(6):
        results = at_once(
            [lambda n=n: batch(f"a{n}", [one, two]), lambda n=n: batch(f"b{n}", [two, one])]
        )
        assert results == [None, None]
    assert [get_wallet(organisation=o).available_micros for o in (one, two)] == [9_880_000] * 2
    assert get_house_balances()["clearing"] == 240_000


def test_a_hold_names_its_card_payment_while_that_is_looked_at(funded) -> None:
    payment = CardPayment.objects.create(
        organisation=funded, purpose="bid", key="form", amount_cents=100, created_at=NOW
    )
    asked = HoldRequest(funded.pk, 1_000_000, "bid_1", payment.pk)
    with transaction.atomic():
        lock_payment(payment.pk)
        [[held]] = at_once([lambda: place_holds(wanted=[asked], now=NOW)])
    assert isinstance(held, Hold)


def test_a_first_entry_of_the_house_made_at_once_opens_one_account(funded) -> None:
    others = [builders.organisation(usd="1") for _ in range(4)]
    for n, other in enumerate(others):
        builders.hold_funds(organisation=other, amount_micros=1_000_000, reference=f"bid_{n}")
    results = at_once(
        [
            lambda n=n: builders.settle_hold(hold_reference=f"bid_{n}", charge_micros=1_000_000)
            for n in range(4)
        ]
    )
    assert all(isinstance(result, Hold) for result in results)
    assert get_house_balances()["clearing"] == 4_000_000


def test_the_check_is_not_fooled_by_traffic(funded) -> None:
    done = Event()

    def trade() -> None:
        try:
            for n in range(60):
                builders.hold_funds(organisation=funded, amount_micros=9_000, reference=f"b{n}")
                if n % 3:
                    builders.settle_hold(hold_reference=f"b{n}", charge_micros=5_000)
                    distribute_charge(hold_reference=f"b{n}", split=builders.cost_split(), now=NOW)
                else:
                    release_hold(hold_reference=f"b{n}", now=NOW)
        finally:
            done.set()

    def look() -> list[bool]:
        seen = [check_ledger().balanced]
        while not done.is_set():
            seen.append(check_ledger().balanced)
        return seen

    traded, seen = at_once([trade, look])
    assert traded is None
    assert len(seen) > 5
    assert all(seen)
    assert check_ledger().entries == 1 + 60 + 60 + 40
