"""The market from Python, with the calls of ``Client`` to be awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import httpx

from finetender.calls import Answer, Call, NoAnswer, Operation, Pause
from finetender.errors import BusyError
from finetender.exchange import (
    CHAT,
    CHUNK_BYTES,
    Connection,
    Messages,
    build_answer_error,
    build_arguments,
    build_chat_body,
    build_options,
    explain_failure,
    read_answer,
    refusing_options,
    saying_unreachable,
)
from finetender.operations import bids, data, express, jobs, machines, named
from finetender.settings import find_access
from finetender.streams import ChatReader, FileReceiver, JobFollower, OnBytes, writing_whole
from finetender.values import Job, JobEvent

P = ParamSpec("P")
T = TypeVar("T")


def _awaiting(
    operation: Callable[P, Operation[T]],
) -> Callable[Concatenate[AsyncClient, P], Awaitable[T]]:
    @wraps(operation)
    async def method(self: AsyncClient, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run(operation(*args, **kwargs))

    return method


class AsyncClient:
    """The calls of ``Client``, awaited."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        profile: str | None = None,
        connection: Connection | None = None,
        on_sent: OnBytes | None = None,
    ) -> None:
        connection = connection or Connection()
        self.access = find_access(url, api_key, profile=profile, ca=connection.ca)
        self._on_sent = on_sent
        with refusing_options():
            self._http = httpx.AsyncClient(**build_options(self.access, connection))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    call = _awaiting(named.call)
    list_zones = _awaiting(data.list_zones)
    upload = _awaiting(data.upload)
    make_plan = _awaiting(data.make_plan)
    confirm_plan = _awaiting(data.confirm_plan)
    ensure_dataset = _awaiting(data.ensure_dataset)
    get_quote = _awaiting(bids.get_quote)
    place_sweep = _awaiting(bids.place_sweep)
    get_sweep = _awaiting(bids.get_sweep)
    place_bid = _awaiting(bids.place_bid)
    get_bid = _awaiting(bids.get_bid)
    cancel_bid = _awaiting(bids.cancel_bid)
    list_jobs = _awaiting(jobs.list_jobs)
    get_job = _awaiting(jobs.get_job)
    cancel_job = _awaiting(jobs.cancel_job)
    pause_job = _awaiting(jobs.pause_job)
    resume_job = _awaiting(bids.resume_job)
    list_checkpoints = _awaiting(jobs.list_checkpoints)
    list_samples = _awaiting(jobs.list_samples)
    get_express_quote = _awaiting(express.get_express_quote)
    ask_express = _awaiting(express.ask_express)
    await_lookup = _awaiting(express.await_lookup)
    list_exports = _awaiting(jobs.list_exports)
    export_adapter = _awaiting(jobs.export_adapter)
    push_adapter = _awaiting(jobs.push_adapter)
    list_nodes = _awaiting(machines.list_nodes)
    get_node = _awaiting(machines.get_node)
    list_rates = _awaiting(machines.list_rates)
    set_ask = _awaiting(machines.set_ask)
    change_hours = _awaiting(machines.change_hours)
    drain_node = _awaiting(machines.drain_node)
    undrain_node = _awaiting(machines.undrain_node)
    withdraw_node = _awaiting(machines.withdraw_node)
    revoke_node = _awaiting(machines.revoke_node)
    reset_node_speed = _awaiting(machines.reset_node_speed)
    create_join_token = _awaiting(machines.create_join_token)
    list_join_tokens = _awaiting(machines.list_join_tokens)
    get_join_token = _awaiting(machines.get_join_token)
    revoke_join_token = _awaiting(machines.revoke_join_token)
    list_earnings = _awaiting(machines.list_earnings)
    list_node_work = _awaiting(machines.list_node_work)
    list_earning_days = _awaiting(machines.list_earning_days)
    list_payouts = _awaiting(machines.list_payouts)
    get_statement = _awaiting(machines.get_statement)
    get_payout_account = _awaiting(machines.get_payout_account)
    open_payout_account = _awaiting(machines.open_payout_account)

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
                answer = read_answer(await self._http.request(**build_arguments(call, files)))
            except httpx.HTTPError as error:
                return NoAnswer(explain_failure(error))
        if call.part is not None and self._on_sent is not None:
            self._on_sent(call.part.start + call.part.size, call.part.total)
        return answer

    async def watch(self, job_id: str, *, after: int = 0) -> AsyncIterator[JobEvent]:
        """What happens to a job until it ends; a broken connection is made again."""
        path = jobs.build_events_path(job_id)
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
                reason = explain_failure(error)
            if not follower.is_done:
                await asyncio.sleep(follower.attempts.note_break(reason))

    async def wait(self, job_id: str) -> Job:
        """The job once it has ended."""
        async for _ in self.watch(job_id):
            pass
        return await self.get_job(job_id)

    async def chat(self, model: str, messages: Messages, **settings: Any) -> AsyncIterator[str]:
        """The words of a model's answer, as they are written; see ``Client.chat``."""
        name = await self.run(jobs.find_model_name(model))
        reader = ChatReader()
        body = build_chat_body(name, messages, settings)
        while True:
            try:
                with saying_unreachable():
                    async with self._stream("POST", CHAT, json=body) as answer:
                        async for line in answer.aiter_lines():
                            if words := reader.read(line):
                                yield words
                return
            except BusyError as error:
                await asyncio.sleep(reader.note_refusal(error))

    async def download_adapter(
        self, job_id: str, path: str | Path, *, on_bytes: OnBytes | None = None
    ) -> Path:
        """Fetch a finished adapter; a broken download continues where it ended."""
        return await self._download(jobs.build_adapter_path(job_id), Path(path), on_bytes)

    async def download_export(
        self, job_id: str, export_id: str, path: str | Path, *, on_bytes: OnBytes | None = None
    ) -> Path:
        """Fetch an export that is ready."""
        where = jobs.build_export_path(job_id, export_id)
        return await self._download(where, Path(path), on_bytes)

    async def download_checkpoint(
        self, job_id: str, checkpoint_id: str, path: str | Path, *, on_bytes: OnBytes | None = None
    ) -> Path:
        """Fetch a stored checkpoint."""
        where = jobs.build_checkpoint_path(job_id, checkpoint_id)
        return await self._download(where, Path(path), on_bytes)

    async def download_transcript(self, zone: str, path: str | Path) -> Path:
        """Fetch the whole log of a zone's auction."""
        return await self.download_file("market_transcript_retrieve", path, zone_name=zone)

    async def download_file(self, operation: str, path: str | Path, **values: Any) -> Path:
        """Fetch the file that an operation answers with, such as ``archive_read``."""
        target = Path(path)
        where = named.build_file_path(operation, values)
        with saying_unreachable():
            async with self._stream("GET", where) as answer:
                with writing_whole(target) as file:
                    async for piece in answer.aiter_bytes(CHUNK_BYTES):
                        file.write(piece)
        return target

    async def _download(self, path: str, target: Path, on_bytes: OnBytes | None) -> Path:
        receiver = FileReceiver(target, on_bytes)
        while True:
            try:
                async with self._stream("GET", path, headers=receiver.headers) as answer:
                    with receiver.open(answer.status_code, answer.headers) as file:
                        async for piece in answer.aiter_bytes(CHUNK_BYTES):
                            receiver.write(file, piece)
                if receiver.is_whole:
                    return receiver.finish()
                reason = "the download ended early"
            except httpx.TransportError as error:
                reason = explain_failure(error)
            await asyncio.sleep(receiver.attempts.note_break(reason))

    @asynccontextmanager
    async def _stream(
        self, method: str, path: str, **options: Any
    ) -> AsyncGenerator[httpx.Response]:
        async with self._http.stream(method, path, **options) as answer:
            if not answer.is_success and answer.status_code != 416:
                await answer.aread()
                raise build_answer_error(answer)
            yield answer
