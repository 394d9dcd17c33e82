"""What both clients send and read: options of the connection, requests and answers of httpx."""

from __future__ import annotations

import mimetypes
import ssl
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

import httpx

from finetender.calls import Answer, Call
from finetender.errors import UnreachableError, UsageError, build_error
from finetender.settings import CA_VARIABLE, Access
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


@dataclass(frozen=True, slots=True)
class Connection:
    """How the market is reached; what is left out, the environment says.

    That is ``HTTPS_PROXY``, ``HTTP_PROXY``, ``ALL_PROXY`` and ``NO_PROXY``; ``SSL_CERT_FILE`` and
    ``SSL_CERT_DIR`` in place of the usual certificates; ``FINETENDER_CA`` beside them.
    """

    #: A file of certificates that sign the market's own.
    ca: str | None = None
    #: Address of a proxy.
    proxy: str | None = None
    #: Seconds until an answer; one minute by default.
    timeout_s: float | None = None
    #: Of httpx, in place of its own: for tests, or what goes out by other ways.
    transport: Any = None


def build_options(access: Access, connection: Connection) -> dict[str, Any]:
    """Options of an httpx client.

    Raises
    ------
    UsageError
        There is no such file of certificates, or it has none.
    """
    seconds = connection.timeout_s
    options: dict[str, Any] = {
        "base_url": access.url,
        "headers": {"Authorization": f"Bearer {access.api_key}", "User-Agent": _USER_AGENT},
        "timeout": TIMEOUT if seconds is None else httpx.Timeout(seconds, connect=10.0),
    }
    if connection.transport is not None:
        return options | {"transport": connection.transport}
    if access.ca is not None:
        options["verify"] = _trust(access.ca)
    return options | {"proxy": connection.proxy}


def _trust(ca: str) -> ssl.SSLContext:
    context = httpx.create_ssl_context()
    try:
        context.load_verify_locations(ca)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"{ca} is no file of certificates: {reason}.") from None
    return context


@contextmanager
def refusing_options() -> Generator[None]:
    """Within the block what httpx does not take of proxies and certificates is wrong use.

    Raises
    ------
    UsageError
    """
    try:
        yield
    except (ValueError, httpx.InvalidURL, OSError, ImportError) as error:
        raise UsageError(f"A proxy or a file of certificates cannot be used: {error}.") from None


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
    if call.part is not None:
        arguments["files"] = {call.file_member: (call.part.path.name, call.part.read())}
    elif call.file is not None:
        content = files.enter_context(call.file.open("rb"))
        kind = mimetypes.guess_type(call.file.name)[0] or "application/octet-stream"
        arguments["data"] = dict(call.form or {})
        arguments["files"] = {call.file_member: (call.file.name, content, kind)}
    return arguments


def read_answer(response: httpx.Response) -> Answer:
    """An answer whose body was read.

    Raises
    ------
    UnreachableError
        Something else than a market answers: nothing was done, whatever its status says.
    """
    body: Any = None
    with suppress(ValueError):
        body = response.json()
    known: Mapping[str, Any] = {}
    if isinstance(body, dict):
        known = cast(Mapping[str, Any], body)
    if response.is_error:
        known = read_openai_error(known)
    elif not response.is_success:
        # A key is for the market that it was given with: it is sent nowhere else.
        where = response.headers.get("location", "nowhere")
        raise UnreachableError(
            f"{response.url.copy_with(path='/', query=None)} sends elsewhere, to {where}. If that "
            "is the market, give its address."
        )
    elif response.content and not isinstance(body, dict):
        raise UnreachableError(
            f"What answers at {response.url.copy_with(path='/', query=None)} is no market: its "
            f"answer is no JSON object but {response.headers.get('content-type', 'of no type')}."
        )
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
    said = str(error) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in said:
        return f"{said}. Name the file of its authority's certificates: --ca, or {CA_VARIABLE}."
    return said
