"""What an OpenAPI document lets through, the market takes: nothing is refused for its form.

A program that is generated from a document learns there what it may send. ``make test`` tries some
requests of every operation, always the same; ``make test-nightly`` tries 2,000 others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
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
from marketplace.common import clock
from marketplace.config.asgi import application
from marketplace.fleet.models import Zone
from marketplace.jobs.services import intake
from tests import builders
from tests import market_builders as market
from tests.durable_work import do_at_once
from tests.properties.full_house import fill_house, open_zone
from tests.unit.marketplace.api.client import ROWS

#: What no schema can say, by the code and how the sentence begins.
NOT_IN_A_SCHEMA: Mapping[str, Sequence[str]] = {
    # What is on sale ends, and a slot has a length.
    "invalid_deadline": ("The deadline ",),
    # That a price or a beat is given, and which beats there are.
    "no_price": ("Give a price, or the beat of a quote",),
    "unknown_beat": ("This beat has not come",),
    # The number of combinations.
    "invalid_sweep": ("These values make ",),
    # What a file holds.
    "invalid_columns": ("Each of .* may mean one column of the file",),
    # Who sells, and names within one request.
    "no_vendor": ("No vendor prepares such data in this zone now",),
    "invalid_request": ("No tool is named ", "tools: Give at most 64 functions, each a name of"),
    "unsupported_parameter": ("The model's chat template has no place for tools",),
    # What hours a node has, and that a time is over.
    "invalid_hours": ("Say from when and until when", "Give maintenance a beginning and an end"),
    "invalid_availability": ("The end of the availability must be in the future",),
    "invalid_hyperparameter": (
        # The zone's base model.
        "The model has no projection called ",
        # The number of rows.
        "Early stopping looks at the loss on held-out rows",
    ),
}
#: Rights, money (402), the market's own limit of sizes (413), and what is not there, or not now.
TAKEN = frozenset({401, 402, 403, 404, 409, 413, 429, 503})
ANY_HEALTH: Any = list(HealthCheck)
CHECKED = ("status_code_conformance", "content_type_conformance", "response_schema_conformance")
#: Last parts of addresses that end something, and what jobs other addresses are about.
ENDING = frozenset({"cancel", "pause", "revoke", "withdraw"})
JOBS: Mapping[str, str] = {
    **dict.fromkeys(("adapter", "checkpoints", "exports", "links", "pushes"), "finished_job"),
    # A stream ends with its job.
    "events": "finished_job",
    "resume": "paused_job",
}
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
    zone, unattended, providing = open_zone(), market.zone(), market.zone()
    owner = builders.organisation(usd="1000000")
    _, secret = builders.api_key(owner, bid_price_micros=5_000_000)
    return {
        "owner": owner,
        "key": secret,
        "zone": zone,
        # Nobody answers questions there, so they are refused once they are read.
        "unattended": unattended,
        "ids": fill_house(owner, zone=zone, providing=providing),
        # What requests end and delete; others are still to be about the first.
        "spare": fill_house(owner, zone=zone, providing=providing),
    }


# Threads that have answered go on and draw random numbers, while the next request is made up.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
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
    results: list[Any] = list(schema.get_all_operations())
    for operation in (result.ok() for result in results):
        # Every second request is about what is there.
        for names_ours in (False, True):
            for status, faults in try_requests(
                operation, house, names_ours=names_ours, examples=examples // 2
            ):
                seen[status] += 1
                refused.update((operation.label, *fault) for fault in faults)
    print(f"{document}: {sum(seen.values())} requests, {dict(seen)}")
    assert dict(refused) == {}


def try_requests(
    operation: Any, house: Mapping[str, Any], *, names_ours: bool, examples: int
) -> list[tuple[int, list[tuple[str, str, str]]]]:
    """Send requests that fit an operation; the status of each, and what refused its form."""
    found: list[tuple[int, list[tuple[str, str, str]]]] = []
    # OpenAPI 3.1 has no words for events: a stream is a text.
    is_stream = operation.path.endswith("/stream")
    checks = CHECKS.get_by_names(
        [name for name in CHECKED if "schema" not in name or not is_stream]
    )

    @settings(max_examples=examples, suppress_health_check=ANY_HEALTH, database=None)
    @given(operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
    def send(case: Any) -> None:
        suit(case, house, names_ours=names_ours)
        key = house["key"]
        if names_ours and case.path.endswith("/rotate") and "key_id" in case.path_parameters:
            # A key rotates itself only, and is another then.
            made, key = builders.api_key(house["owner"])
            case.path_parameters["key_id"] = made.pk
        answer = case.call_and_validate(
            headers={"Authorization": f"Bearer {key}"}, checks=checks, timeout=WAIT_S
        )
        found.append((answer.status_code, describe_refusals(answer)))

    send()
    return found


def suit(case: Any, house: Mapping[str, Any], *, names_ours: bool) -> None:
    """Have a request name what is there, and say what no schema can: JSON within a text."""
    ends = case.method == "DELETE" or case.path.rpartition("/")[2] in ENDING
    ids, zone = house["spare" if ends else "ids"], house["zone"]
    if names_ours:
        for name in set(case.path_parameters or ()) & set(ids):
            case.path_parameters[name] = ids[name]
        for part, job in JOBS.items():
            if f"{{job_id}}/{part}" in case.path:
                case.path_parameters["job_id"] = ids[job]
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
    """Arguments of calls are JSON in a text, and so are rows."""
    if isinstance(value, dict):
        if isinstance(value.get("arguments"), str):
            value["arguments"] = '{"city": "Paris"}'
        if isinstance(value.get("gold"), dict):
            value["gold"] = dict.fromkeys(value["gold"], ROWS.decode().partition("\n")[0])
        for inner in value.values():
            write_json_texts(inner)
    elif isinstance(value, list):
        for inner in value:
            write_json_texts(inner)


def list_problems(answer: Any) -> list[tuple[int, dict[str, Any]]]:
    """Status and body of an answer that is a problem, or of each that an answer of many has."""
    if answer.status_code >= 400:
        problem = answer.json()
        return [(answer.status_code, problem.get("error", problem))]
    if not answer.request.path_url.endswith(":batch"):
        return []
    each = answer.json()["data"]
    return [(one["status"], one["body"]) for one in each if one["status"] >= 400]


def describe_refusals(answer: Any) -> list[tuple[str, str, str]]:
    """Code, member and sentence of each refusal that the document should have told of."""
    found = []
    for status, problem in list_problems(answer):
        code, sentence = problem["code"], str(problem.get("detail") or problem.get("message"))
        excused = NOT_IN_A_SCHEMA.get(code, ())
        if status not in TAKEN and not any(re.match(each, sentence) for each in excused):
            found.append((code, str(problem.get("param")), sentence[:200]))
    return found
