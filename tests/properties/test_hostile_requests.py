"""Whatever is sent, the market answers, and never with a fault of its own.

Bounded to well under a minute together; ``make test-nightly`` tries requests not tried before.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS

from marketplace.api.market import owned
from marketplace.api.openai import fine_tuning
from marketplace.auction.bidding import wait
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.witnesses.keys import sign_release
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.config.asgi import application
from marketplace.fleet.releases import find_release
from marketplace.jobs.models import Job
from marketplace.jobs.reading_child import read_file
from marketplace.jobs.reading_process import FileToRead, build_request
from marketplace.jobs.services import dispatch_slots, intake
from marketplace.web.views import uploads as page_uploads
from tests import builders
from tests import job_builders as build
from tests import market_builders as market
from tests.addresses import fill, list_page_addresses
from tests.builders import NOW
from tests.conftest import count_examples
from tests.durable_work import do_at_once
from workers.protocol.messages import Heartbeat
from workers.protocol.reports import SliceEnd as Ended
from workers.protocol.wire import to_json

ANY_HEALTH: Any = list(HealthCheck)
WITHIN_A_TEST = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]

#: Texts that have stopped servers before.
TEXTS = st.sampled_from(
    [
        *("", " ", "\0", "a\0b", "%00", "\ud800", "\udfff", "\u202e", "\ufeff", "é" * 300),
        *("-1", "0", "1e999", "NaN", "inf", "9" * 40, "-" + "9" * 40, "1_000", "٣", "0x10", "1,5"),
        *("0001-01-01T00:00:00", "9999-12-31T23:59:59", "2026-02-30T00:00:00", "2026-03-02T09:05"),
        *("'; DROP TABLE x --", "<script>", "{{ 7*7 }}", "../../etc/passwd", "auto", "null"),
        *("bid_" + "0" * 26, "ds_" + "z" * 26, "x" * 5000),
    ]
) | st.text(max_size=30)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([0, -1, 2**31, 2**63, 10**30, -(10**30), 10**400, 1.5, 1e308])
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture
def read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads are read at once, and nobody waits for what others do."""

    monkeypatch.setattr(intake, "enqueue_work", do_at_once)
    monkeypatch.setattr(page_uploads, "WAIT_S", 0.0)
    monkeypatch.setattr(owned, "READ_WITHIN_S", 0.0)
    monkeypatch.setattr(wait, "WAIT_S", 0.0)
    monkeypatch.setattr(fine_tuning, "DECIDED_WITHIN_S", 0.0)


@pytest.fixture(autouse=True)
def unlimited(settings: Any, tmp_path: Path) -> None:
    limits = dict.fromkeys(settings.API_REQUESTS_PER_MINUTE, 10**9)
    settings.API_REQUESTS_PER_MINUTE = limits
    settings.MEDIA_ROOT = tmp_path / "media"


# --- Pages ------------------------------------------------------------------------------------

#: What the forms and addresses of the pages call their values.
FIELDS = (
    *("name", "zone", "dataset", "upload", "decided", "faulty_lines", "long_rows", "other"),
    *("column_prompt", "column_completion", "epochs", "rank", "alpha", "dropout"),
    *("learning_rate", "batch_size", "deadline", "offered_deadline", "price", "key", "do", "usd"),
    *("ask", "tier", "until", "find", "show", "from", "again", "organisation", "scopes", "days"),
    *("policy", "answer", "email", "password", "login", "next", "page", "tab"),
)


@pytest.mark.django_db
def test_no_form_and_no_address_of_a_page_is_our_fault(read_here: None) -> None:
    zone = market.zone()
    node = market.node(zone)
    operator = builders.operator()
    owner = builders.organisation(owner=operator, usd="100")
    data = market.dataset(owner, zone)
    bid = market.bid(owner, zone, data=data)
    decide_pending_bids(zone=zone, now=NOW)
    job = Job.objects.get(bid_id=bid.pk)
    refresh_zone(zone=zone, now=clock.now())
    browser = Client(raise_request_exception=False)
    browser.force_login(operator)
    addresses = list_page_addresses()
    assert len(addresses) > 40
    ids = st.sampled_from([job.pk, bid.pk, data.pk, node.pk, zone.pk, zone.name, "receipt", "x"])
    names = ids | TEXTS.map(lambda text: text.replace("/", "")[:60])
    values = st.dictionaries(st.sampled_from(FIELDS), ids | TEXTS, max_size=8)

    @settings(max_examples=count_examples(250), suppress_health_check=WITHIN_A_TEST)
    @given(st.sampled_from(addresses), st.lists(names, min_size=3, max_size=3), values, st.data())
    def ask(address: str, given_names: list[str], fields: dict[str, str], more: Any) -> None:
        given_to = iter(given_names)
        path = fill(address, lambda _: quote(next(given_to)))
        method = more.draw(st.sampled_from(["get", "post"]))
        if method == "post" and address == "/accounts/login/":
            return
        readable = {name: clean(value) for name, value in fields.items()}
        if method == "post" and more.draw(st.booleans()):
            content = more.draw(FILES)
            readable |= {"file": SimpleUploadedFile(more.draw(FILE_NAMES), content)}
        reply = getattr(browser, method)(path, readable)
        assert reply.status_code < 500, (method, path, readable, reply.content[-500:])

    ask()


