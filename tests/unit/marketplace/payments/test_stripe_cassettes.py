"""Every call of ours to the gateway, recorded: what is asked, and what the code reads off it.

``make stripe-cassettes`` records again, with ``STRIPE_TEST_KEY=sk_test_...`` from Stripe's test
mode. The stand-in is asked the same; whatever it answers has to be in the recorded answers too.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import stripe
import vcr
from stripe import _object_classes
from vcr.cassette import Cassette
from vcr.record_mode import RecordMode
from vcr.request import Request

from marketplace.embedded.stripe_stand_in.routes import ROUTES
from marketplace.payments import stripe_accounts
from marketplace.payments.models import GatewayEndpoint
from tests.stand_in import REAL_KEY, GatewayControl
from tests.stripe_calls import CALLS, new_key
from tests.stripe_published import KEPT

pytestmark = pytest.mark.django_db

FOLDER = Path(__file__).parents[3] / "data" / "stripe"
IS_RECORDING = bool(os.environ.get("STRIPE_RECORD"))
#: An account of the test mode that was onboarded by hand; the stand-in does it by itself.
TEST_ACCOUNT = os.environ.get("STRIPE_TEST_ACCOUNT", "")
#: What happens at the gateway's own wish, and so cannot be recorded on demand.
NOT_RECORDED = {"GET /v1/reviews/ID", "GET /v1/radar/early_fraud_warnings/ID"}
#: What browsers ask, and tests.
NOT_OURS = {
    *("POST /v1/payment_intents/ID/confirm", "GET /v1/payment_methods/ID", "GET /v1/charges/ID"),
    "GET /v1/customers/ID",
}
_ID = re.compile(r"(?<=/)[a-z]+_[A-Za-z0-9]{14,}(?=/|$)")
#: Parameters that are others each time.
_CHANGES = ("created", "reference", "metadata[finetender]")
_SECRET = re.compile(r'"(client_secret|secret)": "[^"]*"')


# The recording


def _hide(request: Request) -> Request | None:
    """What is recorded of a request: nothing of where it went to, and of the key."""
    address = urlsplit(request.uri)
    if address.path.startswith("/_test"):
        return None
    request.uri = address._replace(scheme="https", netloc="api.stripe.com").geturl()
    request.headers = {}
    return request


def _hide_secrets(response: Any) -> Any:
    body = response["body"]["string"]
    text = body.decode() if isinstance(body, bytes) else body
    hidden = _SECRET.sub(r'"\1": "hidden_secret_hidden"', json.dumps(json.loads(text)))
    response["body"]["string"] = hidden.encode()
    response["headers"] = {"Content-Type": ["application/json"]}
    return response


def _read(request: Request) -> tuple[str, str, list[tuple[str, str]]]:
    address = urlsplit(request.uri)
    body = request.body.decode() if isinstance(request.body, bytes) else request.body or ""
    asked = [
        (name, "" if name.startswith(_CHANGES) else value)
        for name, value in sorted(parse_qsl(f"{address.query}&{body}"))
    ]
    return request.method, address.path, asked


def _is_same(one: Request, other: Request) -> None:
    assert _read(one) == _read(other)


@contextmanager
def _tape(path: Path, *, mode: RecordMode) -> Iterator[Cassette]:
    recorder = vcr.VCR(
        serializer="json",
        record_mode=mode,
        match_on=["call"],
        before_record_request=_hide,
        before_record_response=_hide_secrets,
        decode_compressed_response=True,
    )
    recorder.register_matcher("call", _is_same)
    with recorder.use_cassette(str(path)) as tape:
        yield tape


def _describe(tape: Cassette) -> list[str]:
    return [f"{r.method} {_ID.sub('ID', urlsplit(r.uri).path)}" for r in tape.requests]


def _list_shapes(tape: Cassette) -> Iterator[tuple[str, dict[str, set[str]]]]:
    for call, response in zip(_describe(tape), tape.responses, strict=True):
        shape: dict[str, set[str]] = {}
        _add_shape(json.loads(response["body"]["string"]), "", shape)
        yield call, shape


def _add_shape(value: Any, path: str, shape: dict[str, set[str]]) -> None:
    """Add the types that stand at each place; a list's items share one."""
    shape.setdefault(path, set()).add(type(value).__name__)
    if isinstance(value, dict) and not path.endswith(".metadata"):
        for name, inner in value.items():
            _add_shape(inner, f"{path}.{name}", shape)
    if isinstance(value, list):
        for inner in value:
            _add_shape(inner, f"{path}[]", shape)


def _onboard(cards: GatewayControl) -> str:
    """An account of the stand-in that can be paid."""
    made = stripe_accounts.create_account(organisation_id="org_1", country="", key=new_key())
    cards.control("onboard", account=made)
    return made


def _find_account(path: Path) -> str:
    """The account that a recording pays."""
    return next(iter(re.findall(r"destination=(acct_\w+)", path.read_text())), "")


