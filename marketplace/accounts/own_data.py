"""What an organisation or a person has here, as one archive that is made while it is sent."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import QuerySet

from marketplace.accounts.erasure import list_kept_data
from marketplace.accounts.models import Subject
from workers.protocol.wire import to_json

#: Rows, and bytes of a file, that are read at a time.
_ROWS = 500
_CHUNK_BYTES = 256 * 1024


class _Encoder(DjangoJSONEncoder):
    """Also writes the values of columns such as a job's terms."""

    def default(self, o: Any) -> Any:
        try:
            return super().default(o)
        except TypeError:
            return to_json(o)


def write_rows(rows: QuerySet, *columns: str) -> Callable[[], Iterator[bytes]]:
    """Write some columns of rows as JSON lines, in the order of their keys."""

    def write() -> Iterator[bytes]:
        page = rows.order_by("pk")
        found = list(page.values("pk", *columns)[:_ROWS])
        while found:
            for row in found:
                yield json.dumps(row, cls=_Encoder).encode() + b"\n"
            # No cursor stays open while the archive is sent.
            found = list(page.filter(pk__gt=found[-1]["pk"]).values("pk", *columns)[:_ROWS])

    return write


def read_file(open_file: Callable[[], IO[bytes]]) -> Callable[[], Iterator[bytes]]:
    """Read a stored file in parts."""

    def read() -> Iterator[bytes]:
        with open_file() as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk

    return read


def build_archive(*, subject: Subject, subject_id: str) -> Iterator[bytes]:
    """Write all that apps list as the subject's own as a ZIP file, a part at a time.

    A file that is deleted meanwhile is left out.
    """
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", compression=zipfile.ZIP_DEFLATED) as archive:
        for path, read in _list_own(subject, subject_id):
            try:
                chunks = iter(read())
                first = next(chunks, b"")
            except FileNotFoundError:
                continue
            with archive.open(path, "w", force_zip64=True) as entry:
                entry.write(first)
                for chunk in chunks:
                    entry.write(chunk)
                    yield sink.take()
            yield sink.take()
    yield sink.take()


def _list_own(
    subject: Subject, subject_id: str
) -> Iterable[tuple[str, Callable[[], Iterable[bytes]]]]:
    for kept in list_kept_data(subject):
        yield from kept.list_own(subject_id)


class _Sink:
    """Where the archive is written to, which holds only what was not sent yet."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Nothing is buffered elsewhere."""

    def close(self) -> None:
        """There is nothing to close."""

    def take(self) -> bytes:
        taken = b"".join(self._parts)
        self._parts.clear()
        return taken
