"""Long answers leave a chunk at a time, and are given back when their reader goes."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from asgiref.sync import async_to_sync

from marketplace.common.downloads import (
    _CHUNK_BYTES,
    _LINES,
    FileDownload,
    LinesDownload,
    RangeNotSatisfiable,
    parse_byte_range,
)
from tests.pages import read_download

pytestmark = pytest.mark.django_db


class CountedFile(io.BytesIO):
    """Knows how much of it was read."""

    taken = 0

    def read(self, size: int | None = -1) -> bytes:
        chunk = super().read(size)
        self.taken += len(chunk)
        return chunk


def first_of(response) -> bytes:
    async def first() -> bytes:
        async for chunk in response.streaming_content:
            return chunk
        return b""

    return async_to_sync(first)()


def test_a_file_is_read_no_further_than_it_is_sent():
    file = CountedFile(bytes(10 * _CHUNK_BYTES))
    response = FileDownload(file, size=10 * _CHUNK_BYTES, sha256="a")
    assert file.taken == 0
    assert len(first_of(response)) == _CHUNK_BYTES
    assert file.taken == _CHUNK_BYTES


def test_a_file_is_closed_when_its_reader_leaves_before_the_end():
    file = CountedFile(bytes(10 * _CHUNK_BYTES))
    response = FileDownload(file, size=10 * _CHUNK_BYTES, sha256="a")
    first_of(response)
    response.close()
    assert file.closed


def test_a_part_of_a_file_is_sent_as_asked():
    content = bytes(range(256)) * 4096
    file = CountedFile(content)
    response = FileDownload(
        file, size=len(content), sha256="abc", range_header="bytes=1000-700999", name="a.zip"
    )
    assert response.status_code == 206
    assert response["Content-Range"] == f"bytes 1000-700999/{len(content)}"
    assert response["Content-Length"] == "700000"
    assert response["ETag"] == '"abc"'
    assert response["Content-Disposition"] == 'attachment; filename="a.zip"'
    assert read_download(response) == content[1000:701_000]
    assert file.taken == 700_000


def test_a_range_beyond_the_file_is_refused_and_the_file_closed():
    file = CountedFile(b"abc")
    with pytest.raises(RangeNotSatisfiable):
        FileDownload(file, size=3, sha256="a", range_header="bytes=3-")
    assert file.closed


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, range(10)),
        ("bytes=2-", range(2, 10)),
        ("bytes=2-3", range(2, 4)),
        ("bytes=0-99", range(10)),
        ("bytes=-3", range(10)),
        ("items=1-2", range(10)),
    ],
)
def test_one_range_is_understood_and_others_mean_the_whole(header, expected):
    assert parse_byte_range(header, size=10) == expected


def test_lines_are_made_no_further_than_they_are_sent():
    made: list[int] = []

    def lines() -> Iterator[str]:
        for number in range(10 * _LINES):
            made.append(number)
            yield f"line {number}"

    response = LinesDownload(lines(), content_type="text/plain", name="a.txt")
    assert made == []
    first = first_of(response).splitlines()
    assert (first[0], len(first), len(made)) == (b"line 0", _LINES, _LINES)
