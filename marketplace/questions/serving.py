"""Answers by the operator's own model server, where there is one (``SERVING_URL``).

The server speaks OpenAI's ``/v1/completions``, takes prompts as token numbers and loads adapters at
run time, as vLLM does (``/v1/load_lora_adapter``). It gets the very tokens that nodes train and
answer with. Its words are stored and charged like a node's, but the market earns the price.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import tempfile
import zipfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from django.conf import settings

from marketplace.common import clock
from marketplace.common.threads import run_in_thread
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Artifact
from marketplace.questions.answering import record_forwarded
from marketplace.questions.asking import QuestionTerms, encode_question
from marketplace.questions.models import AskedQuestion
from workers.protocol.adapter_check import WEIGHTS_NAME
from workers.protocol.adapter_files import CONFIG_NAME
from workers.protocol.generation import LikelyToken, Written, WrittenToken
from workers.protocol.reports import Fault
from workers.protocol.wire import from_json

log = logging.getLogger(__name__)

#: Seconds over which words are gathered into one commit.
GATHER_S = 0.04
_TIMEOUT = httpx.Timeout(120.0, connect=5.0)
_ADAPTER_FILES = (CONFIG_NAME, WEIGHTS_NAME)
_ALREADY = "already"
_LINE_CHARS_MAX = 1_000_000
_running: set[asyncio.Task[None]] = set()


class ServerRefusal(Exception):
    """The server did not answer a request; the text is for the owner."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def find_served_model(zone: Zone) -> str | None:
    """What the model server calls a zone's base model; ``None``: the zone's nodes answer."""
    if not settings.SERVING_URL:
        return None
    if not settings.SERVING_MODELS:
        return zone.base_model_name
    return dict(pair.split("=", 1) for pair in settings.SERVING_MODELS).get(zone.name)


def start_forwarding(question: AskedQuestion, *, model: str) -> None:
    """Have a question answered by the server, beside the request that asked it."""
    task = asyncio.ensure_future(_forward(question, model))
    _running.add(task)
    task.add_done_callback(_running.discard)


async def _forward(question: AskedQuestion, model: str) -> None:
    try:
        await _relay(question, model)
    except ServerRefusal as refusal:
        fault = Fault.USER if refusal.status in (400, 422) else Fault.SYSTEM
        await _end(question, str(refusal), fault)
    # Other servers may answer in other shapes: however that fails, the question ends.
    except Exception as error:
        log.warning("the model server failed", exc_info=error)
        await _end(question, "The model server could not answer. Ask again.", Fault.SYSTEM)


async def _end(question: AskedQuestion, reason: str, fault: Fault) -> None:
    await _store(question, Written("", finish="error", reason=reason, fault=fault))


async def _store(question: AskedQuestion, item: Written) -> bool:
    """Whether more of the answer is wanted."""
    return await run_in_thread(
        lambda: record_forwarded(question_id=question.pk, item=item, now=clock.now())
    )


async def _relay(question: AskedQuestion, model: str) -> None:
    """Ask the server, and store its words a few at a time until the answer ends."""
    async with httpx.AsyncClient(**_build_options()) as server:
        adapter = await run_in_thread(lambda: _find_adapter(question))
        body = await run_in_thread(lambda: _build_body(question, model))
        if adapter is not None:
            body["model"] = adapter.pk
            await _ensure_loaded(server, adapter)
        try:
            await _copy(question, _ask(server, body))
        except ServerRefusal as refusal:
            if adapter is None or refusal.status != 404:
                raise
            # The server was restarted, or needed the room for others.
            _loaded.discard(adapter.pk)
            await _ensure_loaded(server, adapter)
            await _copy(question, _ask(server, body))


async def _copy(question: AskedQuestion, parts: AsyncIterator[Written]) -> None:
    """Store the parts of an answer, a few at a time; stop where its owner has left."""
    queue: asyncio.Queue[Written | None] = asyncio.Queue()
    reading = asyncio.ensure_future(_read_into(queue, parts))
    try:
        is_wanted = True
        while is_wanted and (part := await queue.get()) is not None:
            await asyncio.sleep(GATHER_S)
            gathered = part
            while not gathered.finish and not queue.empty():
                part = queue.get_nowait()
                if part is None:
                    # The exception that ended the reading is raised below.
                    queue.put_nowait(None)
                    break
                gathered = _join(gathered, part)
            is_wanted = await _store(question, gathered)
            if gathered.finish:
                return
        if is_wanted:
            await reading
            raise httpx.RemoteProtocolError("the answer ended without an end")
    finally:
        reading.cancel()
        await asyncio.wait([reading])


async def _read_into(queue: asyncio.Queue[Written | None], parts: AsyncIterator[Written]) -> None:
    try:
        async for part in parts:
            queue.put_nowait(part)
    finally:
        queue.put_nowait(None)


def _join(first: Written, second: Written) -> Written:
    return Written(
        "",
        text=first.text + second.text,
        tokens=first.tokens + second.tokens,
        answer_tokens=second.answer_tokens,
        finish=second.finish,
    )


