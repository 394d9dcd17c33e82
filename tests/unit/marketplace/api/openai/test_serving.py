"""Asking models that the operator's own server serves: a small server that behaves as vLLM does."""

from __future__ import annotations

import json
import threading
import zipfile
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path

import openai
import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.db.models import Sum

from marketplace.accounts.erasure import ERASE, GRACE
from marketplace.accounts.models import Deletion
from marketplace.api.openai import chat
from marketplace.common.durable.kinds import get_kinds
from marketplace.common.durable.run import run_due_work
from marketplace.jobs.models import Artifact, Job
from marketplace.jobs.services import delete_adapter, dispatch_slots
from marketplace.jobs.tuned_models import TunedModel
from marketplace.payments.freezes import freeze_organisation
from marketplace.payments.models import AccountKind, LedgerAccount, Posting
from marketplace.payments.selectors import get_wallet
from marketplace.questions import serving
from marketplace.questions.asking import QuestionTerms, encode_question
from marketplace.questions.models import AskedQuestion, QuestionStatus
from tests import builders
from tests import job_builders as build
from tests import market_builders as market
from tests.waiting import until
from workers.protocol.generation import ChatTurn
from workers.protocol.reports import SliceEnd

pytestmark = pytest.mark.django_db(transaction=True)

MESSAGES = [{"role": "user", "content": "hello"}]
RATE_MICROS = 1_000_000_000


class SmallServer(BaseHTTPRequestHandler):
    """``/v1/completions`` and ``/v1/load_lora_adapter``, with vLLM's answers."""

    protocol_version = "HTTP/1.1"
    models: set[str]
    asked: list[dict]
    loaded: list[str]
    headers_seen: list[str | None]
    is_down = False
    words = ("Hi", " there")
    #: Waits after the first word until it is set.
    goes_on: threading.Event
    was_left: threading.Event

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.headers_seen.append(self.headers["Authorization"])
        if self.path == "/v1/load_lora_adapter":
            return self._load(body)
        if self.path == "/v1/unload_lora_adapter":
            return self._unload(body)
        assert self.path == "/v1/completions"
        if body["model"] not in self.models:
            return self._answer(404, {"error": {"message": "no such model"}})
        if body["max_tokens"] > 100:
            return self._answer(400, {"error": {"message": "too many tokens"}})
        self.asked.append(body)
        return self._write(body)

    def _load(self, body):
        folder = Path(body["lora_path"])
        assert json.loads((folder / "adapter_config.json").read_text()) == {"r": 1}
        assert (folder / "adapter_model.safetensors").read_bytes() == b"weights"
        self.loaded.append(body["lora_name"])
        if body["lora_name"] in self.models:
            message = f"The lora adapter '{body['lora_name']}' has already been loaded."
            return self._answer(400, {"error": {"message": message}})
        self.models.add(body["lora_name"])
        return self._answer(200, "Success")

    def _unload(self, body):
        if self.is_down:
            return self._answer(500, "down")
        if body["lora_name"] not in self.models:
            return self._answer(404, {"message": "not found"})
        self.models.remove(body["lora_name"])
        return self._answer(200, "Success")

    def _write(self, body):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            for place, word in enumerate(self.words):
                last = place == len(self.words) - 1
                logprobs = None
                if body["logprobs"] is not None:
                    top = [{word: -0.5, "x": -2.0}]
                    logprobs = {"tokens": [word], "token_logprobs": [-0.5], "top_logprobs": top}
                self._send(text=word, logprobs=logprobs, finish_reason="stop" if last else None)
                if not last:
                    assert self.goes_on.wait(20)
            usage = {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}
            self._event({"choices": [], "usage": usage})
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            self.was_left.set()
        self.close_connection = True

    def _send(self, **choice):
        self._event({"choices": [{"index": 0, **choice}]})

    def _event(self, value):
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()

    def _answer(self, status, value):
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(settings, tmp_path):
    goes_on, was_left = threading.Event(), threading.Event()
    goes_on.set()
    state = {"models": {"tiny"}, "asked": [], "loaded": [], "headers_seen": []}
    state |= {"goes_on": goes_on, "was_left": was_left}
    handler = type("Server", (SmallServer,), state)
    listening = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    settings.SERVING_URL = f"http://127.0.0.1:{listening.server_port}"
    settings.SERVING_API_KEY = "operators"
    settings.SERVING_ADAPTERS = tmp_path / "adapters"
    settings.SERVING_RATE_MICROS = RATE_MICROS
    serving._loaded.clear()
    yield handler
    goes_on.set()
    listening.shutdown()
    thread.join()
    listening.server_close()


@pytest.fixture
def zone():
    return market.zone(work_costs={})


@pytest.fixture
def ask(client, zone, server):
    def chat(**changed):
        return client.chat.completions.create(
            **({"model": zone.name, "messages": MESSAGES, "max_tokens": 10} | changed)
        )

    return chat


