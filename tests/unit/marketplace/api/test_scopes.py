"""Every operation of both APIs needs a scope, a key and an owner: taken from their documents."""

from __future__ import annotations

import json
import re

import pytest
from django.core.cache import cache
from django.test import Client

from marketplace.api.openapi import render_schema
from tests import builders

pytestmark = pytest.mark.django_db(transaction=True)

#: What anybody may see.
PUBLIC = {("get", "/api/zones"), ("get", "/api/market/{zone_name}")}
METHODS = ("get", "post", "put", "patch", "delete")


def list_operations():
    """Method and address of each operation in the OpenAPI documents."""
    for surface in ("api/", "v1/"):
        for path, item in json.loads(render_schema(surface))["paths"].items():
            for method in METHODS:
                if method in item and (method, path) not in PUBLIC:
                    yield method, path


def send(method, path, headers):
    address = re.sub(r"{[a-z_]+}", "x", path)
    body = {} if method == "get" else {"data": b"{}", "content_type": "application/json"}
    return getattr(Client(headers=headers), method)(address, **body)


def read_code(answer):
    value = answer.json()
    return value.get("error", value)["code"]


def test_every_operation_needs_a_key_with_its_scope(settings):
    cache.clear()
    settings.API_REQUESTS_PER_MINUTE = dict.fromkeys(settings.API_REQUESTS_PER_MINUTE, 10**6)
    # A scope that no address asks for.
    _, secret = builders.api_key(builders.organisation(), scopes=["provider:write"])
    operations = list(list_operations())
    assert len(operations) > 35
    for method, path in operations:
        without = send(method, path, {})
        assert (without.status_code, read_code(without)) == (401, "not_signed_in"), (method, path)
        answer = send(method, path, {"Authorization": f"Bearer {secret}"})
        assert (answer.status_code, read_code(answer)) == (403, "missing_scope"), (method, path)