def _build_body(question: AskedQuestion, model: str) -> dict[str, Any]:
    terms = from_json(QuestionTerms, question.terms)
    return {
        "model": model,
        "prompt": encode_question(question.zone, terms),
        "max_tokens": terms.max_tokens,
        "temperature": terms.temperature,
        "top_p": terms.top_p,
        # vLLM's own member.
        "top_k": terms.top_k or None,
        "frequency_penalty": terms.frequency_penalty,
        "presence_penalty": terms.presence_penalty,
        "logit_bias": {str(one.token): one.bias for one in terms.logit_bias} or None,
        "seed": terms.seed,
        "stop": list(terms.stop) or None,
        "response_format": _build_format(terms.schema),
        "logprobs": terms.top_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _build_format(schema: str) -> dict[str, Any] | None:
    """As vLLM takes a schema for ``/v1/completions``."""
    if not schema:
        return None
    form = {"name": "answer", "schema": json.loads(schema)}
    return {"type": "json_schema", "json_schema": form}


async def _ask(server: httpx.AsyncClient, body: Mapping[str, Any]) -> AsyncIterator[Written]:
    """The parts of the server's answer; the last one says how it ended."""
    finish, count = "", 0
    async with server.stream("POST", "/v1/completions", json=body) as answer:
        if answer.status_code != 200:
            raise await _read_refusal(answer)
        async for line in answer.aiter_lines():
            value = _read_event(line)
            if value is None:
                continue
            for choice in value.get("choices") or []:
                count += 1
                finish = choice.get("finish_reason") or finish
                yield Written(
                    "",
                    text=choice.get("text") or "",
                    tokens=_read_tokens(choice.get("logprobs") or {}),
                    answer_tokens=count,
                )
            if usage := value.get("usage"):
                count = int(usage["completion_tokens"])
    if finish not in ("stop", "length"):
        raise httpx.RemoteProtocolError(f"the answer ended with {finish[:40]!r}")
    yield Written("", answer_tokens=count, finish=finish)


def _read_event(line: str) -> dict[str, Any] | None:
    data = line.removeprefix("data:").strip()
    if not line.startswith("data:") or data == "[DONE]" or len(data) > _LINE_CHARS_MAX:
        return None
    return json.loads(data)


def _read_tokens(logprobs: Mapping[str, Any]) -> tuple[WrittenToken, ...]:
    """Tokens as ``/v1/completions`` gives them."""
    texts, chances = logprobs.get("tokens") or [], logprobs.get("token_logprobs") or []
    likeliest = logprobs.get("top_logprobs") or [{}] * len(texts)
    return tuple(
        WrittenToken(
            text,
            float(chance),
            tuple(LikelyToken(other, float(value)) for other, value in (top or {}).items()),
        )
        for text, chance, top in zip(texts, chances, likeliest, strict=False)
    )


async def _read_refusal(answer: httpx.Response) -> ServerRefusal:
    await answer.aread()
    try:
        value = answer.json()
        reason = (value.get("error") or value).get("message")
    except (ValueError, AttributeError):
        reason = None
    said = str(reason or f"status {answer.status_code}")[:300]
    return ServerRefusal(answer.status_code, f"The model server refused the question: {said}")


@dataclass(frozen=True, slots=True)
class ServedAdapter:
    """An adapter as the server knows it."""

    pk: str
    folder: Path


#: Adapters that the server has, as far as this process knows.
_loaded: set[str] = set()


def _find_adapter(question: AskedQuestion) -> ServedAdapter | None:
    """The adapter that answers, unpacked where the server reads it."""
    artifact = question.artifact
    if artifact is None:
        return None
    folder = Path(settings.SERVING_ADAPTERS) / artifact.pk
    if artifact.served_at is None:
        # Before it is: what is deleted later has to be taken away from there.
        Artifact.everything.filter(pk=artifact.pk).update(served_at=clock.now())
    if not folder.is_dir():
        _unpack(artifact, folder)
    return ServedAdapter(artifact.pk, folder)


def _unpack(artifact: Artifact, folder: Path) -> None:
    """Two at once are one: a folder is there whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent, prefix="."))
    try:
        with artifact.file.open("rb") as file, zipfile.ZipFile(file) as archive:
            for name in _ADAPTER_FILES:
                archive.extract(name, made)
        # The server runs as somebody else.
        made.chmod(0o755)
        made.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


async def _ensure_loaded(server: httpx.AsyncClient, adapter: ServedAdapter) -> None:
    if adapter.pk in _loaded:
        return
    body = {"lora_name": adapter.pk, "lora_path": str(adapter.folder)}
    answer = await server.post("/v1/load_lora_adapter", json=body)
    # Another process may have pushed it.
    if answer.status_code != 200 and _ALREADY not in answer.text:
        log.error("the model server takes no adapter: %s %s", answer.status_code, answer.text[:300])
        raise ServerRefusal(503, "The model server could not load the adapter. Ask again.")
    _loaded.add(adapter.pk)


def unserve_adapter(job_id: str) -> None:
    """Take a job's deleted adapters from the folder that the model server reads, and from it.

    Without a server that is set now there is the folder alone.

    Raises
    ------
    ServerRefusal, httpx.HTTPError
        The server still has it, or the folder is on another machine; this is asked again.
    """
    served = Artifact.everything.filter(job=job_id, served_at__isnull=False)
    root = settings.SERVING_ADAPTERS
    for artifact_id in served.values_list("pk", flat=True):
        if not Path(root).is_dir():
            raise ServerRefusal(503, f"{root}, which adapters were served from, is not here.")
        _unserve(artifact_id, root)


def _unserve(artifact_id: str, root: str) -> None:
    if (folder := Path(root) / artifact_id).is_dir():
        shutil.rmtree(folder)
    if not settings.SERVING_URL:
        return
    with httpx.Client(**_build_options()) as server:
        answer = server.post("/v1/unload_lora_adapter", json={"lora_name": artifact_id})
    # 404: it was restarted, or needed the room for others.
    if answer.status_code not in (200, 404):
        raise ServerRefusal(answer.status_code, "The model server does not give an adapter up.")
    _loaded.discard(artifact_id)


def _build_options() -> dict[str, Any]:
    """Of a client of the server."""
    key = settings.SERVING_API_KEY
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return {"base_url": settings.SERVING_URL, "headers": headers, "timeout": _TIMEOUT}
