"""The OpenAPI documents that are checked in are those that are served."""

from __future__ import annotations

import json

import jsonschema_rs
import pytest
from django.conf import settings
from django.http import HttpResponse
from django.test import Client
from drf_spectacular.drainage import GENERATOR_STATS

from marketplace.api.openapi import SURFACES, render_schema
from marketplace.api.sdk_types import WRITTEN
from tests import answer_check
from tests.answer_check import find_fault
from tests.unit.marketplace.api.web_server import run

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
def test_a_document_is_made_without_a_warning(surface):
    # One is that two sets of values go by one name: a digest that changes with them names them.
    GENERATOR_STATS.reset()
    render_schema.__wrapped__(surface)
    assert [*GENERATOR_STATS._warn_cache, *GENERATOR_STATS._error_cache] == []


@pytest.mark.parametrize("surface", SURFACES)
def test_every_operation_says_what_it_does(surface):
    document = Client().get(f"/{surface}schema").json()
    operations = [one for methods in document["paths"].values() for one in methods.values()]
    said = {one["operationId"]: one.get("description") or one.get("summary") for one in operations}
    assert [name for name, text in said.items() if not text] == []
    assert not any("MarketView" in text or "API key or session" in text for text in said.values())


@pytest.mark.parametrize("name", SURFACES.values())
def test_every_member_and_parameter_says_what_it_is(name):
    document = json.loads((settings.BASE_DIR / "docs" / "api" / name).read_text())
    silent = [
        f"{kind}.{member}"
        for kind, schema in document["components"]["schemas"].items()
        for member, described in schema.get("properties", {}).items()
        if not described.get("description")
    ]
    silent += [
        f"{path} {parameter['name']}"
        for path, methods in document["paths"].items()
        for operation in methods.values()
        for parameter in operation.get("parameters", ())
        if not parameter.get("description")
    ]
    assert silent == []


@pytest.mark.parametrize("name", SURFACES.values())
def test_every_request_has_an_example_that_its_schema_takes(name):
    document = json.loads((settings.BASE_DIR / "docs" / "api" / name).read_text())
    for path, methods in document["paths"].items():
        for operation in methods.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                [example] = content["examples"].values()
                whole = content["schema"] | {"components": document["components"]}
                validator = jsonschema_rs.Draft202012Validator(whole)
                faults = [error.message for error in validator.iter_errors(example["value"])]
                assert faults == [], path


def test_an_answer_that_no_document_promises_is_found():
    def answer(status, body, media_type="application/json"):
        return HttpResponse(json.dumps(body), status=status, content_type=media_type)

    wallet = {"object": "wallet", "available": "1.000000", "held": "0.000000"}
    assert find_fault("/api/wallet", "GET", answer(200, wallet)) == ""
    assert "string" in find_fault("/api/wallet", "GET", answer(200, wallet | {"held": 0}))
    assert "required" in find_fault("/api/wallet", "GET", answer(200, {}))
    assert "problem+json" in find_fault("/api/wallet", "GET", answer(418, wallet))
    assert find_fault("/api/schema", "GET", answer(200, {})) == ""


@pytest.mark.django_db(transaction=True)
def test_answers_of_both_handlers_are_compared(monkeypatch):
    seen = []
    monkeypatch.setattr(answer_check, "find_fault", lambda route, *_: seen.append(route))
    Client().get("/api/zones")
    run(lambda client: client.get("/api/zones"))
    assert seen == ["/api/zones"] * 2


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


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("/api/zones%0A", "application/problem+json"),
        ("/v1/models/a%0Ab", "application/json"),
        ("/v1/%0A", "application/json"),
    ],
)
def test_no_address_of_a_surface_is_answered_with_a_page(path, media_type):
    answer = Client().get(path)
    assert (answer.status_code, answer["Content-Type"]) == (404, media_type)
