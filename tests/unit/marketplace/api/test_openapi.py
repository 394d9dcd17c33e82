"""The OpenAPI documents that are checked in are those that are served."""

from __future__ import annotations

import json

import pytest
from django.conf import settings
from django.test import Client

from marketplace.api.openapi import SURFACES
from marketplace.api.sdk_types import SDK_TERMS, render_sdk_terms

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("surface", SURFACES)
def test_the_document_in_docs_is_the_one_that_is_served(surface):
    answer = Client().get(f"/{surface}schema")
    assert answer.status_code == 200
    served = answer.json()
    assert served["openapi"] == "3.1.0"
    assert all(path.startswith(f"/{surface}") for path in served["paths"])
    kept = json.loads((settings.BASE_DIR / "docs" / "api" / SURFACES[surface]).read_text())
    assert kept == served, "Write them again: manage.py openapi_write"


@pytest.mark.parametrize("surface", SURFACES)
def test_every_operation_says_what_it_does(surface):
    document = Client().get(f"/{surface}schema").json()
    operations = [one for methods in document["paths"].values() for one in methods.values()]
    said = {one["operationId"]: one.get("description") or one.get("summary") for one in operations}
    assert [name for name, text in said.items() if not text] == []
    assert not any("MarketView" in text or "API key or session" in text for text in said.values())


def test_the_types_in_the_sdk_are_those_of_what_the_api_takes():
    kept = (settings.BASE_DIR / SDK_TERMS).read_text()
    assert kept == render_sdk_terms(), "Write them again: manage.py settings_write"
