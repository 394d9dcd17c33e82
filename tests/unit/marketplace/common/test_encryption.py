"""Secrets at rest survive a change of keys, without an outage."""

from __future__ import annotations

from io import StringIO

import pytest
from cryptography.fernet import InvalidToken
from django.core.management import call_command

from marketplace.common.encryption import decrypt_text, encrypt_text
from marketplace.config.management.commands.rotate_secrets import list_sealed_columns
from marketplace.tracking.models import TrackingKey
from marketplace.webhooks.models import WebhookEndpoint
from marketplace.webhooks.services import create_endpoint
from tests import builders
from tests.builders import NOW

KEY = "wandb-" + "k" * 40


def test_every_key_opens_and_the_first_seals(settings):
    by_secret_key = encrypt_text("one")
    settings.DATA_KEYS = ["newer"]
    by_newer = encrypt_text("two")
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "replaced", [settings.SECRET_KEY]
    assert [decrypt_text(each) for each in (by_secret_key, by_newer)] == ["one", "two"]
    settings.SECRET_KEY_FALLBACKS = []
    assert decrypt_text(by_newer) == "two"
    with pytest.raises(InvalidToken):
        decrypt_text(by_secret_key)


def test_all_columns_of_other_peoples_secrets_are_known():
    found = {f"{model._meta.label}.{name}" for model, name in list_sealed_columns()}
    assert found == {
        "api.IdempotencyRecord.sealed_body",
        "exports.HubPush.token",
        "payments.GatewayEndpoint.secret",
        "tracking.TrackingKey.key",
        "webhooks.WebhookEndpoint.earlier_secret",
        "webhooks.WebhookEndpoint.secret",
    }


@pytest.mark.django_db
def test_after_rotating_the_old_key_can_be_taken_away(settings):
    owner = builders.organisation()
    person = builders.owner_of(owner)
    endpoint, secret = create_endpoint(
        organisation=owner,
        created_by=person,
        url="https://example.com/hook",
        events=["job.succeeded"],
        now=NOW,
    )
    TrackingKey.objects.create(
        organisation=owner, service="wandb", key=encrypt_text(KEY), set_by=person, set_at=NOW
    )
    lost = WebhookEndpoint.objects.get(pk=endpoint.pk)
    lost.pk, lost.secret = "hook_lost", "sealed with a key that is gone"
    lost.save(force_insert=True)
    settings.DATA_KEYS = ["newer"]
    said, problems = StringIO(), StringIO()
    call_command("rotate_secrets", stdout=said, stderr=problems)
    assert said.getvalue() == "2 secrets sealed with the first key, 1 unreadable.\n"
    assert problems.getvalue().startswith("webhooks.WebhookEndpoint hook_lost: no key opens")
    settings.SECRET_KEY = "another"
    endpoint.refresh_from_db()
    assert decrypt_text(endpoint.secret) == secret
    assert decrypt_text(TrackingKey.objects.get().key) == KEY
