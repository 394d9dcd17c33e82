"""Who gets which part of a payment, and when they may have it."""

from datetime import timedelta

import pytest

from marketplace.common.errors import Conflict, NotFound
from marketplace.payments.earning_sums import find_wrong_sums
from marketplace.payments.ledger_checks import SharedAsks, check_ledger, check_recent
from marketplace.payments.maturity import mature_earnings
from marketplace.payments.models import Distribution, Earning, EarningKind, EarningSum, Hold
from marketplace.payments.selectors import (
    Earnings,
    get_earnings,
    get_house_balances,
    get_wallet,
    list_earnings,
)
from marketplace.payments.services import (
    CostSplit,
    Share,
    charge_and_distribute,
    distribute_charge,
    pay_sla_credit,
    pay_vendor,
    refund_charge,
    release_hold,
)
from tests import builders
from tests.audits import alter_row
from tests.builders import NOW
from tests.world.lock_order import LockOrder, watch_locks

pytestmark = pytest.mark.django_db


@pytest.fixture
def owner():
    """An organisation with ten dollars, of which three were charged for ``bid_1``."""
    made = builders.organisation(usd="10")
    builders.hold_funds(organisation=made, amount_micros=8_000_000, reference="bid_1")
    builders.settle_hold(hold_reference="bid_1", charge_micros=3_000_000)
    return made


@pytest.fixture
def provider():
    return builders.provider_organisation()


def test_a_payment_is_shared_out_and_the_rest_is_the_houses(owner, provider) -> None:
    second, vendor = builders.provider_organisation(), builders.organisation()
    for _ in range(2):
        pay_vendor(
            hold_reference="bid_1",
            organisation_id=vendor.pk,
            amount_micros=250_000,
            disputable_until=NOW,
            now=NOW,
        )
    assert check_ledger().balanced
    split = builders.cost_split(
        Share(provider.pk, 900_000),
        Share(provider.pk, 100_000),
        Share(second.pk, 500_000),
        Share(builders.provider_organisation().pk, 0),
    )
    hold = distribute_charge(hold_reference="bid_1", split=split, now=NOW)
    assert hold.distributed_at == NOW
    assert [get_earnings(organisation=o).pending_micros for o in (provider, second, vendor)] == [
        1_000_000,
        500_000,
        250_000,
    ]
    balances = get_house_balances()
    assert (balances["clearing"], balances["revenue"]) == (0, 1_250_000)
    assert set(Earning.objects.values_list("organisation_id", "kind", "amount_micros")) == {
        (provider.pk, "provider", 1_000_000),
        (second.pk, "provider", 500_000),
        (vendor.pk, "vendor", 250_000),
    }
    assert check_ledger().balanced


def test_charging_and_sharing_out_at_once_locks_money_in_its_order(owner, provider) -> None:
    builders.hold_funds(organisation=owner, amount_micros=1_000_000, reference="one")
    split = builders.cost_split(Share(provider.pk, 600_000))
    with watch_locks(LockOrder()):
        charge_and_distribute(hold_reference="one", charge_micros=600_000, split=split, now=NOW)
    [earning] = Earning.objects.all()
    assert (earning.organisation_id, earning.amount_micros) == (provider.pk, 600_000)
    assert check_ledger().balanced


def test_sharing_out_twice_is_sharing_out_once(owner, provider) -> None:
    for amount in (900_000, 5_000_000):
        split = builders.cost_split(Share(provider.pk, amount))
        distribute_charge(hold_reference="bid_1", split=split, now=NOW)
    assert get_earnings(organisation=provider).pending_micros == 900_000
    assert Earning.objects.count() == 1


def test_a_vendor_keeps_its_pay_when_the_payment_is_refunded_and_the_house_bears_it(
    owner, provider
) -> None:
    vendor = builders.organisation()
    pay = {
        "organisation_id": vendor.pk,
        "amount_micros": 250_000,
        "disputable_until": NOW,
        "now": NOW,
    }
    pay_vendor(hold_reference="bid_1", **pay)
    refund_charge(hold_reference="bid_1", amount_micros=3_000_000, reason="failed", now=NOW)
    split = builders.cost_split(Share(provider.pk, 0), returned=2_000_000)
    distribute_charge(hold_reference="bid_1", split=split, now=NOW)
    assert get_earnings(organisation=vendor).pending_micros == 250_000
    balances = get_house_balances()
    assert (balances["revenue"], balances["refunds"], balances["clearing"]) == (0, -250_000, 0)
    assert check_ledger().balanced
    # What was shared out pays no second vendor, and a hold that was released pays none.
    assert pay_vendor(hold_reference="bid_1", **pay).vendor_micros == 250_000
    builders.hold_funds(organisation=owner, amount_micros=1_000, reference="bid_2")
    with pytest.raises(Conflict, match="no vendor can be paid"):
        pay_vendor(hold_reference="bid_2", **pay)
    assert get_earnings(organisation=vendor).pending_micros == 250_000


