"""The market from Python, with calls that block until there is an answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
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


def _blocking(
    operation: Callable[P, Operation[T]],
) -> Callable[Concatenate[Client, P], T]:
    @wraps(operation)
    def method(self: Client, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.run(operation(*args, **kwargs))

    return method


class Client:
    """Calls that block until there is an answer.

    Without arguments it uses ``FINETENDER_URL`` and ``FINETENDER_API_KEY``, or what ``finetender
    login`` stored. ``on_sent`` is called as the parts of a large upload have arrived.
    """

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
            self._http = httpx.Client(**build_options(self.access, connection))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    call = _blocking(named.call)
    list_zones = _blocking(data.list_zones)
    upload = _blocking(data.upload)
    make_plan = _blocking(data.make_plan)
    confirm_plan = _blocking(data.confirm_plan)
    ensure_dataset = _blocking(data.ensure_dataset)
    get_quote = _blocking(bids.get_quote)
    place_sweep = _blocking(bids.place_sweep)
    get_sweep = _blocking(bids.get_sweep)
    place_bid = _blocking(bids.place_bid)
    get_bid = _blocking(bids.get_bid)
    cancel_bid = _blocking(bids.cancel_bid)
    list_jobs = _blocking(jobs.list_jobs)
    get_job = _blocking(jobs.get_job)
    cancel_job = _blocking(jobs.cancel_job)
    pause_job = _blocking(jobs.pause_job)
    resume_job = _blocking(bids.resume_job)
    list_checkpoints = _blocking(jobs.list_checkpoints)
    list_samples = _blocking(jobs.list_samples)
    get_express_quote = _blocking(express.get_express_quote)
    ask_express = _blocking(express.ask_express)
    await_lookup = _blocking(express.await_lookup)
    list_exports = _blocking(jobs.list_exports)
    export_adapter = _blocking(jobs.export_adapter)
    push_adapter = _blocking(jobs.push_adapter)
    list_nodes = _blocking(machines.list_nodes)
    get_node = _blocking(machines.get_node)
    list_rates = _blocking(machines.list_rates)
    set_ask = _blocking(machines.set_ask)
    change_hours = _blocking(machines.change_hours)
    drain_node = _blocking(machines.drain_node)
    undrain_node = _blocking(machines.undrain_node)
    withdraw_node = _blocking(machines.withdraw_node)
    revoke_node = _blocking(machines.revoke_node)
    reset_node_speed = _blocking(machines.reset_node_speed)
    create_join_token = _blocking(machines.create_join_token)
    list_join_tokens = _blocking(machines.list_join_tokens)
    get_join_token = _blocking(machines.get_join_token)
    revoke_join_token = _blocking(machines.revoke_join_token)
    list_earnings = _blocking(machines.list_earnings)
    list_node_work = _blocking(machines.list_node_work)
    list_earning_days = _blocking(machines.list_earning_days)
    list_payouts = _blocking(machines.list_payouts)
    get_statement = _blocking(machines.get_statement)
    get_payout_account = _blocking(machines.get_payout_account)
    open_payout_account = _blocking(machines.open_payout_account)

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
                answer = read_answer(self._http.request(**build_arguments(call, files)))
            except httpx.HTTPError as error:
                return NoAnswer(explain_failure(error))
        if call.part is not None and self._on_sent is not None:
            self._on_sent(call.part.start + call.part.size, call.part.total)
        return answer

    def watch(self, job_id: str, *, after: int = 0) -> Iterator[JobEvent]:
        """What happens to a job until it ends; a broken connection is made again."""
        path = jobs.build_events_path(job_id)
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
                reason = explain_failure(error)
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
            ``max_tokens``, ``temperature`` and all other settings of ``/v1/chat/completions``.
        """
        name = self.run(jobs.find_model_name(model))
        reader = ChatReader()
        body = build_chat_body(name, messages, settings)
        while True:
            try:
                with saying_unreachable(), self._stream("POST", CHAT, json=body) as answer:
                    for line in answer.iter_lines():
                        if words := reader.read(line):
                            yield words
                return
            except BusyError as error:
                time.sleep(reader.note_refusal(error))

    def download_adapter(
        self, job_id: str, path: str | Path, *, on_bytes: OnBytes | None = None
    ) -> Path:
        """Fetch a finished adapter; a broken download continues where it ended."""
        return self._download(jobs.build_adapter_path(job_id), Path(path), on_bytes)

    def download_export(
        self, job_id: str, export_id: str, path: str | Path, *, on_bytes: OnBytes | None = None
    ) -> Path:
        """Fetch an export that is ready."""
        where = jobs.build_export_path(job_id, export_id)
        return self._download(where, Path(path), on_bytes)

    def download_checkpoint(
        self, job_id: str, checkpoint_id: str, path: str | Path, *, on_bytes: OnBytes | None = None
    ) -> Path:
        """Fetch a stored checkpoint."""
        where = jobs.build_checkpoint_path(job_id, checkpoint_id)
        return self._download(where, Path(path), on_bytes)

    def download_transcript(self, zone: str, path: str | Path) -> Path:
        """Fetch the whole log of a zone's auction."""
        return self.download_file("market_transcript_retrieve", path, zone_name=zone)

    def download_file(self, operation: str, path: str | Path, **values: Any) -> Path:
        """Fetch the file that an operation answers with, such as ``archive_read``."""
        target = Path(path)
        where = named.build_file_path(operation, values)
        with (
            saying_unreachable(),
            self._stream("GET", where) as answer,
            writing_whole(target) as file,
        ):
            for piece in answer.iter_bytes(CHUNK_BYTES):
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
                    for piece in answer.iter_bytes(CHUNK_BYTES):
                        receiver.write(file, piece)
                if receiver.is_whole:
                    return receiver.finish()
                reason = "the download ended early"
            except httpx.TransportError as error:
                reason = explain_failure(error)
            time.sleep(receiver.attempts.note_break(reason))

    @contextmanager
    def _stream(self, method: str, path: str, **options: Any) -> Generator[httpx.Response]:
        with self._http.stream(method, path, **options) as answer:
            if not answer.is_success and answer.status_code != 416:
                answer.read()
                raise build_answer_error(answer)
            yield answer
