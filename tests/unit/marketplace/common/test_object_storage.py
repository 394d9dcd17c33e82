"""Files in a bucket: whole or not at all, each under its own name, read from any place on."""

from __future__ import annotations

import io
from io import StringIO
from typing import Any

import pytest
from django.core.files.base import ContentFile, File
from django.core.files.storage import default_storage
from django.core.management import CommandError, call_command

from marketplace.common.downloads import FileDownload
from marketplace.common.errors import StorageUnavailable
from marketplace.common.object_storage import ObjectStorage
from marketplace.jobs.spooling import store_file
from tests.object_bucket import connect, list_objects, use_bucket

MIB = 1024**2


class Torn(io.BytesIO):
    """Breaks off in the middle."""

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() > 20 * MIB:
            raise ConnectionResetError("the sender is gone")
        return super().read(size)


def test_a_file_is_stored_read_from_any_place_and_deleted(bucket: dict[str, Any]) -> None:
    content = bytes(range(256)) * 1000
    name = default_storage.save("jobs/a/adapter.zip", ContentFile(content))
    assert name.startswith("jobs/a/adapter-")
    assert name.endswith(".zip")
    assert list_objects(bucket) == [f"market/{name}"]
    assert default_storage.size(name) == len(content)
    with default_storage.open(name) as file:
        assert file.read(10) == content[:10]
        assert file.seek(200_000) == 200_000
        assert file.read() == content[200_000:]
        file.seek(-5, io.SEEK_END)
        assert file.read() == content[-5:]
    for _ in range(2):
        default_storage.delete(name)
    assert list_objects(bucket) == []


def test_a_row_may_open_its_file_again(bucket: dict[str, Any]) -> None:
    file = default_storage.open(default_storage.save("a", ContentFile(b"0123")))
    for _ in range(2):
        with file.open() as opened:
            assert opened.read(2) == b"01"
    with file.open() as opened:
        assert opened.read(2) == b"01"
        assert opened.open().read() == b"0123"


def test_two_files_of_one_name_are_two(bucket: dict[str, Any]) -> None:
    """Of two that store the same export, the one that came too late deletes its own."""
    first = default_storage.save("exports/e.gguf", ContentFile(b"first"))
    late = store_file("exports/e.gguf", io.BytesIO(b"second"))
    assert late.__enter__() != first
    late.__exit__(LookupError, LookupError(), None)
    assert list_objects(bucket) == [f"market/{first}"]
    with default_storage.open(first) as file:
        assert file.read() == b"first"


def test_what_broke_off_while_it_was_stored_is_not_there(bucket: dict[str, Any]) -> None:
    with pytest.raises(ConnectionResetError):
        default_storage.save("big", File(Torn(bytes(24 * MIB))))
    assert list_objects(bucket) == []
    client = connect(bucket)
    assert not client.list_multipart_uploads(Bucket=bucket["bucket_name"]).get("Uploads")


def test_a_file_of_many_parts_is_the_same_when_read(bucket: dict[str, Any]) -> None:
    content = b"".join(number.to_bytes(8, "big") for number in range(20 * MIB // 8))
    name = default_storage.save("big", ContentFile(content))
    with default_storage.open(name) as file:
        assert file.read() == content


@pytest.mark.asyncio
async def test_a_download_asks_the_bucket_for_what_is_wanted_only(bucket: dict[str, Any]) -> None:
    name = default_storage.save("f", ContentFile(b"0123456789"))
    download = FileDownload(
        default_storage.open(name), size=10, sha256="abc", range_header="bytes=3-6"
    )
    assert b"".join([chunk async for chunk in download]) == b"3456"
    assert download["Content-Range"] == "bytes 3-6/10"
    download.close()


def test_a_file_that_is_not_there_is_missing_and_not_a_fault(bucket: dict[str, Any]) -> None:
    with pytest.raises(FileNotFoundError):
        default_storage.open("no/such")
    with pytest.raises(FileNotFoundError):
        default_storage.size("no/such")
    assert default_storage.exists("no/such") is False


@pytest.mark.parametrize(
    "wrong",
    [{"bucket_name": "no-such-bucket"}, {"endpoint_url": "http://127.0.0.1:9"}],
    ids=["no bucket", "no server"],
)
def test_a_bucket_that_cannot_be_used_is_said_so(
    bucket: dict[str, Any], settings: Any, wrong: dict[str, Any]
) -> None:
    use_bucket(settings, bucket | wrong)
    for use in (
        lambda: default_storage.save("a", ContentFile(b"a")),
        lambda: default_storage.open("a"),
    ):
        with pytest.raises(StorageUnavailable):
            use()
    with pytest.raises(CommandError, match="cannot be used"):
        call_command("storage_check")


def test_the_check_stores_reads_and_deletes(
    bucket: dict[str, Any], settings: Any, tmp_path: Any
) -> None:
    settings.S3_BUCKET = bucket["bucket_name"]
    out = StringIO()
    call_command("storage_check", stdout=out)
    assert bucket["bucket_name"] in out.getvalue()
    assert list_objects(bucket) == []


def test_files_are_never_written_in_place(bucket: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="'rb' only"):
        default_storage.open("a", "wb")


def test_it_begins_without_a_server() -> None:
    """Commands that need no files run while the bucket is away."""
    ObjectStorage(bucket_name="x", endpoint_url="http://127.0.0.1:9")