def test_a_split_that_does_not_add_up_is_refused() -> None:
    share = Share("org_1", 700_000)
    for asks, returned, borne in [(700_001, 0, 0), (700_000, 1, 0), (700_000, 0, 1)]:
        with pytest.raises(ValueError, match="do not add up"):
            CostSplit(
                asks_micros=asks,
                asks_returned_micros=returned,
                shares=(share,),
                borne_pay_micros=borne,
            )
    with pytest.raises(ValueError, match="negative"):
        CostSplit(asks_micros=-1, asks_returned_micros=0, shares=(Share("org_1", -1),))


def test_the_house_never_pays_out_more_than_is_left_of_a_payment(owner, provider) -> None:
    split = builders.cost_split(Share(provider.pk, 3_000_001))
    with pytest.raises(ValueError, match="more than the 3000000 that are left"):
        distribute_charge(hold_reference="bid_1", split=split, now=NOW)
    assert Earning.objects.count() == Distribution.objects.count() == 0
    assert get_house_balances()["clearing"] == 3_000_000


def test_work_of_a_job_that_was_refunded_is_paid_by_the_house(owner, provider) -> None:
    refund_charge(hold_reference="bid_1", amount_micros=3_000_000, reason="failed", now=NOW)
    split = builders.cost_split(Share(provider.pk, 700_000), returned=2_000_000, borne=700_000)
    distribute_charge(hold_reference="bid_1", split=split, now=NOW)
    assert get_earnings(organisation=provider).pending_micros == 700_000
    balances = get_house_balances()
    assert (balances["revenue"], balances["refunds"], balances["clearing"]) == (0, -700_000, 0)
    check = check_ledger()
    assert check.balanced
    assert check.shared_asks == SharedAsks(
        asks_micros=2_000_000,
        earned_micros=700_000,
        returned_micros=2_000_000,
        borne_micros=700_000,
    )


def test_a_credit_is_paid_out_of_what_a_late_provider_does_not_get(owner, provider) -> None:
    pay_sla_credit(
        organisation=owner, amount_micros=750_000, hold_reference="bid_1", reason="late", now=NOW
    )
    split = builders.cost_split(
        Share(provider.pk, 1_500_000), returned=500_000, credit_withheld_micros=500_000
    )
    distribute_charge(hold_reference="bid_1", split=split, now=NOW)
    assert get_earnings(organisation=provider).pending_micros == 1_500_000
    balances = get_house_balances()
    assert (balances["revenue"], balances["sla_credits"]) == (1_000_000, -250_000)
    assert check_ledger().balanced


def test_the_check_finds_pay_against_the_rule(owner, provider) -> None:
    split = builders.cost_split(Share(provider.pk, 700_000))
    distribute_charge(hold_reference="bid_1", split=split, now=NOW)
    assert check_ledger().wrong_pay == ()
    Earning.objects.create(
        organisation=builders.provider_organisation(),
        kind=EarningKind.PROVIDER,
        reference="bid_1",
        amount_micros=1,
        accrued_at=NOW,
        payable_at=NOW,
    )
    check = check_ledger()
    assert (check.wrong_pay, check.balanced) == (("bid_1",), False)


@pytest.mark.parametrize("column", ["charged_micros", "refunded_micros", "vendor_micros"])
def test_the_checks_find_a_hold_that_says_other_than_its_postings(owner, column: str) -> None:
    assert check_recent().wrong_charges == ()
    alter_row(f"UPDATE payments_hold SET {column} = {column} + 1")
    assert check_recent().wrong_charges == check_ledger().wrong_charges == ("bid_1",)


@pytest.mark.parametrize(
    "change",
    [
        *(
            f"UPDATE payments_distribution SET {column} = {column} + 1"
            for column in (
                *("asks_micros", "asks_returned_micros", "asks_kept_micros"),
                *("borne_pay_micros", "borne_credit_micros", "borne_vendor_micros"),
            )
        ),
        # Two that hide each other from the sum of the parts.
        "UPDATE payments_distribution SET asks_micros = asks_micros + 1,"
        " asks_returned_micros = asks_returned_micros + 1",
        "UPDATE payments_distribution"
        " SET at_fault_id = (SELECT min(id) FROM accounts_organisation)",
        "DELETE FROM payments_distribution",
    ],
)
def test_the_checks_find_a_payment_that_was_shared_out_otherwise(
    owner, provider, change: str
) -> None:
    distribute_charge(
        hold_reference="bid_1", split=builders.cost_split(Share(provider.pk, 700_000)), now=NOW
    )
    assert check_recent().balanced
    alter_row(change)
    assert check_recent().wrong_shares == check_ledger().wrong_shares == ("bid_1",)
    assert not check_ledger().balanced


