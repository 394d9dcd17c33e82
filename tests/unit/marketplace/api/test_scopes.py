"""Every operation of both APIs needs a scope, a key and an owner: taken from their documents."""

from __future__ import annotations

import pytest
from django.core.cache import cache
from django.test import Client

from tests import builders
from tests.addresses import fill, list_operations

pytestmark = pytest.mark.django_db(transaction=True)

#: What anybody may see.
PUBLIC = {("get", "/api/zones"), ("get", "/api/market/{zone_name}")}


def send(client, method, path, headers):
    address = fill(path, lambda _: "x")
    body = {} if method == "get" else {"data": b"{}", "content_type": "application/json"}
    return getattr(client, method)(address, headers=headers, **body)


def read_code(answer):
    value = answer.json()
    return value.get("error", value)["code"]


def test_every_operation_needs_a_key_with_its_scope(settings):
    cache.clear()
    settings.API_REQUESTS_PER_MINUTE = dict.fromkeys(settings.API_REQUESTS_PER_MINUTE, 10**6)
    # A scope that no address asks for.
    _, secret = builders.api_key(builders.organisation(), scopes=["provider:write"])
    operations = [each for each in list_operations() if each not in PUBLIC]
    assert len(operations) > 35
    client = Client()
    for method, path in operations:
        without = send(client, method, path, {})
        assert (without.status_code, read_code(without)) == (401, "not_signed_in"), (method, path)
        answer = send(client, method, path, {"Authorization": f"Bearer {secret}"})
        assert (answer.status_code, read_code(answer)) == (403, "missing_scope"), (method, path)
