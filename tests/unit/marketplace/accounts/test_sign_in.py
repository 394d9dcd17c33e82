"""The doors of the site: sign-up, sign-in, forgotten passwords, a second factor, back office."""

import re

import pytest
from allauth.account.adapter import get_adapter
from allauth.core.internal import ratelimit
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret, hotp_value
from django.core import mail
from django.core.cache import cache
from django.test import Client, RequestFactory
from django.urls import reverse

from marketplace.accounts.adapter import KNOWN_BROWSER
from marketplace.accounts.lock_mail import LOCK_MAIL
from marketplace.accounts.models import Membership, Organisation, User
from marketplace.common import clock
from marketplace.common.durable.kinds import get_kinds
from marketplace.common.durable.run import run_due_work
from marketplace.common.models import DurableWork
from marketplace.config.settings import base
from tests import builders
from tests.builders import PASSWORD

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def unlimited(settings):
    """Sign-in attempts are counted in Redis, which outlives a test's transaction."""
    settings.ACCOUNT_RATE_LIMITS = False


def signed_in(client) -> bool:
    return "_auth_user_id" in client.session


def test_signing_up_makes_a_person_and_their_organisation_and_signs_in(client) -> None:
    answer = client.post(
        reverse("account_signup"), {"email": "Ada@Example.com", "password1": PASSWORD}
    )
    assert answer.status_code == 302
    person = User.objects.get()
    assert person.email == "ada@example.com"
    assert Membership.objects.get(user=person).organisation.personal_for == person
    assert signed_in(client)


@pytest.mark.parametrize(
    ("email", "password"),
    [
        ("not-an-address", PASSWORD),
        ("ada@example.com", "short"),
        ("ada@example.com", "1234567890"),
        ("ada@example.com", ""),
        ("", PASSWORD),
    ],
)
def test_a_sign_up_that_is_refused_leaves_no_trace(client, email: str, password: str) -> None:
    answer = client.post(reverse("account_signup"), {"email": email, "password1": password})
    assert answer.status_code == 200
    assert not signed_in(client)
    assert User.objects.count() == Organisation.objects.count() == 0


