"""What both clients send and read: options of the connection, requests and answers of httpx."""

from __future__ import annotations

import mimetypes
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, cast

import httpx

from finetender.calls import Answer, Call
from finetender.errors import UnreachableError, build_error
from finetender.streams import read_openai_error

#: Seconds: a bid may wait for its decision, and a file for being read.
TIMEOUT = httpx.Timeout(60.0, connect=10.0)
CHUNK_BYTES = 256 * 1024
CHAT = "/v1/chat/completions"
VERSION = "0.1.0"
_USER_AGENT = f"finetender-python/{VERSION}"

Messages = str | Sequence[Mapping[str, str]]


def build_chat_body(model: str, messages: Messages, settings: Mapping[str, Any]) -> dict[str, Any]:
    turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    return {**settings, "model": model, "messages": turns, "stream": True}


def build_options(url: str, api_key: str) -> dict[str, Any]:
    return {
        "base_url": url,
        "headers": {"Authorization": f"Bearer {api_key}", "User-Agent": _USER_AGENT},
        "timeout": TIMEOUT,
    }


def build_arguments(call: Call, files: ExitStack) -> dict[str, Any]:
    """A call as httpx takes it; its file stays open until the stack closes."""
    arguments: dict[str, Any] = {
        "method": call.method,
        "url": call.path,
        "params": dict(call.params),
        "headers": call.headers,
    }
    if call.json is not None:
        arguments["json"] = call.json
    if call.file is not None:
        content = files.enter_context(call.file.open("rb"))
        kind = mimetypes.guess_type(call.file.name)[0] or "application/octet-stream"
        arguments["data"] = dict(call.form or {})
        arguments["files"] = {"file": (call.file.name, content, kind)}
    return arguments


def read_answer(response: httpx.Response) -> Answer:
    body: Any = None
    with suppress(ValueError):
        body = response.json()
    known: Mapping[str, Any] = {}
    if isinstance(body, dict):
        known = cast(Mapping[str, Any], body)
    if response.is_error:
        known = read_openai_error(known)
    return Answer(response.status_code, response.headers, known)


def build_answer_error(answer: httpx.Response) -> Exception:
    read = read_answer(answer)
    return build_error(read.status, read.body)


@contextmanager
def saying_unreachable() -> Generator[None]:
    """Within the block a connection that fails is an error of ours, for what is not tried again.

    Raises
    ------
    UnreachableError
    """
    try:
        yield
    except httpx.TransportError as error:
        reason = explain_failure(error)
        raise UnreachableError(f"The market could not be reached: {reason}") from error


def explain_failure(error: Exception) -> str:
    return str(error) or type(error).__name__