def quote(text: str) -> str:
    from urllib.parse import quote as percent

    return percent(clean(text), safe="") or "-"


def clean(text: str) -> str:
    """What a browser can send: half of a surrogate pair has no bytes."""
    return text.encode("utf-8", "replace").decode()


# --- Uploads ----------------------------------------------------------------------------------

ROWS = st.sampled_from(
    [
        b'{"prompt": "a", "completion": "b"}',
        b'{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}',
        b'{"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}',
        b'{"prompt": "a", "chosen": "b", "rejected": "c"}',
        b'{"text": "\\ud800 \\u0000"}',
        b"Question,Answer",
        b"prompt;completion",
        b'"a ""quoted"" cell",b',
        b"[" * 2000,
        b'{"a": ' * 1000,
        b'{"prompt": 1e400, "completion": -0}',
        b"\xff\xfe\x00",
        b"[]",
        b"",
    ]
)
FILES = (
    st.lists(ROWS | st.binary(max_size=40), max_size=8).map(b"\n".join)
    | st.lists(ROWS, max_size=5).map(lambda rows: b"[" + b",".join(rows) + b"]")
    | st.binary(max_size=200)
)
FILE_NAMES = st.sampled_from(["a.jsonl", "a.json", "a.csv", "a.tsv", "a.txt", "a", "a\u202e.csv"])


@settings(max_examples=300, suppress_health_check=WITHIN_A_TEST)
@given(
    FILES,
    FILE_NAMES,
    st.dictionaries(st.sampled_from(["prompt", "completion", "text", "x"]), TEXTS, max_size=2),
    st.booleans(),
)
def test_no_file_is_more_than_a_reading_or_a_refusal(
    tmp_path: Path, content: bytes, name: str, columns: dict[str, str], leaves_out_long: bool
) -> None:
    source = tmp_path / "source"
    source.write_bytes(content)
    file = FileToRead(
        path=source,
        output_path=tmp_path / "output",
        runs_path=tmp_path / "runs",
        name=name,
        tokenizer=None,
        max_tokens=8,
        leaves_out_long=leaves_out_long,
        columns=columns,
    )
    try:
        reading, _ = read_file(build_request(file))
    except UserError:
        return
    assert reading.rows >= 0
    # What is stored of it goes into the database as JSON.
    json.dumps(reading.errors).encode()


# --- Nodes ------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_no_message_of_a_node_is_our_fault() -> None:
    # As of any market whose worker has run.
    sign_release(find_release(), now=clock.now())
    zone = market.zone()
    node, reply = build.joined(zone, now=clock.now())
    job = build.job(zone, (0, node))
    dispatch_slots(now=NOW)
    held = build.lease(job)
    lease = f"/internal/v1/leases/{held.lease_token}"
    messages = {
        "/internal/v1/join/models": {"token": "x"},
        "/internal/v1/join": {"token": "x", "name": "n", "facts": to_json(build.facts())},
        "/internal/v1/heartbeat": to_json(Heartbeat(node_id=node.pk, at=0.0)),
        "/internal/v1/progress": to_json(build.report(held, build.event(1, step=1))),
        "/internal/v1/result": to_json(build.result(held, Ended.PAUSED, step=1)),
        f"{lease}/adapter": {"a": "b"},
        f"{lease}/checkpoints/1": {"a": "b"},
    }
    node_client = Client(
        raise_request_exception=False, headers={"Authorization": f"Bearer {reply.api_token}"}
    )

    @settings(max_examples=count_examples(250), suppress_health_check=WITHIN_A_TEST)
    @given(st.sampled_from(sorted(messages)), JSON, st.data())
    def send(address: str, value: Any, more: Any) -> None:
        body = replace_one(messages[address], value, more)
        method = "put" if address.startswith(lease) else "post"
        answer = getattr(node_client, method)(
            address, json.dumps(body), content_type="application/json"
        )
        assert answer.status_code < 500, (address, body, answer.content)

    send()