def _run(name: str, account: str) -> None:
    CALLS[name](*[account] * (name == "pay_an_earner_out"))


@pytest.fixture
def market(settings: Any) -> None:
    settings.PUBLIC_URL = "https://market.example"


def _record(name: str, path: Path, cards: GatewayControl, settings: Any) -> None:
    account = TEST_ACCOUNT or _onboard(cards)
    if REAL_KEY:
        settings.STRIPE_SECRET_KEY, settings.STRIPE_API_URL = REAL_KEY, ""
        if name == "pay_an_earner_out" and not TEST_ACCOUNT:
            # What is there stays: no account of the test mode can be paid without a person.
            return
    path.unlink(missing_ok=True)
    with _tape(path, mode=RecordMode.ALL):
        _run(name, account)
    GatewayEndpoint.objects.all().delete()


@pytest.mark.usefixtures("market")
@pytest.mark.parametrize("name", CALLS)
def test_our_calls_and_what_they_read_are_as_recorded(
    name: str, cards: GatewayControl, settings: Any
) -> None:
    path = FOLDER / f"{name}.json"
    if IS_RECORDING:
        _record(name, path, cards, settings)
    settings.STRIPE_SECRET_KEY, settings.STRIPE_API_URL = "sk_test_recorded", ""
    with _tape(path, mode=RecordMode.NONE) as tape:
        _run(name, _find_account(path))
        assert tape.all_played


@pytest.mark.usefixtures("market")
@pytest.mark.parametrize("name", CALLS)
def test_the_stand_in_answers_nothing_that_the_gateway_does_not(
    name: str, cards: GatewayControl, tmp_path: Path
) -> None:
    account = _onboard(cards)
    with _tape(tmp_path / "live.json", mode=RecordMode.ALL) as live:
        _run(name, account)
    with _tape(FOLDER / f"{name}.json", mode=RecordMode.NONE) as recorded:
        known = dict(_list_shapes(recorded))
    assert set(_describe(live)) == known.keys()
    for call, shape in _list_shapes(live):
        for path, types in shape.items():
            assert path in known[call], f"{call} answers {path}"
            expected = known[call][path]
            # What was null in the recording may be anything that the client's types allow.
            assert types - {"NoneType"} <= expected or expected == {"NoneType"}, f"{call} {path}"


def test_every_call_that_the_stand_in_knows_is_recorded() -> None:
    calls = {
        f"{method} {pattern.pattern.replace('([A-Za-z0-9_]+)', 'ID')}"
        for method, pattern, _, _ in ROUTES
    }
    recorded: set[str] = set()
    for name in CALLS:
        with _tape(FOLDER / f"{name}.json", mode=RecordMode.NONE) as tape:
            recorded |= set(_describe(tape))
    assert calls - recorded == NOT_RECORDED | NOT_OURS


@pytest.mark.parametrize("name", CALLS)
def test_answers_have_the_fields_and_types_that_stripe_publishes(name: str) -> None:
    """So that the stand-in can invent nothing, nor a recording be of another version.

    Its client's annotations say so, and the fixtures beside its OpenAPI document.
    """
    with _tape(FOLDER / f"{name}.json", mode=RecordMode.NONE) as tape:
        answers = [json.loads(response["body"]["string"]) for response in tape.responses]
    published = json.loads(KEPT.read_text())
    for thing in _list_things(answers):
        kind = _object_classes.get_object_class("V1", thing["object"])
        if thing.get("deleted") or kind is stripe.ListObject:
            continue
        assert kind is not stripe.StripeObject, thing["object"]
        known = kind.__annotations__
        for field, value in thing.items():
            assert field in known, f"{thing['object']} has no {field}"
            simple = _list_simple_types(known[field])
            assert simple is None or isinstance(value, simple), f"{thing['object']}.{field}"
            shown = published.get(thing["object"], {}).get(field, "NoneType")
            # What was asked to be expanded stands whole where its id would.
            is_whole = isinstance(value, dict) and "object" in value
            given = "str" if is_whole and shown == "str" else type(value).__name__
            assert "NoneType" in (shown, given) or shown == given, f"{field}: {given}, {shown}"


def _list_things(value: Any) -> Iterator[dict[str, Any]]:
    """Every object of the gateway's in an answer, those within others too."""
    if isinstance(value, list):
        for each in value:
            yield from _list_things(each)
    elif isinstance(value, dict):
        if isinstance(value.get("object"), str):
            yield value
        for each in value.values():
            yield from _list_things(each)


def _list_simple_types(annotation: Any) -> tuple[type, ...] | None:
    """The types that an annotation allows, where it names only simple ones."""
    text = str(getattr(annotation, "__forward_arg__", annotation)).removeprefix("typing.")
    inner = text.removeprefix("Optional[").rstrip("]")
    simple = {"str": str, "int": int, "bool": bool, "<class 'str'>": str, "<class 'int'>": int}
    if inner not in simple:
        return None
    return (simple[inner], *([type(None)] if inner != text else []))
