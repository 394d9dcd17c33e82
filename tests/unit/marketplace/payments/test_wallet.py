"""What each service posts, exactly, and that a refusal leaves no trace."""

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction

from marketplace.common.errors import Conflict, NotAllowed, NotFound, PaymentRequired, UserError
from marketplace.common.money import MAX_MICROS
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.models import Entry, Hold, HoldStatus, Posting
from marketplace.payments.selectors import Wallet, get_house_balances, get_wallet
from marketplace.payments.services import grant_money, pay_sla_credit, refund_charge, release_hold
from tests import builders
from tests.builders import NOW

pytestmark = pytest.mark.django_db

LATER = NOW + timedelta(minutes=1)


def postings_of(kind: str, reference: str) -> set[tuple[str, str | None, int]]:
    """(account kind, organisation, amount) of one entry."""
    return set(
        Posting.objects.filter(entry__kind=kind, entry__reference=reference).values_list(
            "account__kind", "account__organisation_id", "amount_micros"
        )
    )


def traces() -> tuple[int, int, int]:
    return Entry.objects.count(), Posting.objects.count(), Hold.objects.count()


@pytest.fixture
def funded():
    """An organisation with ten dollars."""
    return builders.organisation(usd="10")


def test_a_grant_moves_money_from_the_grants_account_into_the_wallet() -> None:
    organisation = builders.organisation()
    operator = builders.operator()
    entry = grant_money(
        organisation=organisation,
        amount_micros=2_500_000,
        granted_by=operator,
        reference="opening",
        now=NOW,
    )
    assert (entry.actor, entry.booked_at) == (operator, NOW)
    assert postings_of("grant", "opening") == {
        ("grants", None, -2_500_000),
        ("wallet_available", organisation.pk, 2_500_000),
    }
    assert get_wallet(organisation=organisation) == Wallet(
        available_micros=2_500_000, held_micros=0
    )


def test_only_operators_grant() -> None:
    organisation = builders.organisation()
    before = traces()
    with pytest.raises(NotAllowed) as refused:
        grant_money(
            organisation=organisation,
            amount_micros=1,
            granted_by=builders.user(),
            reference="opening",
            now=NOW,
        )
    assert refused.value.code == "operators_only"
    assert traces() == before


def test_a_repeated_grant_is_booked_once_and_other_terms_are_a_conflict() -> None:
    organisation, other = builders.organisation(), builders.organisation()
    terms = {"granted_by": builders.operator(), "reference": "opening", "now": NOW}
    first = grant_money(organisation=organisation, amount_micros=5, **terms)
    assert grant_money(organisation=organisation, amount_micros=5, **terms) == first
    for repeated in (
        {"organisation": organisation, "amount_micros": 6},
        {"organisation": other, "amount_micros": 5},
    ):
        with pytest.raises(Conflict) as refused:
            grant_money(**repeated, **terms)
        assert refused.value.code == "reference_reused"
    assert get_wallet(organisation=organisation).available_micros == 5
    assert get_wallet(organisation=other).available_micros == 0


def test_a_hold_moves_money_within_the_wallet(funded) -> None:
    hold = builders.hold_funds(organisation=funded, amount_micros=8_000_000, reference="bid_1")
    assert (hold.status, hold.amount_micros, hold.held_at) == (HoldStatus.HELD, 8_000_000, NOW)
    assert postings_of("hold", "bid_1") == {
        ("wallet_available", funded.pk, -8_000_000),
        ("wallet_held", funded.pk, 8_000_000),
    }
    assert get_wallet(organisation=funded) == Wallet(
        available_micros=2_000_000, held_micros=8_000_000
    )


def test_the_whole_wallet_may_be_held_and_not_a_micro_dollar_more(funded) -> None:
    before = traces()
    with pytest.raises(PaymentRequired) as refused:
        builders.hold_funds(organisation=funded, amount_micros=10_000_001, reference="bid_1")
    assert refused.value.code == "insufficient_funds"
    assert refused.value.extra["short_by"] == "0.000001"
    assert refused.value.status == 402
    assert traces() == before
    builders.hold_funds(organisation=funded, amount_micros=10_000_000, reference="bid_1")
    assert get_wallet(organisation=funded) == Wallet(available_micros=0, held_micros=10_000_000)


