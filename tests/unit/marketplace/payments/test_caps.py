"""Caps: a bid above one is refused, and those who pay hear how far it is used."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connections, transaction

from marketplace.accounts.models import Membership, Organisation, Role, User
from marketplace.common.errors import NotAllowed, NotFound, UserError
from marketplace.payments.caps import send_cap_notices, set_cap
from marketplace.payments.freezes import freeze_organisation
from marketplace.payments.holds import HoldRequest, place_holds
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.locks import lock_wallets
from marketplace.payments.models import Hold, SpendingCap
from marketplace.payments.selectors import Wallet, get_wallet
from marketplace.payments.services import refund_charge
from marketplace.webhooks.models import Notice
from tests import builders
from tests.builders import NOW
from tests.lane_process import blocked_backends
from tests.unit.marketplace.common.threads import at_once
from tests.waiting import until

pytestmark = pytest.mark.django_db


@pytest.fixture
def buyer() -> Organisation:
    return builders.organisation(usd="100")


def _join(buyer: Organisation) -> User:
    person = builders.user()
    Membership.objects.create(organisation=buyer, user=person, role=Role.MEMBER)
    return person


def _cap(buyer: Organisation, usd: int, *, period: str = "day", member: User | None = None) -> None:
    set_cap(
        organisation=buyer,
        member_id=member and member.pk,
        period=period,
        amount_micros=usd * 1_000_000,
    )


def _hold(
    buyer: Organisation, usd: float, name: str, *, by: User | None = None, now: datetime = NOW
) -> Any:
    request = HoldRequest(buyer.pk, int(usd * 1_000_000), name, placed_by_id=by and by.pk)
    return place_holds(wanted=[request], now=now)[0]


def test_open_bids_and_prices_count_and_what_came_back_does_not(buyer: Organisation) -> None:
    _cap(buyer, 10)
    assert isinstance(_hold(buyer, 8, "bid_1"), Hold)
    refused = _hold(buyer, 3, "bid_2")
    assert isinstance(refused, NotAllowed)
    assert (refused.code, refused.extra["left_micros"]) == ("spending_cap", 2_000_000)
    assert get_wallet(organisation=buyer) == Wallet(92_000_000, 8_000_000)
    builders.settle_hold(hold_reference="bid_1", charge_micros=4_000_000)
    assert isinstance(_hold(buyer, 6, "bid_3"), Hold)
    refund_charge(hold_reference="bid_1", amount_micros=4_000_000, reason="failed", now=NOW)
    assert isinstance(_hold(buyer, 4, "bid_4"), Hold)
    assert isinstance(_hold(buyer, 0.000001, "bid_5"), NotAllowed)


def test_a_cap_begins_again_with_its_day_or_month(buyer: Organisation) -> None:
    _cap(buyer, 10)
    _cap(buyer, 15, period="month")
    _hold(buyer, 10, "bid_1")
    tomorrow = NOW + timedelta(days=1)
    assert isinstance(_hold(buyer, 6, "bid_2", now=tomorrow), NotAllowed)
    assert isinstance(_hold(buyer, 5, "bid_3", now=tomorrow), Hold)
    assert isinstance(_hold(buyer, 10, "bid_4", now=NOW + timedelta(days=31)), Hold)


def test_a_members_cap_is_for_the_bids_of_that_member(buyer: Organisation) -> None:
    mira, noor = _join(buyer), _join(buyer)
    _cap(buyer, 5, member=mira)
    _cap(buyer, 12)
    assert isinstance(_hold(buyer, 6, "bid_1", by=mira), NotAllowed)
    assert isinstance(_hold(buyer, 5, "bid_2", by=mira), Hold)
    assert isinstance(_hold(buyer, 7, "bid_3", by=noor), Hold)
    assert isinstance(_hold(buyer, 1, "bid_4", by=noor), NotAllowed)


def test_of_bids_placed_together_those_within_the_cap_are_held(buyer: Organisation) -> None:
    _cap(buyer, 10)
    wanted = [HoldRequest(buyer.pk, 4_000_000, f"bid_{n}") for n in range(3)]
    outcomes = place_holds(wanted=wanted, now=NOW)
    assert [type(outcome).__name__ for outcome in outcomes] == ["Hold", "Hold", "NotAllowed"]
    flying = [HoldRequest(buyer.pk, 4_000_000, "bid_9")]
    assert isinstance(place_holds(wanted=flying, now=NOW, are_in_flight=True)[0], Hold)


@pytest.mark.django_db(transaction=True)
def test_bids_at_once_cannot_pass_a_cap_together(buyer: Organisation) -> None:
    _cap(buyer, 10)
    outcomes = at_once([lambda n=n: _hold(buyer, 4, f"bid_{n}") for n in range(4)])
    assert sum(isinstance(outcome, Hold) for outcome in outcomes) == 2
    assert check_ledger().balanced


@pytest.mark.django_db(transaction=True)
def test_bids_that_waited_for_their_wallets_see_what_was_set_meanwhile(
    buyer: Organisation,
) -> None:
    frozen = builders.organisation(usd="100")

    def hold(owner: Organisation) -> Any:
        try:
            return _hold(owner, 8, f"bid_{owner.pk}")
        finally:
            connections.close_all()

    with ThreadPoolExecutor(2) as threads:
        with transaction.atomic():
            lock_wallets([buyer.pk, frozen.pk])
            waiting = [threads.submit(hold, owner) for owner in (buyer, frozen)]
            until(lambda: blocked_backends() == 2, what="both wait for their wallets")
            _cap(buyer, 5)
            freeze_organisation(organisation_id=frozen.pk, reference="cb", reason="-", now=NOW)
        assert [one.result().code for one in waiting] == ["spending_cap", "organisation_frozen"]
    assert not Hold.objects.exists()


def test_those_who_pay_hear_of_each_share_once(buyer: Organisation) -> None:
    _cap(buyer, 10)
    said = []
    for number, usd in enumerate((4, 1, 3.5, 1.5)):
        _hold(buyer, usd, f"bid_{number}")
        for _ in range(2):
            send_cap_notices(now=NOW)
        said.append([notice.title for notice in Notice.objects.order_by("pk")])
    title = "{} % of a cap is used".format
    assert said == [[], [title(50)], [title(50), title(80)], [title(50), title(80), title(100)]]
    assert {notice.user_id for notice in Notice.objects.all()} == {builders.owner_of(buyer).pk}
    _hold(buyer, 6, "bid_9", now=NOW + timedelta(days=1))
    assert send_cap_notices(now=NOW + timedelta(days=1)) == 1


def test_caps_are_set_for_members_and_taken_away(buyer: Organisation) -> None:
    with pytest.raises(NotFound):
        _cap(buyer, 5, member=builders.user())
    with pytest.raises(UserError):
        _cap(buyer, 5, period="year")
    _cap(buyer, 5)
    _cap(buyer, 7)
    assert SpendingCap.objects.get().amount_micros == 7_000_000
    set_cap(organisation=buyer, member_id=None, period="day", amount_micros=None)
    assert not SpendingCap.objects.exists()


def test_a_cap_of_an_api_key_counts_what_came_with_it_and_nothing_else(buyer: Organisation) -> None:
    key, other = (builders.api_key(buyer)[0] for _ in range(2))
    set_cap(
        organisation=buyer,
        member_id=None,
        api_key_id=key.pk,
        period="month",
        amount_micros=5_000_000,
    )

    def hold(name: str, usd: int, key_id: str | None) -> Any:
        wanted = HoldRequest(buyer.pk, usd * 1_000_000, name, api_key_id=key_id)
        return place_holds(wanted=[wanted], now=NOW)[0]

    assert isinstance(hold("bid_1", 4, key.pk), Hold)
    refused = hold("bid_2", 2, key.pk)
    assert isinstance(refused, NotAllowed)
    assert refused.message.startswith("A cap of this API key is $5.00 a month, and $1.00 is left")
    assert isinstance(hold("bid_3", 20, other.pk), Hold)
    assert isinstance(hold("bid_4", 20, None), Hold)
    assert isinstance(hold("bid_5", 1, key.pk), Hold)


def test_a_cap_is_of_a_key_that_the_organisation_has(buyer: Organisation) -> None:
    foreign, _ = builders.api_key(builders.organisation())
    with pytest.raises(NotFound, match="no such API key"):
        set_cap(
            organisation=buyer,
            member_id=None,
            api_key_id=foreign.pk,
            period="day",
            amount_micros=5,
        )
    assert not SpendingCap.objects.exists()
