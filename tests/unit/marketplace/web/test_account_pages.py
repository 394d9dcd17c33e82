"""Pages and mails around an account, in the house's own words."""

from __future__ import annotations

import re

import pytest
from django.core import mail
from django.test import Client

from tests import builders
from tests.pages import read_page

pytestmark = pytest.mark.django_db


def test_a_forgotten_password_is_answered_by_a_code(client: Client) -> None:
    user = builders.user(email="mira@example.com")
    asked = read_page(client.get("/accounts/password/reset/"))
    assert "<h1>Reset your password</h1>" in asked
    reply = client.post("/accounts/password/reset/", {"email": user.email}, follow=True)
    assert "<h1>Enter password reset code</h1>" in read_page(reply)
    [message] = mail.outbox
    assert message.subject == "[Finetender] Your code for a new password"
    assert re.search(r"^    \S{4}-?\S{4}$", message.body, re.MULTILINE)
    assert "Your password stays as it is." in message.body
    assert "Hello from" not in message.body


def test_an_unknown_address_gets_a_way_to_sign_up_and_nobody_learns_of_it(client: Client) -> None:
    reply = client.post("/accounts/password/reset/", {"email": "who@example.com"}, follow=True)
    assert "<h1>Enter password reset code</h1>" in read_page(reply)
    [message] = mail.outbox
    assert message.subject == "[Finetender] There is no account with this address"
    assert "/accounts/signup/" in message.body


def test_titles_of_the_accounts_library_are_in_sentence_case(client: Client) -> None:
    client.force_login(builders.user())
    assert "<h1>Email addresses</h1>" in read_page(client.get("/accounts/email/"))
    page = read_page(client.get("/accounts/2fa/"))
    assert "<h1>Two-factor authentication</h1>" in page
    assert "<h2>Authenticator app</h2>" in page