@pytest.fixture
def tuned(client, zone, owner, settings, tmp_path):
    """The name of a finished job's adapter."""
    settings.MEDIA_ROOT = tmp_path / "media"
    node = market.node(zone)
    job = build.job(zone, (0, node), organisation=owner)
    dispatch_slots(now=builders.NOW)
    market.end_slice(job, status=SliceEnd.FINISHED, now=builders.NOW)
    content = BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("adapter_config.json", '{"r": 1}')
        archive.writestr("adapter_model.safetensors", b"weights")
        archive.writestr("README.md", "not for the server")
    artifact = Artifact.objects.get(job=job)
    artifact.file.save("adapter.zip", ContentFile(content.getvalue()))
    return f"ft:{job.pk}"


def test_the_servers_words_are_given_metered_and_paid_to_the_house(ask, server, owner, zone):
    before = get_wallet(organisation=owner).available_micros
    answer = ask(temperature=0, stop=["\n"], seed=3)
    assert answer.choices[0].message.content == "Hi there"
    assert (answer.choices[0].finish_reason, answer.model) == ("stop", zone.name)
    [asked] = server.asked
    turns = QuestionTerms(turns=(ChatTurn("user", "hello"),))
    assert asked["prompt"] == encode_question(zone, turns)
    assert (asked["model"], asked["stop"], asked["seed"]) == ("tiny", ["\n"], 3)
    assert set(server.headers_seen) == {"Bearer operators"}
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(asked["prompt"]), 3)
    price = usage.total_tokens * RATE_MICROS // 1_000_000
    assert get_wallet(organisation=owner).available_micros == before - price
    assert get_wallet(organisation=owner).held_micros == 0
    assert not LedgerAccount.objects.filter(
        kind=AccountKind.EARNINGS_PENDING, balance_micros__gt=0
    ).exists()
    of_the_house = Posting.objects.filter(account__kind=AccountKind.REVENUE)
    assert of_the_house.aggregate(micros=Sum("amount_micros"))["micros"] == price


def test_a_schema_is_passed_on_as_vllm_takes_it_where_the_operator_says_so(ask, server, settings):
    with pytest.raises(openai.BadRequestError, match="takes no schemas") as refused:
        ask(response_format={"type": "json_object"})
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "response_format")
    assert not server.asked
    assert not AskedQuestion.objects.exists()
    settings.SERVING_SCHEMAS = True
    ask(response_format={"type": "json_object"})
    form = {"name": "answer", "schema": {"type": "object"}}
    assert server.asked[0]["response_format"] == {"type": "json_schema", "json_schema": form}


def test_words_are_streamed_before_the_answer_is_whole(ask, server):
    server.goes_on.clear()
    chunks = iter(ask(stream=True))
    assert next(chunks).choices[0].delta.role == "assistant"
    assert next(chunks).choices[0].delta.content == "Hi"
    server.goes_on.set()
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == " there"