@pytest.mark.parametrize(("borne", "is_found"), [(7, False), (6, True), (8, True)])
def test_a_credit_that_the_market_bears_alone_is_booked_by_its_own_entry(
    owner, provider, borne: int, is_found: bool
) -> None:
    """All of a late job went back, as nothing of it was done."""
    refund_charge(hold_reference="bid_1", amount_micros=3_000_000, reason="All", now=NOW)
    pay_sla_credit(
        organisation=owner, amount_micros=7, hold_reference="bid_1", reason="Late", now=NOW
    )
    split = CostSplit(
        asks_micros=5,
        asks_returned_micros=5,
        shares=(),
        borne_credit_micros=borne,
        at_fault_id=provider.pk,
    )
    distribute_charge(hold_reference="bid_1", split=split, now=NOW)
    assert check_ledger().wrong_shares == (("bid_1",) if is_found else ())


@pytest.mark.parametrize(
    ("noted", "is_found"),
    [
        ({}, False),
        ({"asks_micros": 5, "asks_returned_micros": 5}, False),
        # Uses up what the market bears a day for a provider.
        ({"at_fault": True, "borne_credit_micros": 5}, True),
        ({"at_fault": True}, True),
        # These hide each other from the sum of the parts.
        ({"asks_returned_micros": 5, "borne_pay_micros": 5}, True),
        ({"asks_micros": 5, "asks_kept_micros": 5}, True),
    ],
)
@pytest.mark.parametrize("is_shared_out", [True, False])
def test_the_whole_check_finds_a_distribution_that_no_entry_booked(
    owner, provider, noted, is_found: bool, is_shared_out: bool
) -> None:
    refund_charge(hold_reference="bid_1", amount_micros=3_000_000, reason="All", now=NOW)
    hold = Hold.objects.get(reference="bid_1")
    if is_shared_out:
        Hold.objects.filter(pk=hold.pk).update(distributed_at=NOW)
    unpaid = dict.fromkeys(("asks_micros", "asks_returned_micros", "borne_pay_micros"), 0)
    unpaid["borne_credit_micros"] = 0
    terms = unpaid | noted | {"at_fault": provider if noted.get("at_fault") else None}
    Distribution.objects.create(hold=hold, made_at=NOW, **terms)
    is_found = is_found or not is_shared_out
    assert check_ledger().wrong_shares == (("bid_1",) if is_found else ())
    assert check_ledger().balanced is not is_found


@pytest.mark.parametrize(
    "change",
    [
        "amount_micros = amount_micros + 1",
        "kind = 'vendor'",
        "kind = 'idle'",
        "reference = 'bid_2'",
        "organisation_id = (SELECT organisation_id FROM payments_hold)",
        "matured_at = now()",
        "returned_at = now()",
    ],
)
def test_the_whole_check_finds_an_earning_that_its_posting_does_not_say(
    owner, provider, change: str
) -> None:
    split = builders.cost_split(Share(provider.pk, 700_000))
    distribute_charge(hold_reference="bid_1", split=split, now=NOW)
    alter_row(f"UPDATE payments_earning SET {change}")
    assert check_ledger().wrong_earnings != ()


def test_the_checks_find_earnings_that_are_not_their_postings(owner, provider) -> None:
    split = builders.cost_split(Share(provider.pk, 700_000))
    distribute_charge(hold_reference="bid_1", split=split, now=NOW)
    alter_row("UPDATE payments_earning SET matured_at = now()")
    assert (check_recent().wrong_earnings, check_ledger().wrong_earnings) == ((), (provider.pk,))
    alter_row("UPDATE payments_earning SET amount_micros = amount_micros - 1, matured_at = NULL")
    assert check_recent().wrong_earnings == ("bid_1",)
    assert check_ledger().wrong_earnings == ("bid_1", provider.pk)