def replace_one(message: Any, value: Any, more: Any) -> Any:
    """The message with another value somewhere in it."""
    if isinstance(message, dict) and message and more.draw(st.integers(0, 5)):
        key = more.draw(st.sampled_from(sorted(message)))
        return message | {key: replace_one(message[key], value, more)}
    if isinstance(message, list) and message and more.draw(st.integers(0, 5)):
        return [replace_one(message[0], value, more), *message[1:]]
    return value


# --- The API ----------------------------------------------------------------------------------


#: Documents, and addresses where an answer is waited for.
DOCUMENTS = (
    ("/api/schema", ()),
    ("/v1/schema", ("/v1/chat/completions", "/v1/completions")),
)
#: Requests of each operation and kind.
EACH = 8


#: What anybody may see.
PUBLIC = ("/api/zones", "/api/market/{zone_name}")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("document", "waits"), DOCUMENTS)
def test_every_operation_answers_as_its_schema_says(
    read_here: None, document: str, waits: tuple[str, ...]
) -> None:
    zone = market.zone()
    market.node(zone)
    refresh_zone(zone=zone, now=clock.now())
    owner = builders.organisation(usd="10")
    market.dataset(owner, zone)
    _, secret = builders.api_key(owner)
    schema = schemathesis.openapi.from_asgi(document, application)
    checks = CHECKS.get_by_names(
        [
            *("not_a_server_error", "status_code_conformance"),
            *("content_type_conformance", "response_schema_conformance"),
        ]
    )
    results: list[Any] = list(schema.get_all_operations())
    operations = [result.ok() for result in results]
    assert len(operations) > 12
    for operation in operations:
        if operation.path in waits:
            continue
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @settings(max_examples=count_examples(EACH), suppress_health_check=ANY_HEALTH)
            @given(operation.as_strategy(generation_mode=mode))
            def send(case: Any) -> None:
                case.call_and_validate(headers={"Authorization": f"Bearer {secret}"}, checks=checks)

            send()

        @settings(max_examples=1, suppress_health_check=ANY_HEALTH)
        @given(operation.as_strategy())
        def send_without_key(case: Any) -> None:
            answer = case.call_and_validate(checks=checks)
            is_refused = answer.status_code == 401
            assert is_refused or case.operation.path in PUBLIC, case.operation.label

        send_without_key()


@pytest.mark.django_db(transaction=True)
def test_no_json_is_the_apis_fault(read_here: None) -> None:
    zone = market.zone()
    market.node(zone)
    owner = builders.organisation(usd="10")
    data = market.dataset(owner, zone)
    refresh_zone(zone=zone, now=clock.now())
    _, secret = builders.api_key(owner)
    program = Client(raise_request_exception=False, headers={"Authorization": f"Bearer {secret}"})
    bid = {
        "zone": zone.name,
        "dataset_id": data.pk,
        "name": "a job",
        "price": "5.00",
        "deadline": "2026-03-02T09:05:00Z",
        "adapter": {"rank": 8, "target_modules": ["q_proj"], "init_text": "x", "dropout": 0.0},
        "training": {"epochs": 1, "batch_size": 8, "seed": 1, "schedule": "linear"},
    }
    quote = {name: bid[name] for name in bid if name not in ("name", "price")}
    sweep = {"sweep": {"training.seed": [1, 2], "adapter.rank": [8]}}
    bodies = {
        "/api/bids": bid,
        "/api/quotes": quote,
        "/api/bids:batch": {"bids": [bid]},
        "/api/bundles": bid | sweep,
        "/api/bundles/quotes": quote | sweep,
    }

    @settings(max_examples=count_examples(150), suppress_health_check=WITHIN_A_TEST)
    @given(st.sampled_from(sorted(bodies)), JSON, st.data())
    def send(address: str, value: Any, more: Any) -> None:
        body = replace_one(bodies[address], value, more)
        answer = program.post(address, json.dumps(body), content_type="application/json")
        assert answer.status_code < 500, (address, body, answer.content)

    send()
