"""What every answer carries, who may look inside, and which websockets are let in."""

import re
from unittest.mock import Mock

import pytest
from asgiref.testing import ApplicationCommunicator
from celery.fixups.django import DjangoWorkerFixup
from celery.signals import task_prerun
from django.conf import settings
from django.db import OperationalError, connection
from django.test import Client, override_settings

from marketplace.config.asgi import application
from marketplace.config.celery import app
from tests import builders

pytestmark = pytest.mark.django_db


def test_a_healthy_house_says_so_and_a_broken_one_too(client) -> None:
    sound = client.get("/healthz")
    assert (sound.status_code, sound.json()) == (200, {"ok": True, "problems": []})
    with override_settings(REDIS_URL="redis://127.0.0.1:1/0"):
        broken = client.get("/healthz")
    assert broken.status_code == 503
    assert broken.json() == {"ok": False, "problems": [{"label": "Redis"}]}
    with connection.execute_wrapper(Mock(side_effect=OperationalError("127.0.0.1 is away"))):
        broken = client.get("/healthz")
    assert broken.status_code == 503
    assert broken.json() == {"ok": False, "problems": [{"label": "PostgreSQL"}]}


def test_metrics_are_for_whoever_holds_the_token(client, settings) -> None:
    assert client.get("/metrics", headers={"Authorization": "Bearer "}).status_code == 403
    settings.METRICS_TOKEN = "let me see"
    assert client.get("/metrics").status_code == 403
    assert client.get("/metrics", headers={"Authorization": "Bearer wrong"}).status_code == 403
    seen = client.get("/metrics", headers={"Authorization": "Bearer let me see"})
    assert seen.status_code == 200
    assert b"finetender" in seen.content


def test_several_web_processes_tell_of_the_tiers_as_one_does(
    client, settings, tmp_path, monkeypatch
) -> None:
    settings.METRICS_TOKEN = "let me see"
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    seen = client.get("/metrics", headers={"Authorization": "Bearer let me see"})
    assert seen.status_code == 200
    assert b"# TYPE finetender_tiers_pressure gauge" in seen.content
    assert b"# TYPE finetender_tiers_boots_failed_total counter" in seen.content


def test_pages_forbid_foreign_and_inline_scripts_and_frames(client) -> None:
    answer = client.get("/accounts/login/")
    policy = dict(
        directive.split(" ", 1) for directive in answer["Content-Security-Policy"].split("; ")
    )
    assert policy["default-src"] == "'none'"
    assert policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for kind in ("script-src", "style-src"):
        assert "unsafe" not in policy[kind]
        assert policy[kind].startswith("'self'")
    assert answer["X-Frame-Options"] == "DENY"
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["Referrer-Policy"] == "same-origin"


def test_the_back_office_alone_has_a_wider_policy_that_still_loads_nothing_foreign(client) -> None:
    policy = client.get("/admin/login/")["Content-Security-Policy"]
    assert "'unsafe-eval'" in policy
    assert "http" not in policy
    elsewhere = client.get("/accounts/login/")["Content-Security-Policy"]
    assert "unsafe" not in elsewhere


def test_answers_to_programs_have_the_policy_of_pages_without_a_nonce(client) -> None:
    for address in ("/api/zones", "/api/nothing", "/api/vendor-work/x/data", "/v1/models"):
        answer = client.get(address)
        assert answer["Cache-Control"] == "private, no-cache"
        of_program = answer["Content-Security-Policy"].split("; ")
        of_page = client.get("/accounts/login/")["Content-Security-Policy"].split("; ")
        without_nonce = {re.sub(" 'nonce-[^']+'", "", directive) for directive in of_page}
        assert set(of_program) == without_nonce
        assert "script-src 'self'" in of_program


def test_a_form_without_its_token_is_refused() -> None:
    strict = Client(enforce_csrf_checks=True)
    answer = strict.post(
        "/accounts/login/", {"login": "a@example.com", "password": builders.PASSWORD}
    )
    assert answer.status_code == 403


def websocket(origin: str) -> ApplicationCommunicator:
    """A browser on a page of ``origin`` that asks for a websocket where none lives."""
    scope = {
        "type": "websocket",
        "path": "/ws/nowhere/",
        "query_string": b"",
        "headers": [(b"origin", origin.encode()), (b"host", b"localhost")],
        "subprotocols": [],
    }
    return ApplicationCommunicator(application, scope)


async def test_a_websocket_from_another_site_is_refused() -> None:
    foreign = websocket("http://evil.example")
    await foreign.send_input({"type": "websocket.connect"})
    assert (await foreign.receive_output())["type"] == "websocket.close"


async def test_a_websocket_from_the_site_itself_reaches_the_routes() -> None:
    own = websocket("http://localhost")
    await own.send_input({"type": "websocket.connect"})
    # There is nothing at this address, and the routes say so.
    assert (await own.receive_output())["code"] == 4404


def test_every_beat_entry_names_a_task_that_exists() -> None:
    app.loader.import_default_modules()
    scheduled = {entry["task"] for entry in settings.CELERY_BEAT_SCHEDULE.values()}
    assert scheduled <= set(app.tasks)
    assert set(settings.CELERY_TASK_ROUTES) <= set(app.tasks)


def test_celery_takes_json_only_and_gives_back_what_a_dead_worker_had() -> None:
    assert app.conf.accept_content == ["json"]
    assert app.conf.task_serializer == "json"
    assert app.conf.task_acks_late
    assert app.conf.task_reject_on_worker_lost
    assert app.conf.broker_url == app.conf.redbeat_redis_url == settings.REDIS_URL


@pytest.mark.django_db(transaction=True)
def test_a_worker_has_one_connection_for_all_tasks_until_it_cannot_be_used(monkeypatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", 300)
    connection.close()
    fixup = DjangoWorkerFixup(app)
    task = Mock(request=Mock(is_eager=False))

    def run_task() -> object:
        fixup.on_task_prerun(task)
        task_prerun.send(sender=task)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            [used] = cursor.fetchone()
        fixup.on_task_postrun(task)
        return used

    first = run_task()
    assert run_task() == first
    # The server closes it between two tasks.
    connection.connection.close()
    second = run_task()
    assert second != first
    assert run_task() == second
    connection.close_at = 0.0
    assert run_task() != second