def test_a_sum_follows_its_lines_and_the_check_finds_where_it_does_not(owner, provider) -> None:
    """Lines of one statement share a sum; what is taken back leaves it, and may come back."""
    late = NOW.replace(hour=23, minute=59, second=59)
    made = Earning.objects.bulk_create(
        Earning(
            organisation=earner,
            kind=EarningKind.PROVIDER,
            reference=reference,
            amount_micros=amount,
            accrued_at=at,
            payable_at=at,
        )
        for earner, reference, amount, at in [
            (provider, "one", 5, late),
            (provider, "two", 7, late),
            (provider, "three", 9, late + timedelta(seconds=1)),
            (owner, "four", 11, late),
        ]
    )
    today = late.replace(minute=45, second=0)
    tomorrow = today + timedelta(minutes=15)

    def read() -> set[tuple[object, ...]]:
        columns = ("organisation", "starts_at", "amount_micros", "lines")
        return set(EarningSum.objects.values_list(*columns))

    others = {(provider.pk, tomorrow, 9, 1), (owner.pk, today, 11, 1)}
    assert read() == {(provider.pk, today, 12, 2)} | others
    first = Earning.objects.filter(pk=made[0].pk)
    first.update(matured_at=NOW, withheld_at=NOW)
    assert read() == {(provider.pk, today, 12, 2)} | others
    for _ in range(2):
        first.update(returned_at=NOW)
        assert read() == {(provider.pk, today, 7, 1)} | others
    Earning.objects.filter(organisation=provider).update(returned_at=NOW)
    assert read() == {(provider.pk, today, 0, 0), (provider.pk, tomorrow, 0, 0)} | {
        (owner.pk, today, 11, 1)
    }
    Earning.objects.filter(organisation=provider).update(returned_at=None)
    assert read() == {(provider.pk, today, 12, 2)} | others
    assert find_wrong_sums() == ()
    EarningSum.objects.filter(organisation=owner).update(amount_micros=12)
    assert find_wrong_sums() == (owner.pk,)
    EarningSum.objects.filter(organisation=owner).update(amount_micros=11)
    EarningSum.objects.create(
        organisation=provider, starts_at=today - timedelta(days=9), amount_micros=1, lines=1
    )
    assert find_wrong_sums() == (provider.pk,)
    assert provider.pk in check_ledger().wrong_earnings


def test_a_refund_after_sharing_out_is_the_houses_expense(owner, provider) -> None:
    split = builders.cost_split(Share(provider.pk, 700_000))
    distribute_charge(hold_reference="bid_1", split=split, now=NOW)
    refund_charge(hold_reference="bid_1", amount_micros=3_000_000, reason="late", now=NOW)
    balances = get_house_balances()
    assert (balances["clearing"], balances["revenue"], balances["refunds"]) == (
        0,
        2_300_000,
        -3_000_000,
    )
    assert get_earnings(organisation=provider).pending_micros == 700_000
    assert get_wallet(organisation=owner).available_micros == 10_000_000
    assert check_ledger().balanced


def test_a_charge_of_nothing_is_shared_out_without_an_entry(provider) -> None:
    made = builders.organisation(usd="1")
    builders.hold_funds(organisation=made, amount_micros=1_000_000, reference="bid_2")
    builders.settle_hold(hold_reference="bid_2", charge_micros=0)
    hold = distribute_charge(hold_reference="bid_2", split=builders.cost_split(), now=NOW)
    assert hold.distributed_at == NOW
    assert check_ledger().balanced


def test_only_a_charge_is_shared_out(provider) -> None:
    made = builders.organisation(usd="1")
    builders.hold_funds(organisation=made, amount_micros=1_000_000, reference="bid_2")
    for end in (lambda: None, lambda: release_hold(hold_reference="bid_2", now=NOW)):
        end()
        with pytest.raises(Conflict) as refused:
            distribute_charge(
                hold_reference="bid_2", split=builders.cost_split(Share(provider.pk, 1)), now=NOW
            )
        assert refused.value.code == "not_charged"
    with pytest.raises(NotFound):
        distribute_charge(hold_reference="bid_0", split=builders.cost_split(), now=NOW)
    assert Earning.objects.count() == 0


def test_earnings_become_payable_when_the_delay_is_over_and_not_before(provider, settings) -> None:
    settings.PAYOUT_DELAY_DAYS = 7
    other = builders.provider_organisation()
    owner = builders.organisation(usd="1")
    for day, organisation, reference in ((0, provider, "a"), (1, provider, "b"), (0, other, "c")):
        at = NOW + timedelta(days=day)
        builders.hold_funds(organisation=owner, amount_micros=50_000, reference=reference, now=at)
        builders.settle_hold(hold_reference=reference, charge_micros=50_000, now=at)
        share = Share(organisation.pk, 10_000 * (day + 1))
        distribute_charge(hold_reference=reference, split=builders.cost_split(share), now=at)
    assert mature_earnings(now=NOW + timedelta(days=7, seconds=-1)) == 0
    assert mature_earnings(now=NOW + timedelta(days=7)) == 2
    assert mature_earnings(now=NOW + timedelta(days=7)) == 0
    assert get_earnings(organisation=provider) == Earnings(
        pending_micros=20_000, payable_micros=10_000
    )
    assert get_earnings(organisation=other) == Earnings(pending_micros=0, payable_micros=10_000)
    assert mature_earnings(now=NOW + timedelta(days=30)) == 1
    assert get_earnings(organisation=provider) == Earnings(pending_micros=0, payable_micros=30_000)
    assert [e.reference for e in list_earnings(organisation=provider)] == ["b", "a"]
    assert check_ledger().balanced
