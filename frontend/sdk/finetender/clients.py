"""The market from Python: ``Client`` blocks, ``AsyncClient`` awaits; both have the same calls."""

from __future__ import annotations

import asyncio
import mimetypes
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

import httpx

from finetender import operations
from finetender.calls import Answer, Call, NoAnswer, Operation, Pause
from finetender.errors import BusyError, build_error
from finetender.settings import find_access
from finetender.streams import (
    ChatReader,
    FileReceiver,
    JobFollower,
    OnBytes,
    read_openai_error,
)
from finetender.values import Job, JobEvent

P = ParamSpec("P")
T = TypeVar("T")

#: Seconds: a bid may wait for its decision, and a file for being read.
TIMEOUT = httpx.Timeout(60.0, connect=10.0)
_CHUNK_BYTES = 256 * 1024
_USER_AGENT = "finetender-python/0.1.0"

Messages = str | Sequence[Mapping[str, str]]


def _blocking(
    operation: Callable[P, Operation[T]],
) -> Callable[Concatenate[Client, P], T]:
    @wraps(operation)
    def method(self: Client, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.run(operation(*args, **kwargs))

    return method


def _awaiting(
    operation: Callable[P, Operation[T]],
) -> Callable[Concatenate[AsyncClient, P], Awaitable[T]]:
    @wraps(operation)
    async def method(self: AsyncClient, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run(operation(*args, **kwargs))

    return method


class Client:
    """Calls that block until there is an answer.

    Without arguments it uses ``FINETENDER_URL`` and ``FINETENDER_API_KEY``, or what ``finetender
    login`` stored.
    """

    def __init__(self, url: str | None = None, api_key: str | None = None) -> None:
        self.access = find_access(url, api_key)
        self._http = httpx.Client(**_options(self.access.url, self.access.api_key))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    list_zones = _blocking(operations.list_zones)
    upload = _blocking(operations.upload)
    ensure_dataset = _blocking(operations.ensure_dataset)
    get_quote = _blocking(operations.get_quote)
    place_bid = _blocking(operations.place_bid)
    get_bid = _blocking(operations.get_bid)
    cancel_bid = _blocking(operations.cancel_bid)
    list_jobs = _blocking(operations.list_jobs)
    get_job = _blocking(operations.get_job)
    cancel_job = _blocking(operations.cancel_job)
    list_checkpoints = _blocking(operations.list_checkpoints)
    list_samples = _blocking(operations.list_samples)
    get_express_quote = _blocking(operations.get_express_quote)
    ask_express = _blocking(operations.ask_express)
    await_lookup = _blocking(operations.await_lookup)
    list_exports = _blocking(operations.list_exports)
    export_adapter = _blocking(operations.export_adapter)
    push_adapter = _blocking(operations.push_adapter)

    def run(self, operation: Operation[T]) -> T:
        """Carry an operation out."""
        came: Answer | NoAnswer | None = None
        while True:
            try:
                step = operation.send(came)
            except StopIteration as end:
                return end.value
            if isinstance(step, Pause):
                time.sleep(step.seconds)
                came = None
            else:
                came = self._send(step)

    def _send(self, call: Call) -> Answer | NoAnswer:
        with ExitStack() as files:
            try:
                return _read_answer(self._http.request(**_arguments(call, files)))
            except httpx.HTTPError as error:
                return NoAnswer(_explain(error))

    def watch(self, job_id: str, *, after: int = 0) -> Iterator[JobEvent]:
        """What happens to a job until it ends; a broken connection is made again."""
        path = operations.events_path(job_id)
        follower = JobFollower(after=after)
        while not follower.is_done:
            try:
                with self._stream("GET", path, headers=follower.headers) as answer:
                    follower.connect()
                    for line in answer.iter_lines():
                        event = follower.read(line)
                        if event is not None:
                            yield event
                reason = "the stream ended"
            except (httpx.TransportError, BusyError) as error:
                reason = _explain(error)
            if not follower.is_done:
                time.sleep(follower.attempts.note_break(reason))

    def wait(self, job_id: str) -> Job:
        """The job once it has ended."""
        for _ in self.watch(job_id):
            pass
        return self.get_job(job_id)

    def chat(self, model: str, messages: Messages, **settings: Any) -> Iterator[str]:
        """The words of a model's answer, as they are written.

        Parameters
        ----------
        model
            A zone's name, a tuned model (``ft:…``), or the id of a job.
        settings
            ``max_tokens``, ``temperature`` and whatever else ``/v1/chat/completions`` takes.
        """
        name = self.run(operations.find_model_name(model))
        reader = ChatReader()
        body = _chat_body(name, messages, settings)
        with self._stream("POST", "/v1/chat/completions", json=body) as answer:
            for line in answer.iter_lines():
                if words := reader.read(line):
                    yield words

    def download_adapter(
        self, job_id: str, path: str | Path, *, on_bytes: OnBytes | None = None
    ) -> Path:
        """Fetch a finished adapter; a broken download continues where it ended."""
        return self._download(operations.adapter_path(job_id), Path(path), on_bytes)

    def download_export(
        self, job_id: str, export_id: str, path: str | Path, *, on_bytes: OnBytes | None = None
    ) -> Path:
        """Fetch an export that is ready."""
        where = operations.export_path(job_id, export_id)
        return self._download(where, Path(path), on_bytes)

    def download_checkpoint(
        self, job_id: str, checkpoint_id: str, path: str | Path, *, on_bytes: OnBytes | None = None
    ) -> Path:
        """Fetch a stored checkpoint."""
        where = operations.checkpoint_path(job_id, checkpoint_id)
        return self._download(where, Path(path), on_bytes)

    def download_transcript(self, zone: str, path: str | Path) -> Path:
        """Fetch the whole log of a zone's auction."""
        target = Path(path)
        where = f"/api/market/{operations.check_id(zone)}/transcript"
        with self._stream("GET", where) as answer, target.open("wb") as file:
            for piece in answer.iter_bytes(_CHUNK_BYTES):
                file.write(piece)
        return target

    def _download(self, path: str, target: Path, on_bytes: OnBytes | None) -> Path:
        receiver = FileReceiver(target, on_bytes)
        while True:
            try:
                with (
                    self._stream("GET", path, headers=receiver.headers) as answer,
                    receiver.open(answer.status_code, answer.headers) as file,
                ):
                    for piece in answer.iter_bytes(_CHUNK_BYTES):
                        receiver.write(file, piece)
                if receiver.is_whole:
                    return receiver.finish()
                reason = "the download ended early"
            except httpx.TransportError as error:
                reason = _explain(error)
            time.sleep(receiver.attempts.note_break(reason))

    @contextmanager
    def _stream(self, method: str, path: str, **options: Any) -> Generator[httpx.Response]:
        with self._http.stream(method, path, **options) as answer:
            if answer.is_error and answer.status_code != 416:
                answer.read()
                raise _error_of(answer)
            yield answer


class AsyncClient:
    """The same calls, awaited."""

    def __init__(self, url: str | None = None, api_key: str | None = None) -> None:
        self.access = find_access(url, api_key)
        self._http = httpx.AsyncClient(**_options(self.access.url, self.access.api_key))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    list_zones = _awaiting(operations.list_zones)
    upload = _awaiting(operations.upload)
    ensure_dataset = _awaiting(operations.ensure_dataset)
    get_quote = _awaiting(operations.get_quote)
    place_bid = _awaiting(operations.place_bid)
    get_bid = _awaiting(operations.get_bid)
    cancel_bid = _awaiting(operations.cancel_bid)
    list_jobs = _awaiting(operations.list_jobs)
    get_job = _awaiting(operations.get_job)
    cancel_job = _awaiting(operations.cancel_job)
    list_checkpoints = _awaiting(operations.list_checkpoints)
    list_samples = _awaiting(operations.list_samples)
    get_express_quote = _awaiting(operations.get_express_quote)
    ask_express = _awaiting(operations.ask_express)
    await_lookup = _awaiting(operations.await_lookup)
    list_exports = _awaiting(operations.list_exports)
    export_adapter = _awaiting(operations.export_adapter)
    push_adapter = _awaiting(operations.push_adapter)

    async def run(self, operation: Operation[T]) -> T:
        """Carry an operation out."""
        came: Answer | NoAnswer | None = None
        while True:
            try:
                step = operation.send(came)
            except StopIteration as end:
                return end.value
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
                came = None
            else:
                came = await self._send(step)

    async def _send(self, call: Call) -> Answer | NoAnswer:
        with ExitStack() as files:
            try:
                return _read_answer(await self._http.request(**_arguments(call, files)))
            except httpx.HTTPError as error:
                return NoAnswer(_explain(error))

    async def watch(self, job_id: str, *, after: int = 0) -> AsyncIterator[JobEvent]:
        """What happens to a job until it ends; a broken connection is made again."""
        path = operations.events_path(job_id)
        follower = JobFollower(after=after)
        while not follower.is_done:
            try:
                async with self._stream("GET", path, headers=follower.headers) as answer:
                    follower.connect()
                    async for line in answer.aiter_lines():
                        event = follower.read(line)
                        if event is not None:
                            yield event
                reason = "the stream ended"
            except (httpx.TransportError, BusyError) as error:
                reason = _explain(error)
            if not follower.is_done:
                await asyncio.sleep(follower.attempts.note_break(reason))

    async def wait(self, job_id: str) -> Job:
        """The job once it has ended."""
        async for _ in self.watch(job_id):
            pass
        return await self.get_job(job_id)

    async def chat(self, model: str, messages: Messages, **settings: Any) -> AsyncIterator[str]:
        """The words of a model's answer, as they are written; see ``Client.chat``."""
        name = await self.run(operations.find_model_name(model))
        reader = ChatReader()
        body = _chat_body(name, messages, settings)
        async with self._stream("POST", "/v1/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if words := reader.read(line):
                    yield words

    async def download_adapter(
        self, job_id: str, path: str | Path, *, on_bytes: OnBytes | None = None
    ) -> Path:
        """Fetch a finished adapter; a broken download continues where it ended."""
        return await self._download(operations.adapter_path(job_id), Path(path), on_bytes)

    async def download_export(
        self, job_id: str, export_id: str, path: str | Path, *, on_bytes: OnBytes | None = None
    ) -> Path:
        """Fetch an export that is ready."""
        where = operations.export_path(job_id, export_id)
        return await self._download(where, Path(path), on_bytes)

    async def download_checkpoint(
        self, job_id: str, checkpoint_id: str, path: str | Path, *, on_bytes: OnBytes | None = None
    ) -> Path:
        """Fetch a stored checkpoint."""
        where = operations.checkpoint_path(job_id, checkpoint_id)
        return await self._download(where, Path(path), on_bytes)

    async def _download(self, path: str, target: Path, on_bytes: OnBytes | None) -> Path:
        receiver = FileReceiver(target, on_bytes)
        while True:
            try:
                async with self._stream("GET", path, headers=receiver.headers) as answer:
                    with receiver.open(answer.status_code, answer.headers) as file:
                        async for piece in answer.aiter_bytes(_CHUNK_BYTES):
                            receiver.write(file, piece)
                if receiver.is_whole:
                    return receiver.finish()
                reason = "the download ended early"
            except httpx.TransportError as error:
                reason = _explain(error)
            await asyncio.sleep(receiver.attempts.note_break(reason))

    @asynccontextmanager
    async def _stream(
        self, method: str, path: str, **options: Any
    ) -> AsyncGenerator[httpx.Response]:
        async with self._http.stream(method, path, **options) as answer:
            if answer.is_error and answer.status_code != 416:
                await answer.aread()
                raise _error_of(answer)
            yield answer


def _chat_body(model: str, messages: Messages, settings: Mapping[str, Any]) -> dict[str, Any]:
    turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    return {**settings, "model": model, "messages": turns, "stream": True}


def _options(url: str, api_key: str) -> dict[str, Any]:
    return {
        "base_url": url,
        "headers": {"Authorization": f"Bearer {api_key}", "User-Agent": _USER_AGENT},
        "timeout": TIMEOUT,
    }


def _arguments(call: Call, files: ExitStack) -> dict[str, Any]:
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


def _read_answer(response: httpx.Response) -> Answer:
    body: Any = None
    with suppress(ValueError):
        body = response.json()
    known: Mapping[str, Any] = {}
    if isinstance(body, dict):
        known = cast(Mapping[str, Any], body)
    if response.is_error:
        known = read_openai_error(known)
    return Answer(response.status_code, response.headers, known)


def _error_of(answer: httpx.Response) -> Exception:
    read = _read_answer(answer)
    return build_error(read.status, read.body)


def _explain(error: Exception) -> str:
    return str(error) or type(error).__name__
