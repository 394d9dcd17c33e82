"""Log lines and answers that say which request they are of."""

from __future__ import annotations

import asyncio
import json
import logging
import re

import pytest
from django.core.exceptions import ImproperlyConfigured

from marketplace.config.logs import (
    JsonFormatter,
    RequestIdFilter,
    RequestLogMiddleware,
    hide_secrets,
)
from marketplace.config.routes import list_routes
from marketplace.config.settings import environment

log = logging.getLogger("marketplace.tests.logs")


def ask(application, *, headers=(), path="/jobs", writes_lines=True):
    """The messages of an answer to one request."""
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "headers": list(headers)}
    middleware = RequestLogMiddleware(application, writes_lines=writes_lines)
    asyncio.run(middleware({**scope, "query_string": b"secret=1"}, None, send))
    return sent


def answer_with(status, *, headers=()):
    async def application(scope, receive, send):
        log.info("at work")
        await send({"type": "http.response.start", "status": status, "headers": list(headers)})
        await send({"type": "http.response.body", "body": b"x"})

    return application


@pytest.fixture
def lines(caplog):
    """Records, with the ids that the console's handler would print."""
    caplog.set_level(logging.INFO)
    caplog.handler.addFilter(RequestIdFilter())
    yield caplog
    caplog.handler.filters.clear()


def test_lines_and_the_answer_carry_the_callers_id(lines):
    start, _ = ask(answer_with(200), headers=[(b"x-request-id", b"mine-1")])
    assert start["headers"] == [(b"x-request-id", b"mine-1")]
    work, access = lines.records
    assert work.request_id == access.request_id == "mine-1"
    assert re.fullmatch(r"GET /jobs 200 [\d.]+ ms", access.getMessage())


def test_an_unsafe_id_is_replaced_and_the_view_sees_what_is_logged(lines):
    seen = []

    async def application(scope, receive, send):
        seen.extend(value for name, value in scope["headers"] if name == b"x-request-id")
        await answer_with(200)(scope, receive, send)

    start, _ = ask(application, headers=[(b"x-request-id", b"a\r\nb"), (b"accept", b"*/*")])
    [(_, answered)] = start["headers"]
    assert seen == [answered]
    assert answered.startswith(b"req_")
    assert {record.request_id for record in lines.records} == {answered.decode()}


def test_an_id_that_the_view_set_is_left(lines):
    start, _ = ask(answer_with(200, headers=[(b"X-Request-Id", b"own")]))
    assert start["headers"] == [(b"X-Request-Id", b"own")]


def test_faults_are_errors_and_clients_that_left_have_no_status(lines):
    ask(answer_with(503))

    async def leave(scope, receive, send):
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError):
        ask(leave)
    served, left = (record for record in lines.records if record.name == "marketplace.access")
    assert (served.levelname, served.facts["status"]) == ("ERROR", 503)
    assert (left.levelname, left.facts["status"]) == ("INFO", 0)


def test_without_access_lines_only_the_ids_are_there(lines):
    ask(answer_with(200), writes_lines=False)
    assert [record.getMessage() for record in lines.records] == ["at work"]


def test_no_line_has_what_lets_its_reader_in(lines):
    hidden = 0
    for route in list_routes():
        if re.search(r"<str:\w*(?:token|secret)>", route.path):
            path = re.sub(r"<str:\w*(?:token|secret)>", "let-me-in", f"/{route.path}")
            assert "let-me-in" not in hide_secrets(path), path
            hidden += 1
    assert hidden >= 8
    assert hide_secrets("/jobs/job_1") == "/jobs/job_1"
    ask(answer_with(200), path="/invitations/let-me-in")
    assert "let-me-in" not in lines.text
    assert "secret=1" not in lines.text


def test_json_lines_are_one_object_each():
    error = ValueError("no\nway")
    record = logging.LogRecord("a.b", logging.ERROR, "", 1, "it %s", ("broke\n",), None)
    record.exc_info = (type(error), error, None)
    record.facts, record.request_id = {"status": 500}, "r1"
    text = JsonFormatter().format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert line["message"] == "it broke\n"
    assert (line["level"], line["logger"], line["request_id"]) == ("ERROR", "a.b", "r1")
    assert line["status"] == 500
    assert line["error"].endswith("ValueError: no\nway")


@pytest.mark.parametrize(
    ("given", "exporter"),
    [
        ({}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, "otlp"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, "otlp"),
        ({"OTEL_TRACES_EXPORTER": "console"}, "console"),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://a"}, ""),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "TRUE"}, ""),
    ],
)
def test_traces_are_off_unless_they_are_asked_for(monkeypatch, given, exporter):
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert environment.traces_exporter() == exporter


def test_wrong_words_are_named(monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "jaeger")
    with pytest.raises(ImproperlyConfigured, match="otlp, console or none"):
        environment.traces_exporter()
    monkeypatch.setenv("LOG_FORMAT", "xml")
    with pytest.raises(ImproperlyConfigured, match="line or json"):
        environment.choice("LOG_FORMAT", "line", ("line", "json"))


def test_traces_without_their_packages_stop_the_start(monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setattr(environment, "find_spec", lambda _: None)
    with pytest.raises(ImproperlyConfigured, match=r"\[traces\]"):
        environment.traces_exporter()