def test_an_empty_wallet_holds_nothing() -> None:
    with pytest.raises(PaymentRequired):
        builders.hold_funds(organisation=builders.organisation(), amount_micros=1, reference="b")
    assert Hold.objects.count() == 0


@pytest.mark.parametrize("amount", [0, -1, MAX_MICROS + 1])
def test_amounts_outside_the_range_are_refused(funded, amount: int) -> None:
    before = traces()
    with pytest.raises(UserError) as refused:
        builders.hold_funds(organisation=funded, amount_micros=amount, reference="bid_1")
    assert refused.value.code == "invalid_amount"
    assert traces() == before


@pytest.mark.parametrize("amount", [1.0, True, "1"])
def test_amounts_that_are_not_whole_numbers_are_a_mistake_of_the_caller(funded, amount) -> None:
    with pytest.raises(TypeError):
        builders.hold_funds(organisation=funded, amount_micros=amount, reference="bid_1")
    with pytest.raises(TypeError):
        builders.settle_hold(hold_reference="bid_1", charge_micros=amount)


def test_a_reference_names_one_hold_and_a_second_one_leaves_no_trace(funded) -> None:
    builders.hold_funds(organisation=funded, amount_micros=6_000_000, reference="bid_1")
    other = builders.organisation(usd="10")
    before = traces()
    for owner in (funded, other):
        with pytest.raises(IntegrityError), transaction.atomic():
            builders.hold_funds(organisation=owner, amount_micros=1, reference="bid_1")
    assert traces() == before
    assert get_wallet(organisation=funded).held_micros == 6_000_000
    assert get_wallet(organisation=other).available_micros == 10_000_000


def test_a_winner_is_charged_and_gets_the_rest_back(funded) -> None:
    builders.hold_funds(organisation=funded, amount_micros=8_000_000, reference="bid_1")
    hold = builders.settle_hold(hold_reference="bid_1", charge_micros=3_100_000, now=LATER)
    assert (hold.status, hold.charged_micros, hold.ended_at) == (
        HoldStatus.CHARGED,
        3_100_000,
        LATER,
    )
    assert postings_of("charge", "bid_1") == {
        ("wallet_held", funded.pk, -8_000_000),
        ("wallet_available", funded.pk, 4_900_000),
        ("clearing", None, 3_100_000),
    }
    assert get_wallet(organisation=funded) == Wallet(available_micros=6_900_000, held_micros=0)


def test_a_charge_of_the_whole_hold_gives_nothing_back(funded) -> None:
    builders.hold_funds(organisation=funded, amount_micros=8_000_000, reference="bid_1")
    builders.settle_hold(hold_reference="bid_1", charge_micros=8_000_000, now=LATER)
    assert postings_of("charge", "bid_1") == {
        ("wallet_held", funded.pk, -8_000_000),
        ("clearing", None, 8_000_000),
    }


def test_a_job_may_cost_nothing(funded) -> None:
    builders.hold_funds(organisation=funded, amount_micros=8_000_000, reference="bid_1")
    hold = builders.settle_hold(hold_reference="bid_1", charge_micros=0, now=LATER)
    assert hold.status == HoldStatus.CHARGED
    assert get_wallet(organisation=funded) == Wallet(available_micros=10_000_000, held_micros=0)


@pytest.mark.parametrize("charge", [-1, 8_000_001])
def test_a_charge_stays_within_the_hold(funded, charge: int) -> None:
    builders.hold_funds(organisation=funded, amount_micros=8_000_000, reference="bid_1")
    before = traces()
    with pytest.raises(UserError) as refused:
        builders.settle_hold(hold_reference="bid_1", charge_micros=charge, now=LATER)
    assert refused.value.code == "invalid_amount"
    assert traces() == before
    assert Hold.objects.get(reference="bid_1").status == HoldStatus.HELD


def test_a_loser_gets_everything_back(funded) -> None:
    builders.hold_funds(organisation=funded, amount_micros=8_000_000, reference="bid_1")
    hold = release_hold(hold_reference="bid_1", now=LATER)
    assert (hold.status, hold.ended_at) == (HoldStatus.RELEASED, LATER)
    assert postings_of("release", "bid_1") == {
        ("wallet_held", funded.pk, -8_000_000),
        ("wallet_available", funded.pk, 8_000_000),
    }
    assert get_wallet(organisation=funded) == Wallet(available_micros=10_000_000, held_micros=0)