def test_probabilities_are_passed_on(ask):
    [first, _] = ask(logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert (first.token, first.logprob) == ("Hi", -0.5)
    assert [(other.token, other.logprob) for other in first.top_logprobs] == [
        ("Hi", -0.5),
        ("x", -2.0),
    ]


def test_an_adapter_is_pushed_when_it_is_first_asked_and_again_after_a_restart(
    ask, server, tuned, settings
):
    artifact = Artifact.objects.get()
    for _ in range(2):
        assert ask(model=tuned).choices[0].message.content == "Hi there"
    assert server.loaded == [artifact.pk]
    assert [asked["model"] for asked in server.asked] == [artifact.pk] * 2
    assert [path.name for path in settings.SERVING_ADAPTERS.iterdir()] == [artifact.pk]
    server.models.remove(artifact.pk)
    ask(model=tuned)
    assert server.loaded == [artifact.pk] * 2
    # Another process has pushed it meanwhile.
    serving._loaded.clear()
    ask(model=tuned)
    assert server.loaded == [artifact.pk] * 3


def test_what_the_server_refuses_or_fails_at_costs_nothing(ask, server, owner, settings, client):
    before = get_wallet(organisation=owner).available_micros
    with pytest.raises(openai.BadRequestError, match="too many tokens"):
        ask(max_tokens=101)
    server.models.clear()
    for url in (settings.SERVING_URL, "http://127.0.0.1:9"):
        settings.SERVING_URL = url
        with pytest.raises(openai.InternalServerError) as refused:
            client.with_options(max_retries=0).chat.completions.create(
                model=AskedQuestion.objects.latest("pk").zone.name, messages=MESSAGES
            )
        assert refused.value.code == "not_answered"
    wallet = get_wallet(organisation=owner)
    assert (wallet.available_micros, wallet.held_micros) == (before, 0)


def test_an_answer_of_another_shape_ends_the_question_and_costs_nothing(
    client, server, owner, zone, monkeypatch
):
    before = get_wallet(organisation=owner).available_micros
    shapes = [{"usage": {}}, {"choices": "Hi"}, [], {"choices": [{"logprobs": {"tokens": [None]}}]}]
    shapes.append({"choices": [{"logprobs": {"tokens": ["a"], "token_logprobs": [None]}}]})
    for value in shapes:
        monkeypatch.setattr(server, "_event", _send_instead(value))
        with pytest.raises(openai.InternalServerError) as refused:
            client.with_options(max_retries=0).chat.completions.create(
                model=zone.name, messages=MESSAGES, max_tokens=10
            )
        assert refused.value.code == "not_answered", value
    wallet = get_wallet(organisation=owner)
    assert (wallet.available_micros, wallet.held_micros) == (before, 0)


def _send_instead(value):
    def event(handler, _):
        handler.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        handler.wfile.flush()

    return event


def test_an_owner_who_leaves_ends_the_servers_work_and_pays_for_the_words(ask, server, owner):
    before = get_wallet(organisation=owner).available_micros
    server.goes_on.clear()
    server.words = ("Hi", *(" there" for _ in range(20_000)))
    stream = ask(stream=True)
    chunks = iter(stream)
    next(chunks)
    next(chunks)
    stream.close()
    until(
        lambda: AskedQuestion.objects.get().status == QuestionStatus.CANCELLED,
        what="the question ended",
    )
    server.goes_on.set()
    assert server.was_left.wait(20)
    question = AskedQuestion.objects.get()
    price = (question.prompt_tokens + question.answer_tokens) * RATE_MICROS // 1_000_000
    assert question.answer_tokens >= 1
    assert get_wallet(organisation=owner).available_micros == before - price


def test_an_answer_to_a_frozen_organisation_ends_and_its_words_are_paid(
    ask, server, owner, monkeypatch
):
    monkeypatch.setattr(chat, "CHECK_EVERY_S", 0.0)
    before = get_wallet(organisation=owner).available_micros
    server.goes_on.clear()
    chunks = iter(ask(stream=True))
    next(chunks)
    assert next(chunks).choices[0].delta.content == "Hi"
    freeze_organisation(
        organisation_id=owner.pk, reference="cb_1", reason="Contested.", now=builders.NOW
    )
    with pytest.raises(openai.APIError, match="Further words are refused: Contested"):
        list(chunks)
    question = AskedQuestion.objects.get()
    assert question.status == QuestionStatus.CANCELLED
    price = (question.prompt_tokens + question.answer_tokens) * RATE_MICROS // 1_000_000
    assert get_wallet(organisation=owner).available_micros == before - price


@pytest.mark.parametrize("state", ["loaded", "restarted", "down", "elsewhere", "unset"])
def test_a_deleted_adapter_is_taken_from_the_server_too(ask, server, tuned, settings, state):
    ask(model=tuned)
    AskedQuestion.objects.all().delete()
    artifact, root = Artifact.objects.get(), settings.SERVING_ADAPTERS
    [folder] = root.iterdir()
    Job.objects.update(settled_at=builders.NOW)
    delete_adapter(job=artifact.job, asked_by=None, now=builders.NOW)
    server.is_down = state == "down"
    if state == "restarted":
        server.models.remove(artifact.pk)
    if state == "elsewhere":
        root.rename(root.with_name("elsewhere"))
    if state == "unset":
        settings.SERVING_URL = ""
    later = builders.NOW + GRACE
    erase = get_kinds()[ERASE]
    run_due_work(erase, clock=lambda: later)
    # A server that is down keeps nobody's files.
    assert not folder.exists()
    assert not default_storage.exists(artifact.file.name)
    is_waiting = state in ("down", "elsewhere")
    assert Deletion.objects.filter(erased_at=None).exists() == is_waiting
    server.is_down = False
    if state == "elsewhere":
        root.with_name("elsewhere").rename(root)
    run_due_work(erase, clock=lambda: later + timedelta(hours=1))
    assert not folder.exists()
    assert (artifact.pk in server.models) == (state == "unset")
    assert not Deletion.objects.filter(erased_at=None).exists()


def test_a_checkpoints_adapter_leaves_the_server_with_its_jobs(ask, server, tuned, settings):
    job = Job.objects.get()
    made = TunedModel(job, market.checkpoint(job, step=4)).take_artifact(now=builders.NOW)
    # What the server of these tests compares.
    with Artifact.objects.get().file.open("rb") as file:
        made.file.save("adapter.zip", file)
    ask(model=f"{tuned}:ckpt-step-4")
    [folder] = settings.SERVING_ADAPTERS.iterdir()
    assert server.models >= {folder.name}
    AskedQuestion.objects.all().delete()
    Job.objects.update(settled_at=builders.NOW)
    delete_adapter(job=job, asked_by=None, now=builders.NOW)
    run_due_work(get_kinds()[ERASE], clock=lambda: builders.NOW + GRACE)
    assert not folder.exists()
    assert folder.name not in server.models
    assert not Deletion.objects.filter(erased_at=None).exists()


def test_zones_that_the_server_does_not_have_are_answered_by_nodes(ask, server, settings):
    settings.SERVING_MODELS = ["elsewhere=big"]
    with pytest.raises(openai.InternalServerError) as refused:
        ask()
    assert refused.value.code == "no_node"
    assert server.asked == []