def test_a_failure_while_making_the_organisation_takes_the_person_back(client, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the database is full")

    monkeypatch.setattr(
        "marketplace.accounts.models.OrganisationManager.get_or_create_personal", fail
    )
    with pytest.raises(RuntimeError):
        client.post(reverse("account_signup"), {"email": "a@example.com", "password1": PASSWORD})
    assert User.objects.count() == 0


def test_one_signs_in_with_the_address_in_any_case_and_out_again(client) -> None:
    builders.user(email="ada@example.com")
    answer = client.post(
        reverse("account_login"), {"login": "ADA@example.com", "password": PASSWORD}
    )
    assert answer.status_code == 302
    assert signed_in(client)
    client.post(reverse("account_logout"))
    assert not signed_in(client)


def test_a_wrong_password_and_an_unknown_address_look_the_same(client) -> None:
    builders.user(email="ada@example.com")
    answers = [
        client.post(reverse("account_login"), {"login": login, "password": password})
        for login, password in (("ada@example.com", "wrong"), ("eve@example.com", PASSWORD))
    ]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert len({str(answer.context["form"].errors) for answer in answers}) == 1
    assert not signed_in(client)


def test_a_locked_out_person_does_not_get_in(client) -> None:
    person = builders.user(email="ada@example.com")
    person.is_active = False
    person.save()
    client.post(reverse("account_login"), {"login": "ada@example.com", "password": PASSWORD})
    assert not signed_in(client)


def try_in(client, *, address, password="wrong", email="ada@example.com"):
    client.post(
        reverse("account_login"), {"login": email, "password": password}, REMOTE_ADDR=address
    )
    return signed_in(client)


def test_wrong_passwords_lock_an_account_for_their_address_alone(client, settings) -> None:
    settings.ACCOUNT_RATE_LIMITS = {"login_failed": "100/m/ip,3/300s/key"}
    cache.clear()
    person = builders.user(email="ada@example.com")
    for _ in range(3):
        assert not try_in(client, address="192.0.2.7")
    assert not DurableWork.objects.exists()
    assert not try_in(client, address="192.0.2.7", password=PASSWORD)
    # A stranger at that address may try others, and she may come from elsewhere.
    assert try_in(client, address="192.0.2.8", password=PASSWORD)
    client.post(reverse("account_logout"))
    assert not try_in(client, address="192.0.2.7", password=PASSWORD)
    assert DurableWork.objects.get().key == person.pk
    assert run_due_work(get_kinds()[LOCK_MAIL], clock=clock.now) == 1
    [message] = mail.outbox
    assert message.to == ["ada@example.com"]
    assert "from 192.0.2.7." in message.body
    assert reverse("account_reset_password") in message.body
    # One mail an hour, however often somebody tries; none for an address that nobody has.
    for email in ("ada@example.com", *["eve@example.com"] * 4):
        try_in(client, address="192.0.2.7", email=email)
    assert not DurableWork.objects.exists()


def test_passwords_are_counted_by_account_too_and_known_browsers_still_get_in(client, settings):
    settings.ACCOUNT_RATE_LIMITS = {
        "login_failed": "100/m/ip,5/300s/key",
        "login_failed_anywhere": "4/h/key",
    }
    cache.clear()
    person = builders.user(email="ada@example.com")
    elsewhere, hers = Client(), Client()
    assert try_in(hers, address="192.0.2.8", password=PASSWORD)
    hers.post(reverse("account_logout"))
    for host in range(4):
        assert not try_in(client, address=f"198.51.100.{host}")
    # Whoever has the right password now is as unknown as they are.
    assert not try_in(elsewhere, address="203.0.113.1", password=PASSWORD)
    assert DurableWork.objects.get().key == person.pk
    forged = Client()
    forged.cookies[KNOWN_BROWSER] = person.pk
    assert not try_in(forged, address="203.0.113.1", password=PASSWORD)
    other = builders.user(email="eve@example.com")
    assert try_in(forged, address="203.0.113.1", password=PASSWORD, email=other.email)
    forged.post(reverse("account_logout"))
    assert not try_in(forged, address="203.0.113.1", password=PASSWORD)
    assert try_in(hers, address="192.0.2.9", password=PASSWORD)
    # A new password that was chosen by a mailed code ends it for everybody.
    get_adapter()._delete_login_attempts_cached_email(
        RequestFactory().post("/"), email=person.email
    )
    assert try_in(elsewhere, address="203.0.113.1", password=PASSWORD)


@pytest.mark.parametrize(
    ("by_address", "per", "anywhere"),
    [
        ("login_failed", "key", "login_failed_anywhere"),
        ("reset_password", "ip", "reset_password"),
    ],
)
def test_a_few_addresses_cannot_use_up_what_an_account_has(settings, by_address, per, anywhere):
    settings.ACCOUNT_RATE_LIMITS = base.ACCOUNT_RATE_LIMITS

    def list_hourly(action: str, per: str) -> list[float]:
        rates = ratelimit.get_rates(app="allauth.account", action=action)
        return [rate.amount * 3600 / rate.duration for rate in rates if rate.per == per]

    assert min(list_hourly(anywhere, "key")) >= 10 * min(list_hourly(by_address, per))


def test_a_stranger_at_one_address_does_not_keep_an_owner_from_being_mailed_a_code(
    client, settings
):
    settings.ACCOUNT_RATE_LIMITS = base.ACCOUNT_RATE_LIMITS
    cache.clear()
    builders.user(email="ada@example.com")

    def ask(address: str) -> int:
        data = {"email": "ada@example.com"}
        return client.post(reverse("account_reset_password"), data, REMOTE_ADDR=address).status_code

    assert [ask("198.51.100.1") for _ in range(6)] == [302] * 5 + [429]
    assert ask("192.0.2.8") == 302


def test_addresses_of_one_network_of_ipv6_are_counted_as_one(client, settings):
    settings.ACCOUNT_RATE_LIMITS = {"login_failed": "100/m/ip,3/300s/key"}
    cache.clear()
    builders.user(email="ada@example.com")
    for host in range(3):
        assert not try_in(client, address=f"2001:db8:1:2::{host}")
    assert not try_in(client, address="2001:db8:1:2:3:4:5:6", password=PASSWORD)
    assert try_in(client, address="2001:db8:1:3::1", password=PASSWORD)


def test_a_forgotten_password_is_replaced_with_a_mailed_code(client) -> None:
    person = builders.user(email="ada@example.com")
    client.post(reverse("account_reset_password"), {"email": "ada@example.com"})
    (message,) = mail.outbox
    assert message.to == ["ada@example.com"]
    code = re.search(r"^\s*([A-Z0-9]{3,}(?:-[A-Z0-9]{3,})*)\s*$", message.body, re.MULTILINE)
    assert code is not None, message.body
    answer = client.post(reverse("account_confirm_password_reset_code"), {"code": code.group(1)})
    assert answer.status_code == 302
    client.post(
        answer["Location"], {"password1": "a brand new secret", "password2": "a brand new secret"}
    )
    person.refresh_from_db()
    assert person.check_password("a brand new secret")


def test_a_person_with_a_second_factor_needs_it(client) -> None:
    person = builders.user(email="ada@example.com")
    secret = generate_totp_secret()
    TOTP.activate(person, secret)
    answer = client.post(
        reverse("account_login"), {"login": "ada@example.com", "password": PASSWORD}
    )
    assert answer["Location"].startswith(reverse("mfa_authenticate"))
    assert not signed_in(client)
    client.post(reverse("mfa_authenticate"), {"code": "000000"})
    assert not signed_in(client)
    from allauth.mfa.totp.internal.auth import format_hotp_value, yield_hotp_counters_from_time

    counter = next(iter(yield_hotp_counters_from_time()))
    code = format_hotp_value(hotp_value(secret, counter))
    client.post(reverse("mfa_authenticate"), {"code": code})
    assert signed_in(client)
    assert Authenticator.objects.filter(user=person).count() == 1


def test_only_operators_enter_the_back_office(client) -> None:
    client.force_login(builders.user())
    assert client.get("/admin/").status_code == 302
    superuser = User.objects.create_superuser("root@example.com", PASSWORD)
    client.force_login(superuser)
    builders.organisation(usd="10")
    for page in (
        "",
        "accounts/user/",
        f"accounts/user/{superuser.pk}/change/",
        "accounts/organisation/",
        "accounts/apikey/",
        "accounts/invitation/",
        "payments/entry/",
        "payments/ledgeraccount/",
        "payments/hold/",
        "payments/earning/",
    ):
        assert client.get(f"/admin/{page}").status_code == 200, page


def test_an_operator_sees_the_back_office_and_changes_nothing_in_it(client) -> None:
    operator = builders.operator()
    client.force_login(operator)
    person = builders.user()
    page = f"/admin/accounts/user/{person.pk}/change/"
    assert client.get(page).status_code == 200
    assert client.post(page, {"email": "x@example.com", "is_superuser": "on"}).status_code == 403
    assert client.get("/admin/accounts/user/add/").status_code == 403
    person.refresh_from_db()
    assert not person.is_superuser
    operator.is_active = False
    assert not operator.has_perm("accounts.view_user")
    assert not operator.has_module_perms("accounts")


def test_a_person_added_in_the_back_office_has_an_organisation_and_no_password(client) -> None:
    client.force_login(User.objects.create_superuser("root@example.com", PASSWORD))
    form = {
        "email": "New@example.com",
        "name": "New",
        "is_active": "on",
        "memberships-TOTAL_FORMS": "0",
        "memberships-INITIAL_FORMS": "0",
    }
    assert client.post("/admin/accounts/user/add/", form).status_code == 302
    person = User.objects.get(email="new@example.com")
    assert not person.has_usable_password()
    assert person.personal_organisation.name == "New"
