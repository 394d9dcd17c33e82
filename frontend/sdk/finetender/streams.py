"""Answers that come in pieces, without any I/O: events of a job, words of a model, a file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any, cast

from finetender.calls import TRIES
from finetender.errors import BusyError, FinetenderError, UnreachableError, build_error
from finetender.values import JobEvent

_FIRST_WAIT_S, _WAIT_MAX_S = 0.5, 15.0


class Attempts:
    """How often in a row a stream broke before it gave anything new."""

    def __init__(self) -> None:
        self._failures = 0

    def note_progress(self) -> None:
        self._failures = 0

    def note_break(self, reason: str) -> float:
        """Seconds to wait before the next try.

        Raises
        ------
        UnreachableError
        """
        self._failures += 1
        if self._failures > TRIES:
            raise UnreachableError(f"The market could not be reached: {reason}")
        return min(_FIRST_WAIT_S * 2 ** (self._failures - 1), _WAIT_MAX_S)


class EventLines:
    """Server-sent events, a line at a time."""

    def __init__(self) -> None:
        self.last_id = ""
        self._kind, self._data = "", list[str]()

    def read(self, line: str) -> tuple[str, str] | None:
        """Kind and data of the event that the line ends, if it ends one."""
        if not line:
            kind, data = self._kind or "message", "\n".join(self._data)
            self._kind, self._data = "", []
            return (kind, data) if data else None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._kind = value
        elif name == "id":
            self.last_id = value
        return None


class JobFollower:
    """What is known of a job's stream of events, across connections."""

    def __init__(self, *, after: int) -> None:
        self.attempts = Attempts()
        self.is_done = False
        self._after = after
        self._lines = EventLines()

    @property
    def headers(self) -> dict[str, str]:
        return {"Accept": "text/event-stream", "Last-Event-ID": str(self._after)}

    def connect(self) -> None:
        """Begin a connection: half an event of the one before is dropped."""
        self._lines = EventLines()

    def read(self, line: str) -> JobEvent | None:
        """The event that a line ends, unless it was given already."""
        parsed = self._lines.read(line)
        if parsed is None:
            return None
        self.attempts.note_progress()
        kind, data = parsed
        if kind == "end":
            self.is_done = True
            return None
        event = JobEvent.read(json.loads(data))
        if event.seq <= self._after:
            return None
        self._after = event.seq
        return event


class ChatReader:
    """Words of a streamed answer."""

    def __init__(self) -> None:
        self.is_done = False
        self._has_begun = False
        self._refusals = 0
        self._lines = EventLines()

    def note_refusal(self, error: BusyError) -> float:
        """Seconds to wait before the question is asked again.

        Raises
        ------
        BusyError
            It was asked several times, or some of the answer is there.
        """
        self._refusals += 1
        if self._has_begun or self._refusals >= TRIES:
            raise error
        return min(_FIRST_WAIT_S * 2 ** (self._refusals - 1), _WAIT_MAX_S)

    def read(self, line: str) -> str:
        """The words that a line brings; mostly none.

        Raises
        ------
        MarketError
            The answer ended early; the words before were given.
        """
        self._has_begun = True
        parsed = self._lines.read(line)
        if parsed is None:
            return ""
        data = parsed[1]
        if data == "[DONE]":
            self.is_done = True
            return ""
        value: Mapping[str, Any] = json.loads(data)
        if "error" in value:
            raise build_error(503, read_openai_error(value))
        choices: list[dict[str, Any]] = value.get("choices") or [{}]
        delta: Mapping[str, Any] = choices[0].get("delta") or {}
        return str(delta.get("content") or "")


def read_openai_error(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """An error of ``/v1`` in the form of the market's own, which stays as it is."""
    if not isinstance(value.get("error"), dict):
        return value
    error = cast(Mapping[str, Any], value["error"])
    return {**error, "detail": error.get("message")}


@contextmanager
def writing_whole(target: Path) -> Generator[IO[bytes]]:
    """A file that takes its name once all of it is there; else what had the name keeps it."""
    part = target.with_name(f"{target.name}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


#: Called with the bytes that are there and those that will be.
OnBytes = Callable[[int, int], None]


class FileReceiver:
    """A download into ``<name>.part``, continued where an earlier one broke, then checked."""

    def __init__(self, target: Path, on_bytes: OnBytes | None) -> None:
        self.attempts = Attempts()
        self._target, self._on_bytes = target, on_bytes
        self._part = target.with_name(f"{target.name}.part")
        self._etag = ""
        #: Bytes of all of it; ``None``: the market does not say. -1: what is there is none of it.
        self._size: int | None = -1
        self._furthest = 0

    @property
    def _received(self) -> int:
        return self._part.stat().st_size if self._part.exists() else 0

    @property
    def headers(self) -> dict[str, str]:
        have = self._received
        return {"Range": f"bytes={have}-"} if have else {}

    @property
    def is_whole(self) -> bool:
        """Whether an answer that ended as it should was the last one; its hash says if it was."""
        return self._size is None or self._received >= self._size >= 0

    def open(self, status: int, headers: Mapping[str, str]) -> IO[bytes]:
        """The file to write to; from its beginning where the market sends all of it."""
        self._etag = headers.get("etag", "").strip('"')
        whole = headers.get("content-range", "").rpartition("/")[2]
        self._part.parent.mkdir(parents=True, exist_ok=True)
        if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            # What is there is no beginning of the file: the next try fetches all of it.
            self._part.unlink(missing_ok=True)
            self._size = -1
            return Path(os.devnull).open("wb")
        size = whole or headers.get("content-length", "")
        is_known = size.isascii() and size.isdigit()
        # What is packed on its way has another length there than here.
        self._size = int(size) if is_known and "content-encoding" not in headers else None
        return self._part.open("ab" if status == HTTPStatus.PARTIAL_CONTENT else "wb")

    def write(self, file: IO[bytes], piece: bytes) -> None:
        file.write(piece)
        if file.tell() > self._furthest:
            # A market that begins anew each time comes no further.
            self._furthest = file.tell()
            self.attempts.note_progress()
        if self._on_bytes is not None:
            self._on_bytes(file.tell(), self._size or file.tell())

    def finish(self) -> Path:
        """Check what came and give it its name.

        Raises
        ------
        FinetenderError
            It is not what the market stored.
        """
        with self._part.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        if found != self._etag:
            self._part.unlink()
            raise FinetenderError(f"{self._target.name} arrived damaged. Download it again.")
        return self._part.replace(self._target)
