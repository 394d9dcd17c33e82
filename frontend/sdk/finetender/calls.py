"""Requests and retries without any I/O: the clients carry them out, blocking or awaiting.

An operation is a generator. It yields what is to be done, a ``Call`` or a ``Pause``, is sent what
came of it, and returns its value.
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from finetender.errors import UnreachableError, UsageError, build_error

T = TypeVar("T")

#: How often a call is tried, and the longest wait between two tries that a market may ask for.
TRIES = 4
WAIT_MAX_S = 60.0
_FIRST_WAIT_S = 0.4
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})


def stamp_file(found: os.stat_result) -> tuple[int, ...]:
    """What of a file changes as it is written, or as another one takes its place."""
    return found.st_size, found.st_mtime_ns, found.st_ino


@dataclass(frozen=True, slots=True)
class FilePart:
    """Some bytes of a file, sent by themselves."""

    path: Path
    start: int
    size: int
    #: Of the whole file.
    total: int
    #: How the file was as it was hashed; a part of another one would go under that hash.
    stamp: tuple[int, ...] | None = None

    def read(self) -> bytes:
        """The bytes.

        Raises
        ------
        UsageError
            The file is not what it was.
        """
        with self.path.open("rb") as file:
            file.seek(self.start)
            content = file.read(self.size)
            is_same = self.stamp in (None, stamp_file(os.fstat(file.fileno())))
        if len(content) != self.size or not is_same:
            raise UsageError(f"{self.path} was changed while it was sent. Send it again.")
        return content


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request."""

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict[str, str])
    json: Any = None
    #: Fields of a form, and the file that goes along.
    form: Mapping[str, str] | None = None
    file: Path | None = None
    #: Member of the form that the file, or a part of it, is.
    file_member: str = "file"
    part: FilePart | None = None
    #: The market does the same request under the same key once.
    idempotency_key: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        key = self.idempotency_key
        return {} if key is None else {"Idempotency-Key": key}


@dataclass(frozen=True, slots=True)
class Pause:
    """A wait before the next step of an operation."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a call."""

    status: int
    headers: Mapping[str, str]
    #: Empty where it is no JSON object.
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The market was not reached, or the connection broke."""

    reason: str


Operation = Generator[Call | Pause, Answer | NoAnswer | None, T]


def draw_key() -> str:
    """A key for a request that must be done once, however often it is sent."""
    return str(uuid.uuid4())


def send(call: Call) -> Operation[Answer]:
    """Send a call until there is an answer that another try would not change.

    Every call of this package may be sent again: it reads, or has a key, or does nothing twice.

    Raises
    ------
    MarketError, UnreachableError
    """
    answer = yield call
    for attempt in range(1, TRIES):
        if not _may_pass(answer):
            break
        yield Pause(_choose_wait_s(answer, attempt))
        answer = yield call
    return _read(answer)


def send_once(call: Call) -> Operation[Answer]:
    """Send a call that must not be sent twice.

    Raises
    ------
    MarketError, UnreachableError
    """
    return _read((yield call))


def _read(answer: Answer | NoAnswer | None) -> Answer:
    if isinstance(answer, Answer):
        if answer.status < 400:
            return answer
        raise build_error(answer.status, answer.body)
    reason = answer.reason if isinstance(answer, NoAnswer) else "no answer"
    raise UnreachableError(f"The market could not be reached: {reason}")


def _may_pass(answer: Answer | NoAnswer | None) -> bool:
    if not isinstance(answer, Answer):
        return True
    waits = answer.status == 409 and bool(answer.body.get("retry"))
    return waits or answer.status in _RETRIED


def _choose_wait_s(answer: Answer | NoAnswer | None, attempt: int) -> float:
    """What the market asks for, else a wait that doubles, at random so that clients spread."""
    asked = answer.headers.get("retry-after", "") if isinstance(answer, Answer) else ""
    if asked.isascii() and asked.isdigit():
        return min(float(asked), WAIT_MAX_S)
    return _FIRST_WAIT_S * 2 ** (attempt - 1) * random.uniform(0.5, 1.5)  # noqa: S311
