"""The page of what is kept, and how people leave."""

from __future__ import annotations

import pytest
from django.urls import reverse

from marketplace.accounts.models import Deletion, Membership, Role
from marketplace.web.current_organisation import CHOSEN
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from tests.pages import read_text

pytestmark = pytest.mark.django_db


@pytest.fixture
def owner():
    return builders.organisation(name="Tone Ltd", usd="2")


@pytest.fixture
def boss(client, owner):
    client.force_login(builders.owner_of(owner))
    session = client.session
    session[CHOSEN] = owner.pk
    session.save()
    return builders.owner_of(owner)


def post(client, name, **fields):
    return client.post(reverse(name), fields, follow=True)


def test_an_owner_sets_a_time_and_deletes_the_organisation_once_nothing_binds_it(
    client, owner, boss
):
    page = read_text(client.get(reverse("own_data")))
    assert "are kept until somebody deletes them" in page
    assert "Its wallet is not empty." in page
    page = read_text(post(client, "retention", retain_days="30"))
    assert "nobody has used for 30 days are deleted" in page
    assert "Give 7 to 10,000 days" in read_text(post(client, "retention", retain_days="x"))
    page = read_text(post(client, "organisation_delete"))
    assert "Tone Ltd cannot be deleted yet. Its wallet is not empty." in page
    assert "The wallet is empty." in read_text(post(client, "wallet_give_up"))
    post(client, "organisation_delete")
    assert Deletion.objects.get().subject_id == owner.pk
    assert not Membership.objects.filter(organisation=owner).exists()
    assert client.get(reverse("own_data")).status_code == 200


def test_a_viewer_sees_what_is_kept_and_may_end_nothing_but_their_account(client, owner, boss):
    viewer = builders.user()
    Membership.objects.create(organisation=owner, user=viewer, role=Role.VIEWER)
    client.force_login(viewer)
    session = client.session
    session[CHOSEN] = owner.pk
    session.save()
    assert client.get(reverse("archive")).status_code == 403
    assert client.post(reverse("organisation_delete")).status_code == 403
    assert client.get(reverse("own_archive")).status_code == 200
    assert "Your account is deleted." in read_text(post(client, "account_delete"))
    viewer.refresh_from_db()
    assert not viewer.is_active
    assert client.get(reverse("own_data")).status_code == 302
    assert owner.memberships.get().user == boss


def test_a_data_set_that_a_bid_names_is_deleted_by_its_page(client, owner, boss):
    zone = market.zone()
    data = market.dataset(owner, zone)
    market.bid(owner, zone, data=data, price_micros=1_000_000, now=NOW)
    page = client.post(reverse("dataset_delete", args=[data.pk]), follow=True)
    assert "is deleted. Its content is gone within a day" in read_text(page)
    [deletion] = Deletion.objects.all()
    assert (deletion.asked_by_id, deletion.organisation_id) == (boss.pk, owner.pk)
    assert client.get(reverse("dataset_detail", args=[data.pk])).status_code == 404
    assert data.pk in read_text(client.get(reverse("own_data")))
