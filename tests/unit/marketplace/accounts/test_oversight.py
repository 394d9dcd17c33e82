"""Freezes and lifts by operators, and the limits of organisations that nobody knows yet."""

from __future__ import annotations

import io
from datetime import timedelta

import pytest
from django.urls import reverse

from marketplace.accounts.models import ApiKey, Organisation
from marketplace.accounts.new_accounts import filter_new
from marketplace.accounts.oversight import (
    find_organisations,
    freeze_key,
    lift_key_freeze,
    trust_organisation,
)
from marketplace.auction.models import Bid
from marketplace.common.errors import NotAllowed, UserError
from marketplace.jobs.services import receive_upload
from marketplace.payments.freezes import freeze_by_operator, lift_freeze
from marketplace.payments.models import Freeze, Hold
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from tests.pages import read_text
from tests.unit.marketplace.api.client import Api, assert_problem
from tests.unit.marketplace.common.threads import at_once

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator():
    return builders.operator()


@pytest.fixture
def zone():
    made = market.zone()
    market.node(made)
    return made


@pytest.fixture
def newcomer(settings):
    """An organisation with more money than it may spend on its first day."""
    settings.NEW_ACCOUNT_DAYS = 14
    settings.NEW_ACCOUNT_MICROS_PER_DAY = 12_000_000
    settings.NEW_ACCOUNT_JOBS = 3
    made = builders.organisation(usd="100")
    Organisation.objects.filter(pk=made.pk).update(created_at=NOW)
    made.refresh_from_db()
    return made


def refuse(act):
    with pytest.raises(UserError) as refused:
        act()
    return refused.value.code


def test_an_operator_freezes_an_organisation_with_a_reason_and_lifts_that(zone, operator):
    owner = builders.organisation(usd="10")
    for reason in ("", " \0 ", "x" * 301):
        assert (
            refuse(
                lambda reason=reason: freeze_by_operator(
                    organisation=owner, reason=reason, frozen_by=operator, now=NOW
                )
            )
            == "invalid_reason"
        )
    with pytest.raises(NotAllowed):
        freeze_by_operator(
            organisation=owner, reason="spam", frozen_by=builders.owner_of(owner), now=NOW
        )
    assert not Freeze.objects.exists()
    made = freeze_by_operator(organisation=owner, reason="Spam.", frozen_by=operator, now=NOW)
    with pytest.raises(NotAllowed, match=r"New bids are refused: Spam\."):
        market.bid(owner, zone)
    assert made.made_by == operator
    lift_freeze(freeze_id=made.pk, lifted_by=operator, now=NOW)
    assert market.bid(owner, zone).pk


def test_a_frozen_key_is_refused_with_the_reason_and_works_again_once_lifted(operator):
    owner = builders.organisation()
    api = Api(owner)
    [key] = ApiKey.objects.all()
    with pytest.raises(NotAllowed):
        freeze_key(key_id=key.pk, reason="x", frozen_by=builders.owner_of(owner), now=NOW)
    freeze_key(key_id=key.pk, reason="It floods us.", frozen_by=operator, now=NOW)
    refused = Api(owner)  # another key of theirs
    assert refused.get("/api/wallet").status_code == 200
    assert "It floods us." in assert_problem(api.get("/api/wallet"), 403, "key_frozen")["detail"]
    lift_key_freeze(key_id=key.pk, lifted_by=operator)
    key.refresh_from_db()
    assert (key.frozen_at, key.frozen_reason) == (None, "")
    assert refuse(lambda: freeze_key(key_id="x", reason="x", frozen_by=operator, now=NOW)) == (
        "unknown_key"
    )


def test_a_new_organisation_spends_so_much_a_day_until_it_is_trusted(zone, newcomer, operator):
    for _ in range(2):
        market.bid(newcomer, zone)  # five dollars each
    assert refuse(lambda: market.bid(newcomer, zone)) == "new_account_spending"
    assert Bid.objects.count() == 2
    market.bid(newcomer, zone, price_micros=2_000_000)
    Bid.objects.update(status="cancelled")
    with pytest.raises(NotAllowed):
        trust_organisation(organisation=newcomer, trusted_by=builders.owner_of(newcomer), now=NOW)
    trust_organisation(organisation=newcomer, trusted_by=operator, now=NOW)
    later = NOW + timedelta(seconds=31)
    market.bid(newcomer, zone, now=later)
    assert Bid.objects.count() == 4


