"""The back office has no sign-in of its own: limits and the second factor hold there too."""

from __future__ import annotations

import pytest
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from django.core.cache import cache
from django.urls import reverse

from tests import builders
from tests.builders import PASSWORD

pytestmark = pytest.mark.django_db

BACK_OFFICE = "/admin/login/?next=/operator"


@pytest.fixture
def fresh_limits():
    """Attempts are counted in Redis, which outlives a test's transaction."""
    cache.clear()
    yield
    cache.clear()


def is_signed_in(client) -> bool:
    return "_auth_user_id" in client.session


def test_the_back_offices_sign_in_is_everybodys(client) -> None:
    answer = client.get(BACK_OFFICE)
    assert answer.status_code == 302
    assert answer["Location"].startswith(reverse("account_login"))
    assert "next=%2Foperator" in answer["Location"]


def test_a_right_password_at_the_back_office_itself_opens_nothing(client) -> None:
    operator = builders.operator()
    form = {"username": operator.email, "password": PASSWORD}
    assert client.post(BACK_OFFICE, form).status_code == 302
    assert not is_signed_in(client)


def test_forty_wrong_passwords_lock_the_right_one_out(client, fresh_limits) -> None:
    operator = builders.operator()

    def is_judged(password: str) -> bool:
        where = client.get(BACK_OFFICE)["Location"]
        answer = client.post(where, {"login": operator.email, "password": password})
        assert answer.status_code in {200, 429}
        return "too many" not in answer.content.decode().lower()

    assert [is_judged(f"wrong {number}") for number in range(40)].count(True) == 5
    assert not is_judged(PASSWORD)
    assert not is_signed_in(client)


def test_an_operator_with_a_second_factor_is_asked_for_it(client, settings) -> None:
    settings.ACCOUNT_RATE_LIMITS = False
    operator = builders.operator()
    TOTP.activate(operator, generate_totp_secret())
    where = client.get(BACK_OFFICE)["Location"]
    answer = client.post(where, {"login": operator.email, "password": PASSWORD})
    assert answer["Location"].startswith(reverse("mfa_authenticate"))
    assert not is_signed_in(client)


@pytest.mark.parametrize("page", ["/operator", "/admin/", "/jobs", "/nodes"])
def test_an_operator_without_a_second_factor_is_sent_to_set_one_up(
    client, settings, page: str
) -> None:
    settings.OPERATORS_NEED_MFA = True
    client.force_login(builders.operator())
    answer = client.get(page)
    assert (answer.status_code, answer["Location"]) == (302, reverse("mfa_activate_totp"))


def test_an_operator_with_a_second_factor_goes_on(client, settings) -> None:
    settings.OPERATORS_NEED_MFA = True
    operator = builders.operator()
    client.force_login(operator)
    TOTP.activate(operator, generate_totp_secret())
    assert client.get("/operator").status_code == 200
    assert client.get("/admin/").status_code == 200


def test_others_need_no_second_factor(client, settings) -> None:
    settings.OPERATORS_NEED_MFA = True
    client.force_login(builders.user())
    assert client.get("/jobs").status_code == 200
    client.logout()
    assert client.get("/").status_code == 200


def test_an_operator_can_sign_out_and_set_the_factor_up(client, settings) -> None:
    settings.OPERATORS_NEED_MFA = True
    client.force_login(builders.operator())
    # Setting it up asks for the password first.
    answer = client.get(reverse("mfa_activate_totp"))
    assert answer.status_code == 302
    assert answer["Location"].startswith(reverse("account_reauthenticate"))
    client.post(reverse("account_logout"))
    assert not is_signed_in(client)
