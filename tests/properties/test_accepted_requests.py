"""What an OpenAPI document lets through, the market takes: nothing is refused for its form.

A program that is generated from a document learns there what it may send. ``make test`` tries some
requests of every operation, always the same; ``make test-nightly`` tries 2,000 others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS

from marketplace.api.market import owned
from marketplace.api.openai import files, fine_tuning
from marketplace.auction.bidding import wait
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.common import clock
from marketplace.config.asgi import application
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Job
from marketplace.jobs.services import intake
from tests import builders
from tests import market_builders as market
from tests.durable_work import do_at_once
from tests.unit.marketplace.api.client import ROWS

#: What no schema can say, by the code and the beginning of the sentence.
NOT_IN_A_SCHEMA: Mapping[str, str] = {
    # What is on sale ends, and a slot has a length.
    "invalid_deadline": "The deadline ",
    # The number of combinations.
    "invalid_sweep": "These values make ",
    # The content of a file, and whether it is a table with such a column.
    "invalid_dataset": "",
    "invalid_columns": "",
    # What of LoRA goes with which base model, and with each other.
    "invalid_hyperparameter": "",
    "unfit_dataset": "",
}
#: Rights, money (402), the market's own limit of sizes (413), and what is not there, or not now.
TAKEN = frozenset({401, 402, 403, 404, 409, 413, 429, 503})
CHECKED = ("status_code_conformance", "content_type_conformance", "response_schema_conformance")
#: A busy machine is no fault of a request.
WAIT_S = 120.0
#: Requests of one operation.
EXAMPLES, EXAMPLES_AT_NIGHT = 2, 26


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch, settings: Any, tmp_path: Path) -> dict[str, Any]:
    """A market with one of everything that requests name, where nobody waits; with a key."""
    settings.API_REQUESTS_PER_MINUTE = dict.fromkeys(settings.API_REQUESTS_PER_MINUTE, 10**9)
    settings.MEDIA_ROOT = tmp_path / "media"
    monkeypatch.setattr(intake, "enqueue_work", do_at_once)
    for module, name in (
        *((owned, "READ_WITHIN_S"), (wait, "WAIT_S")),
        *((fine_tuning, "DECIDED_WITHIN_S"), (files, "WAIT_S")),
    ):
        monkeypatch.setattr(module, name, 0.0)
    now = clock.now()
    zone, unattended = market.zone(), market.zone()
    market.node(zone)
    owner = builders.organisation(usd="1000000")
    data = market.dataset(owner, zone)
    bid = market.bid(owner, zone, data=data, now=now)
    refresh_zone(zone=zone, now=now)
    decide_pending_bids(zone=zone, now=now)
    _, secret = builders.api_key(owner, bid_price_micros=5_000_000)
    job = Job.objects.get(bid_id=bid.pk)
    return {
        "key": secret,
        "zone": zone,
        # Nobody answers questions there, so they are refused once they are read.
        "unattended": unattended,
        "ids": {
            "zone_name": zone.name,
            "dataset_id": data.pk,
            "bid_id": bid.pk,
            "job_id": job.pk,
            "training_file": f"file-{data.pk.partition('_')[2]}",
        },
    }


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("document", ["/api/schema", "/v1/schema"])
@pytest.mark.parametrize(
    "examples",
    [
        pytest.param(EXAMPLES, id="some"),
        pytest.param(EXAMPLES_AT_NIGHT, id="many", marks=pytest.mark.nightly),
    ],
)
def test_what_a_document_lets_through_is_not_refused_for_its_form(
    house: Mapping[str, Any], document: str, examples: int
) -> None:
    schema = schemathesis.openapi.from_asgi(document, application, timeout=WAIT_S)
    # A text within free JSON holds no NUL; where a text is a member, its pattern says so.
    schema.config.generation.update(allow_x00=False)
    seen: Counter[int] = Counter()
    refused: Counter[tuple[str, ...]] = Counter()
    for operation in (result.ok() for result in schema.get_all_operations()):
        # Every second request is about what is there.
        for names_ours in (False, True):
            for status, fault in try_requests(
                operation, house, names_ours=names_ours, examples=examples // 2
            ):
                seen[status] += 1
                refused.update([(operation.label, *fault)] if fault else ())
    print(f"{document}: {sum(seen.values())} requests, {dict(seen)}")
    assert dict(refused) == {}


def try_requests(
    operation: Any, house: Mapping[str, Any], *, names_ours: bool, examples: int
) -> list[tuple[int, tuple[str, ...] | None]]:
    """Send requests that fit an operation; the status of each, and what refused its form."""
    found: list[tuple[int, tuple[str, ...] | None]] = []
    # OpenAPI 3.1 has no words for events: a stream is a text.
    is_stream = operation.path.endswith("/stream")
    checks = CHECKS.get_by_names(
        [name for name in CHECKED if "schema" not in name or not is_stream]
    )

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck), database=None)
    @given(operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
    def send(case: Any) -> None:
        suit(case, house, names_ours=names_ours)
        answer = case.call_and_validate(
            headers={"Authorization": f"Bearer {house['key']}"}, checks=checks, timeout=WAIT_S
        )
        found.append((answer.status_code, describe_refusal(answer)))

    send()
    return found


def suit(case: Any, house: Mapping[str, Any], *, names_ours: bool) -> None:
    """Have a request name what is there, and say what no schema can: JSON within a text."""
    ids, zone = house["ids"], house["zone"]
    if names_ours:
        for name in set(case.path_parameters or ()) & set(ids):
            case.path_parameters[name] = ids[name]
    if not isinstance(case.body, dict):
        return
    write_json_texts(case.body)
    if case.media_type == "multipart/form-data" and "file" in case.body:
        case.body["file"] = ROWS
    if not names_ours:
        return
    for body in (case.body, *case.body.get("bids", ())):
        body |= {name: ids[name] for name in ("dataset_id", "training_file") if name in body}
        body |= {"zone": zone.name} if "zone" in body else {}
        if "T" in str(body.get("deadline", "")):
            body["deadline"] = (clock.now() + timedelta(minutes=5)).isoformat()
    if case.path.startswith("/v1/"):
        case.body |= {"model": name_model(case.path, house)} if "model" in case.body else {}


def name_model(path: str, house: Mapping[str, Any]) -> str:
    asked: Zone = house["zone" if "fine_tuning" in path else "unattended"]
    return asked.name


def write_json_texts(value: Any) -> None:
    """Arguments of calls are JSON in a text."""
    if isinstance(value, dict):
        if isinstance(value.get("arguments"), str):
            value["arguments"] = '{"city": "Paris"}'
        for inner in value.values():
            write_json_texts(inner)
    elif isinstance(value, list):
        for inner in value:
            write_json_texts(inner)


def describe_refusal(answer: Any) -> tuple[str, str, str] | None:
    """Code, member and sentence of a refusal that the document should have told of."""
    if answer.status_code < 400 or answer.status_code in TAKEN:
        return None
    problem = answer.json()
    problem = problem.get("error", problem)
    sentence = problem.get("detail") or problem.get("message")
    beginning = NOT_IN_A_SCHEMA.get(problem["code"])
    if beginning is not None and sentence.startswith(beginning) and "must be" not in sentence:
        return None
    return problem["code"], str(problem.get("param")), sentence[:200]