def test_ending_a_hold_twice_the_same_way_changes_nothing_more(funded) -> None:
    for reference in ("bid_1", "bid_2"):
        builders.hold_funds(organisation=funded, amount_micros=4_000_000, reference=reference)
    builders.settle_hold(hold_reference="bid_1", charge_micros=1_000_000)
    release_hold(hold_reference="bid_2", now=NOW)
    before = traces()
    again = builders.settle_hold(hold_reference="bid_1", charge_micros=1_000_000, now=LATER)
    released = release_hold(hold_reference="bid_2", now=LATER)
    assert (again.ended_at, released.ended_at) == (NOW, NOW)
    assert traces() == before


def test_an_ended_hold_does_not_end_another_way(funded) -> None:
    for reference in ("bid_1", "bid_2"):
        builders.hold_funds(organisation=funded, amount_micros=4_000_000, reference=reference)
    builders.settle_hold(hold_reference="bid_1", charge_micros=1_000_000)
    release_hold(hold_reference="bid_2", now=NOW)
    before = traces()
    attempts = (
        lambda: builders.settle_hold(hold_reference="bid_1", charge_micros=1_000_001, now=LATER),
        lambda: release_hold(hold_reference="bid_1", now=LATER),
        lambda: builders.settle_hold(hold_reference="bid_2", charge_micros=1_000_000, now=LATER),
    )
    for attempt in attempts:
        with pytest.raises(Conflict) as refused:
            attempt()
        assert refused.value.code == "hold_ended"
    assert traces() == before


def test_a_hold_nobody_made_is_not_found() -> None:
    for attempt in (
        lambda: builders.settle_hold(hold_reference="bid_0", charge_micros=1),
        lambda: release_hold(hold_reference="bid_0", now=NOW),
        lambda: refund_charge(hold_reference="bid_0", amount_micros=1, reason="x", now=NOW),
    ):
        with pytest.raises(NotFound):
            attempt()


def test_a_refund_before_sharing_out_comes_from_clearing(funded) -> None:
    builders.hold_funds(organisation=funded, amount_micros=8_000_000, reference="bid_1")
    builders.settle_hold(hold_reference="bid_1", charge_micros=3_000_000)
    hold = refund_charge(
        hold_reference="bid_1", amount_micros=2_000_000, reason="node lost", now=LATER
    )
    assert hold.refunded_micros == 2_000_000
    assert postings_of("refund", "bid_1:node lost") == {
        ("clearing", None, -2_000_000),
        ("wallet_available", funded.pk, 2_000_000),
    }
    again = refund_charge(
        hold_reference="bid_1", amount_micros=2_000_000, reason="node lost", now=LATER
    )
    assert again.refunded_micros == 2_000_000
    with pytest.raises(Conflict) as reused:
        refund_charge(hold_reference="bid_1", amount_micros=1, reason="node lost", now=LATER)
    assert reused.value.code == "reference_reused"
    with pytest.raises(Conflict) as exceeded:
        refund_charge(hold_reference="bid_1", amount_micros=1_000_001, reason="more", now=LATER)
    assert exceeded.value.code == "refund_exceeds_charge"
    assert exceeded.value.extra == {"left_micros": 1_000_000}
    refund_charge(hold_reference="bid_1", amount_micros=1_000_000, reason="the rest", now=LATER)
    assert get_wallet(organisation=funded) == Wallet(available_micros=10_000_000, held_micros=0)
    assert get_house_balances()["clearing"] == 0


def test_what_was_never_charged_is_not_refunded(funded) -> None:
    builders.hold_funds(organisation=funded, amount_micros=8_000_000, reference="bid_1")
    with pytest.raises(Conflict) as refused:
        refund_charge(hold_reference="bid_1", amount_micros=1, reason="x", now=NOW)
    assert refused.value.code == "not_charged"


def test_a_broken_promise_is_paid_by_the_house_once(funded) -> None:
    for _ in range(2):
        pay_sla_credit(
            organisation=funded,
            amount_micros=310_000,
            hold_reference="bid_1",
            reason="Finished 4 minutes late",
            now=NOW,
        )
    assert postings_of("sla_credit", "bid_1") == {
        ("sla_credits", None, -310_000),
        ("wallet_available", funded.pk, 310_000),
    }
    assert get_wallet(organisation=funded).available_micros == 10_310_000
    assert check_ledger().balanced
