"""Keys, members, payouts and accounts are changed by who was asked lately who they are."""

from __future__ import annotations

import time

import pytest
from django.urls import reverse

from marketplace.accounts.models import ApiKey, AuditEntry, Deletion, Invitation
from tests import builders
from tests.builders import PASSWORD

pytestmark = pytest.mark.django_db
AGAIN = "/accounts/reauthenticate/"
KEY = {"name": "ci", "scopes": ["jobs:read"], "days": "90"}


@pytest.fixture
def person(client, settings):
    settings.ACCOUNT_REAUTHENTICATION_REQUIRED = True
    settings.ACCOUNT_RATE_LIMITS = False
    made = builders.user(email="ada@example.com")
    client.post(reverse("account_login"), {"login": "ada@example.com", "password": PASSWORD})
    return made


def confirm(client, password=PASSWORD):
    return client.post(AGAIN, {"password": password, "next": reverse("api_key_list")})


def test_a_key_is_made_after_the_password_was_asked_again(client, person):
    address = reverse("api_key_list")
    assert client.get(address).status_code == 200
    asked = client.post(address, KEY)
    assert asked["Location"].startswith(AGAIN)
    assert not ApiKey.objects.exists()
    confirm(client, "wrong")
    assert not ApiKey.objects.exists()
    # What was sent is done once the password was right, and for some minutes more is not asked.
    confirm(client)
    client.post(address, KEY | {"name": "cd"})
    assert list(ApiKey.objects.order_by("pk").values_list("name", flat=True)) == ["ci", "cd"]
    # The log names what was done, and by whom, whichever address the answer went to; not what the
    # keys are called.
    made = AuditEntry.objects.filter(act="API keys").order_by("pk")
    assert [(one.done, "name" in one.details, one.person_id) for one in made] == [
        (False, False, person.pk),
        (True, False, person.pk),
        (True, False, person.pk),
    ]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("member_invite", {"email": "eve@example.com", "role": "owner"}),
        ("account_delete", {}),
    ],
)
def test_members_and_accounts_are_not_changed_before(client, person, name, fields):
    assert client.post(reverse(name), fields)["Location"].startswith(AGAIN)
    assert not Invitation.objects.exists()
    assert not Deletion.objects.exists()
    assert client.get(reverse("payouts_set_up"))["Location"].startswith(AGAIN)


def test_an_answer_counts_for_some_minutes(client, person, monkeypatch):
    confirm(client)
    later = time.time() + 301
    monkeypatch.setattr("allauth.account.internal.flows.reauthentication.time.time", lambda: later)
    assert client.post(reverse("api_key_list"), KEY)["Location"].startswith(AGAIN)


def test_a_session_asks_over_the_api_too_and_a_key_does_not(client, person):
    own = person.personal_organisation
    made, secret = builders.api_key(own)
    asked = client.delete(f"/api/keys/{made.pk}")
    assert (asked.status_code, asked.json()["code"]) == (403, "sign_in_again")
    assert client.get("/api/keys").status_code == 200
    made.refresh_from_db()
    assert made.revoked_at is None
    client.logout()
    answer = client.delete(f"/api/keys/{made.pk}", headers={"Authorization": f"Bearer {secret}"})
    assert answer.status_code == 204
