"""The OpenAPI documents that are checked in are those that are served."""

from __future__ import annotations

import json

import pytest
from django.conf import settings
from django.test import Client

from marketplace.api.openapi import SURFACES
from marketplace.api.sdk_types import WRITTEN

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


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_from_the_settings_is_what_the_api_takes(name):
    kept = (settings.BASE_DIR / name).read_text()
    assert kept == WRITTEN[name](), "Write them again: manage.py settings_write"


@pytest.mark.parametrize("surface", SURFACES)
def test_settings_are_typed_with_ranges_and_defaults(surface):
    schemas = Client().get(f"/{surface}schema").json()["components"]["schemas"]
    rank = schemas["AdapterSettings"]["properties"]["rank"]
    assert rank["anyOf"] == [
        {"type": "integer", "minimum": 1, "maximum": 256},
        {"type": "string", "enum": ["auto"]},
    ]
    assert rank["default"] == "auto"
    warmup = schemas["TrainingSettings"]["properties"]["warmup_share"]
    assert warmup == {
        "type": "number",
        "minimum": 0,
        "exclusiveMaximum": 1,
        "default": 0.03,
        "description": "Share of the steps in which the learning rate rises.",
    }
    assert schemas["PreparationSettings"]["additionalProperties"] is False
