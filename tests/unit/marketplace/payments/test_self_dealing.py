"""Who buys from oneself with a card is paid once the card can contest no more."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from marketplace.accounts.models import Membership, Organisation
from marketplace.payments.chargebacks import record_chargeback
from marketplace.payments.earnings import Share, distribute_charge, pay_vendor
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.maturity import mature_earnings
from marketplace.payments.models import (
    AccountKind,
    CardPayment,
    Earning,
    Freeze,
    PaymentPurpose,
    PaymentStatus,
    Payout,
    PayoutAccount,
)
from marketplace.payments.payouts import start_payout
from marketplace.payments.reserves import compute_reserve
from marketplace.payments.selectors import get_earnings, get_house_balances, get_wallet
from marketplace.payments.stripe_doubts import ChargebackState
from tests import builders
from tests.builders import NOW

pytestmark = pytest.mark.django_db
CONTESTED = timedelta(days=120)


@pytest.fixture(autouse=True)
def books_balance(db: None) -> Any:
    yield
    check = check_ledger()
    assert check.balanced, check


def card_payment(of: Organisation, *, fingerprint: str = "fp_4242", at=NOW) -> CardPayment:
    """A card payment that filled a wallet, as far as the books are not asked."""
    return CardPayment.objects.create(
        organisation=of,
        purpose=PaymentPurpose.TOP_UP,
        key=f"{of.pk}-{at}",
        amount_cents=1000,
        received_cents=1000,
        status=PaymentStatus.PAID,
        gateway_id=f"pi_{of.pk}",
        card_fingerprint=fingerprint,
        created_at=at,
        ended_at=at,
    )


def earn(buyer: Organisation, earner: Organisation, *, micros: int, job: str = "bid_1") -> Earning:
    builders.hold_funds(organisation=buyer, amount_micros=micros, reference=job)
    builders.settle_hold(hold_reference=job, charge_micros=micros)
    split = builders.cost_split(Share(earner.pk, micros))
    distribute_charge(hold_reference=job, split=split, now=NOW)
    return Earning.objects.get(reference=job)


def test_only_a_purchase_from_oneself_by_card_waits(db: None) -> None:
    stranger, friend = builders.organisation(), builders.organisation()
    buyer = builders.organisation(usd="20")
    assert earn(buyer, buyer, micros=10, job="granted").contestable_until_at is None
    card_payment(buyer, at=NOW - timedelta(days=3))
    until = NOW - timedelta(days=3) + CONTESTED
    own = earn(buyer, buyer, micros=10, job="own")
    assert (own.contestable_until_at, own.payable_at) == (until, until)
    assert earn(buyer, stranger, micros=10, job="sold").contestable_until_at is None
    Membership.objects.create(organisation=friend, user=builders.owner_of(buyer), role="viewer")
    assert earn(buyer, friend, micros=10, job="friend").contestable_until_at == until
    card_payment(stranger, fingerprint="fp_other")
    assert earn(buyer, stranger, micros=10, job="another").contestable_until_at is None
    CardPayment.objects.filter(organisation=stranger).update(card_fingerprint="fp_4242")
    assert earn(buyer, stranger, micros=10, job="card").contestable_until_at == until


@pytest.mark.parametrize(("earned", "left"), [(6_000_000, 2_000_000), (3_000_000, 0)])
def test_a_lost_chargeback_takes_back_what_was_earned_with_it(
    db: None, earned: int, left: int
) -> None:
    buyer = builders.organisation(usd="6")
    payment = card_payment(buyer)
    earn(buyer, buyer, micros=earned)
    builders.hold_funds(
        organisation=buyer, amount_micros=5_999_999 - earned, reference="bid_2"
    ) if earned < 5_000_000 else None
    state = ChargebackState("dp_1", "ch_1", payment.gateway_id or "", 400, "fraudulent", None)
    record_chargeback(state, now=NOW)
    later = NOW + CONTESTED + timedelta(days=1)
    assert mature_earnings(now=later) == 0
    lost = ChargebackState("dp_1", "ch_1", payment.gateway_id or "", 400, "fraudulent", False)
    for _ in range(2):
        record_chargeback(lost, now=later)
    assert get_earnings(organisation=buyer).pending_micros == 0
    assert Earning.objects.get().returned_at == later
    owed = get_house_balances()[AccountKind.CHARGEBACKS]
    assert owed == min(0, earned + 1 - 4_000_000) if earned < 4_000_000 else owed == 0
    assert get_wallet(organisation=buyer).available_micros == left
    assert Freeze.objects.filter(ended_at=None).exists() == (owed < 0)


def test_an_appeal_that_is_won_gives_back_what_was_taken_from_earnings(db: None) -> None:
    buyer = builders.organisation(usd="6")
    payment = card_payment(buyer)
    earn(buyer, buyer, micros=5_000_000)
    for won in (False, True):
        record_chargeback(
            ChargebackState("dp_1", "ch_1", payment.gateway_id or "", 400, "fraudulent", won),
            now=NOW,
        )
    # A dollar that was left, what was earned beyond the rest, and the contested four.
    assert get_wallet(organisation=buyer).available_micros == 6_000_000
    assert get_earnings(organisation=buyer).pending_micros == 0
    assert get_house_balances()[AccountKind.CHARGEBACKS] == 0
    assert not Freeze.objects.filter(ended_at=None).exists()


def test_a_vendors_pay_that_a_lost_chargeback_takes_back_leaves_the_books_right(db: None) -> None:
    buyer = builders.organisation(usd="6")
    payment = card_payment(buyer)
    builders.hold_funds(organisation=buyer, amount_micros=6_000_000, reference="bid_1")
    builders.settle_hold(hold_reference="bid_1", charge_micros=6_000_000)
    pay_vendor(
        hold_reference="bid_1",
        organisation_id=buyer.pk,
        amount_micros=1_000_000,
        disputable_until=NOW,
        now=NOW,
    )
    lost = ChargebackState("dp_1", "ch_1", payment.gateway_id or "", 1000, "fraudulent", False)
    record_chargeback(lost, now=NOW)
    assert Earning.objects.get().returned_at == NOW


def test_what_was_earned_from_oneself_matures_once_it_is_safe(db: None) -> None:
    buyer = builders.organisation(usd="6")
    card_payment(buyer)
    earn(buyer, buyer, micros=1_000_000)
    assert mature_earnings(now=NOW + CONTESTED - timedelta(seconds=1)) == 0
    assert mature_earnings(now=NOW + CONTESTED) == 1


def test_a_part_of_a_new_payees_earnings_stays_and_leaves_later(db: None, settings: Any) -> None:
    settings.PAYOUT_RESERVE_PERCENT, settings.PAYOUT_RESERVE_DAYS = 10, 60
    settings.PAYOUT_THRESHOLD_MICROS = 1
    buyer, earner = builders.organisation(usd="100"), builders.organisation()
    PayoutAccount.objects.create(
        organisation=earner, gateway_id="acct_1", is_ready=True, made_at=NOW
    )
    earn(buyer, earner, micros=3_005_000, job="bid_1")
    earn(buyer, earner, micros=7_000_000, job="bid_2")
    paid_at = NOW + timedelta(days=8)
    mature_earnings(now=paid_at)
    assert compute_reserve(organisation_id=earner.pk, now=paid_at) == 1_000_500
    payout = start_payout(organisation_id=earner.pk, now=paid_at)
    assert payout is not None
    assert payout.amount_cents == 900
    assert sum(transfer.amount_cents for transfer in payout.transfers.all()) == 900
    assert get_earnings(organisation=earner).payable_micros == 1_005_000
    Payout.objects.update(status="paid")
    over = NOW + timedelta(days=60)
    assert compute_reserve(organisation_id=earner.pk, now=over - timedelta(seconds=1)) == 1_000_500
    assert compute_reserve(organisation_id=earner.pk, now=over) == 0
    rest = start_payout(organisation_id=earner.pk, now=over)
    assert rest is not None
    assert rest.amount_cents == 100
    assert [transfer.group for transfer in rest.transfers.all()] == [rest.pk]