def test_a_new_organisation_has_so_many_jobs_at_a_time(zone, newcomer):
    for _ in range(3):
        market.bid(newcomer, zone, price_micros=1_000_000)
    assert refuse(lambda: market.bid(newcomer, zone, price_micros=1_000_000)) == "new_account_jobs"
    bid = Bid.objects.earliest("pk")
    Bid.objects.filter(pk=bid.pk).update(status="refused")
    market.bid(newcomer, zone, price_micros=1_000_000)
    # Others are not counted with it, and are not new.
    old = builders.organisation(usd="100")
    Organisation.objects.filter(pk=old.pk).update(created_at=NOW - timedelta(days=15))
    for _ in range(4):
        market.bid(old, zone)


@pytest.mark.django_db(transaction=True)
def test_bids_placed_at_once_pass_no_limit_of_a_new_organisation(zone, newcomer):
    def place(price_micros):
        return lambda: market.bid(newcomer, zone, price_micros=price_micros)

    outcomes = at_once([place(1_000_000)] * 6)
    codes = [one.code for one in outcomes if isinstance(one, UserError)]
    assert codes == ["new_account_jobs"] * 3
    Bid.objects.update(status="cancelled")
    # Of twelve dollars a day nine are left, though the bids were taken back: their holds stand.
    outcomes = at_once([place(4_000_000)] * 3)
    codes = [one.code for one in outcomes if isinstance(one, UserError)]
    assert codes == ["new_account_spending"]
    assert sum(Hold.objects.values_list("amount_micros", flat=True)) == 11_000_000


def test_a_new_organisation_stores_a_quarter(zone, newcomer, settings):
    settings.DATASET_BYTES_PER_ORGANISATION = 400

    def send(owner, size):
        return receive_upload(
            organisation=owner,
            name="a",
            content=io.BytesIO(b"x" * size),
            uploaded_by=None,
            now=NOW,
        )

    assert refuse(lambda: send(newcomer, 101)) == "storage_full"
    assert send(newcomer, 100).bytes == 100
    old = builders.organisation()
    Organisation.objects.filter(pk=old.pk).update(created_at=NOW - timedelta(days=15))
    assert send(old, 400).bytes == 400


def test_an_operators_own_organisation_is_never_new(newcomer):
    house = builders.organisation(owner=builders.operator())
    Organisation.objects.filter(pk=house.pk).update(created_at=NOW)
    assert filter_new([newcomer.pk, house.pk, "x"], now=NOW) == {newcomer.pk}
    assert filter_new([newcomer.pk], now=NOW + timedelta(days=14, seconds=1)) == set()


def test_an_operators_pages_find_freeze_and_lift(client, newcomer, operator):
    key, _ = builders.api_key(newcomer)
    member = builders.owner_of(newcomer)
    assert list(find_organisations(member.email[:9])) != []
    client.force_login(operator)
    listed = read_text(client.get(reverse("operator_organisations"), {"q": key.pk}))
    assert newcomer.name in listed
    address = reverse("operator_organisation", args=[newcomer.pk])
    freeze = reverse("organisation_freeze", args=[newcomer.pk])
    assert "Give a reason" in read_text(client.post(freeze, {"reason": ""}, follow=True))
    assert "Stolen cards." in read_text(
        client.post(freeze, {"reason": "Stolen cards."}, follow=True)
    )
    client.post(reverse("key_freeze", args=[key.pk]), {"reason": "Leaked."})
    assert "Leaked." in read_text(client.get(address))
    client.post(reverse("key_freeze", args=[key.pk]), {"do": "lift"})
    client.post(reverse("freeze_lift", args=[Freeze.objects.get().pk]))
    client.post(reverse("organisation_trust", args=[newcomer.pk]))
    page = read_text(client.get(address))
    assert "Leaked." not in page
    assert "Stolen cards." not in page
    newcomer.refresh_from_db()
    assert newcomer.trusted_at is not None
    assert client.get(reverse("operator_organisation", args=["x"])).status_code == 404
