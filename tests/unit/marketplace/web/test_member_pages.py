"""Members on the pages: invited by mail, given roles, removed; what roles may not do."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from marketplace.accounts.models import Invitation, Membership, Organisation, Role, User
from marketplace.common.errors import NotAllowed
from tests import builders
from tests.pages import read_page

pytestmark = pytest.mark.django_db


def _join(organisation: Organisation, role: Role) -> tuple[User, Client]:
    person = builders.user()
    Membership.objects.create(organisation=organisation, user=person, role=role)
    return person, _sign_in(person, organisation)


def _sign_in(person: User, organisation: Organisation) -> Client:
    client = Client()
    client.force_login(person)
    client.post("/settings/organisation", {"organisation": organisation.pk})
    return client


@pytest.fixture
def organisation() -> Organisation:
    return builders.organisation(name="Northwind Labs", usd="10")


@pytest.fixture
def owner(organisation: Organisation) -> Client:
    return _sign_in(builders.owner_of(organisation), organisation)


def test_an_invited_person_accepts_by_a_button_and_works_for_the_organisation(
    owner: Client,
    organisation: Organisation,
    mailoutbox: list[Any],
    django_capture_on_commit_callbacks: Any,
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        owner.post("/settings/members/invite", {"email": "Mira@example.com", "role": "member"})
    [mail] = mailoutbox
    assert mail.to == ["mira@example.com"]
    path = re.search(r"/invitations/\S+", mail.body)[0]  # type: ignore[index]
    stranger = Client()
    stranger.force_login(builders.user())
    assert stranger.post(path).status_code == 404
    mira = Client()
    mira.force_login(builders.user(email="mira@example.com"))
    mira.get(path)
    assert organisation.memberships.count() == 1
    for _ in range(2):
        assert mira.post(path).headers["Location"] == "/settings/members"
    assert organisation.memberships.get(user__email="mira@example.com").role == "member"
    assert "Northwind Labs" in read_page(mira.get("/settings/members"))
    text = read_page(owner.get("/settings/audit-log"))
    assert "Invite" in text


def test_what_only_owners_do_is_refused_to_everybody_else(organisation: Organisation) -> None:
    invited = Invitation.objects.count()
    for role in (Role.BILLING, Role.MEMBER, Role.VIEWER):
        person, client = _join(organisation, role)
        for address, form in (
            ("/settings/members/invite", {"email": "x@example.com", "role": "owner"}),
            (f"/settings/members/{person.pk}/role", {"role": "owner"}),
            (f"/settings/members/{person.pk}/role", {"do": "owner"}),
        ):
            assert client.post(address, form).status_code == 403, (role, address)
        owner = builders.owner_of(organisation)
        client.post(f"/settings/members/{owner.pk}/remove")
        assert organisation.memberships.filter(user=owner).exists()
    assert Invitation.objects.count() == invited
    assert organisation.memberships.filter(role=Role.OWNER).count() == 1


@pytest.mark.parametrize(
    ("role", "status_of_bid", "status_of_money"),
    [(Role.VIEWER, 403, 403), (Role.BILLING, 403, 302), (Role.MEMBER, 200, 403)],
)
def test_a_role_allows_what_it_says_and_every_role_may_look(
    organisation: Organisation, role: Role, status_of_bid: int, status_of_money: int
) -> None:
    person, client = _join(organisation, role)
    for address in ("/wallet", "/jobs", "/datasets", "/settings/members", "/settings/audit-log"):
        assert client.get(address).status_code == 200
    assert client.post("/settings/api-keys", {"name": ""}).status_code == status_of_bid
    assert client.post("/wallet/ask", {"usd": "5"}).status_code == status_of_money
    if role != Role.MEMBER:
        with pytest.raises(NotAllowed):
            builders.api_key(organisation, created_by=person)


def test_keys_of_a_person_who_may_only_look_any_more_stop_working(
    organisation: Organisation,
) -> None:
    person, _ = _join(organisation, Role.MEMBER)
    _, secret = builders.api_key(organisation, created_by=person)
    assert builders.authenticate(secret=secret) is not None
    organisation.memberships.filter(user=person).update(role=Role.VIEWER)
    assert builders.authenticate(secret=secret) is None


def test_an_organisation_is_handed_over_and_keeps_an_owner(
    owner: Client, organisation: Organisation
) -> None:
    was = builders.owner_of(organisation)
    person, client = _join(organisation, Role.MEMBER)
    refused = owner.post(f"/settings/members/{was.pk}/role", {"role": "viewer"}, follow=True)
    assert "An organisation needs an owner" in read_page(refused)
    owner.post(f"/settings/members/{person.pk}/role", {"do": "owner"})
    roles = dict(organisation.memberships.values_list("user", "role"))
    assert roles == {person.pk: "owner", was.pk: "member"}
    assert client.post(f"/settings/members/{was.pk}/remove").status_code == 302
    assert list(organisation.memberships.values_list("user", flat=True)) == [person.pk]


def test_members_of_another_organisation_are_not_there(
    owner: Client, organisation: Organisation
) -> None:
    other = builders.organisation()
    stranger = builders.owner_of(other)
    assert owner.post(f"/settings/members/{stranger.pk}/remove").status_code == 404
    reply = owner.post(f"/settings/members/{stranger.pk}/role", {"role": "viewer"}, follow=True)
    assert "There is no such member" in read_page(reply)
    assert other.memberships.get().role == "owner"


def test_a_person_sees_their_sessions(organisation: Organisation) -> None:
    client = Client()
    person = builders.owner_of(organisation)
    form = {"login": person.email, "password": builders.PASSWORD}
    assert client.post("/accounts/login/", form).status_code == 302
    text = read_page(client.get("/accounts/sessions/"))
    assert "Sessions" in text
    assert "127.0.0.1" in text
