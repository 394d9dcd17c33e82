"""Data from hubs, buckets, links and tables become rows that are uploaded, one after another."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pyarrow
import pyarrow.parquet
import pytest
from finetender import data_sources
from finetender.data_sources import open_source
from finetender.errors import UsageError
from finetender.operations import data

from tests.object_bucket import serve_buckets

ROWS = [{"prompt": f"question {number}", "completion": "é" * number} for number in range(2500)]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()


def read(source: Any) -> tuple[bytes, str]:
    with open_source(source) as (file, name):
        content = file.read_bytes()
        assert file.name == name
    return content, name


def write_table(folder: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "train.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def test_a_file_of_rows_is_sent_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(LINES)
    with open_source(file) as found:
        assert found == (file, "rows.jsonl")
    assert file.exists()


def test_parquet_becomes_lines_and_no_copy_stays(tmp_path: Path) -> None:
    path = write_table(tmp_path)
    with open_source(str(path)) as (file, name):
        assert (file.read_bytes(), name) == (LINES, "train.jsonl")
    assert not file.exists()
    assert path.exists()


def test_rows_of_a_program_are_taken_one_after_another() -> None:
    taken: list[int] = []

    def give() -> Iterator[dict[str, Any]]:
        for number, row in enumerate(ROWS):
            taken.append(number)
            yield row

    assert read(give()) == (LINES, "rows.jsonl")
    assert len(taken) == len(ROWS)
    with pytest.raises(UsageError, match="Row 2 is no JSON"), open_source([{"a": 1}, {"a": {1}}]):
        pass
    with pytest.raises(UsageError, match="Row 1 is no JSON"), open_source([{"a": float("nan")}]):
        pass


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with serve_buckets() as url:
        for name, value in {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        client = boto3.client("s3")
        client.create_bucket(Bucket="data")
        yield client


def test_files_of_a_bucket_are_read_by_their_address_and_by_a_signed_link(
    bucket: Any, tmp_path: Path
) -> None:
    bucket.put_object(Bucket="data", Key="some/rows.jsonl", Body=LINES)
    bucket.upload_file(str(write_table(tmp_path)), "data", "some/train.parquet")
    assert read("s3://data/some/rows.jsonl") == (LINES, "rows.jsonl")
    assert read("s3://data/some/train.parquet") == (LINES, "train.jsonl")
    where = {"Bucket": "data", "Key": "some/rows.jsonl"}
    link = bucket.generate_presigned_url("get_object", Params=where)
    assert read(link) == (LINES, "rows.jsonl")
    with pytest.raises(UsageError, match=r"s3://data/none cannot be read: .*NoSuchKey"):
        read("s3://data/none")
    with pytest.raises(UsageError, match="s3://bucket/key"):
        read("s3://data")
    # A link of another market's bucket, whose signature is wrong here, has no such file.
    where["Key"] = "some/other.jsonl"
    with pytest.raises(UsageError, match="The link answers 404"):
        read(bucket.generate_presigned_url("get_object", Params=where))


class _Hub(SimpleHTTPRequestHandler):
    """What the hub's own client asks for: a folder's tree, and files in parts."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.endswith("/default"):
            self._send([{"type": "directory", "oid": "0" * 40, "path": "default/train"}])
        elif path.startswith("/api/datasets/ada/answers/tree/"):
            self._send([self._describe(each) for each in self._list() if each.is_file()])
        elif path == "/api/datasets/ada/answers" or "/revision/" in path:
            self._send({"id": "ada/answers", "sha": "0" * 40, "siblings": []})
        elif "/resolve/" in path:
            content = (Path(self.directory) / path.rpartition("/")[2]).read_bytes()
            first, _, last = (
                self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
            )
            part = content[int(first) : int(last or len(content)) + 1]
            self.send_response(206)
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            self.wfile.write(part)
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        """``paths-info`` of files, which are asked for by name."""
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self._send([self._describe(each) for each in self._list() if each.name in asked])

    def _list(self) -> list[Path]:
        return sorted(Path(self.directory).iterdir())

    def _describe(self, file: Path) -> dict[str, Any]:
        inner = "default/train/" if "convert" in self.path or "parquet" in self.path else ""
        return {
            "type": "file",
            "oid": "0" * 40,
            "size": file.stat().st_size,
            "path": inner + file.name,
        }

    def _send(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that a hub of this machine has as the data set ``ada/answers``."""
    from huggingface_hub import HfFileSystem, constants

    folder = tmp_path / "hub"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Hub, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", url)
    where = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", where)
    monkeypatch.setattr(
        "huggingface_hub.HfFileSystem", partial(HfFileSystem, endpoint=url, token=False)
    )
    yield folder
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_data_set_of_the_hub_is_read_from_its_parquet_files(hub: Path) -> None:
    write_table(hub)
    assert read("hf://ada/answers/train") == (LINES, "train.jsonl")
    assert read("hf://ada/answers")[0] == LINES


def test_a_file_of_the_hub_is_read_by_its_address(hub: Path) -> None:
    (hub / "rows.jsonl").write_bytes(LINES)
    assert read("hf://datasets/ada/answers/rows.jsonl") == (LINES, "rows.jsonl")
    with pytest.raises(UsageError, match="the hub has no such file"):
        read("hf://datasets/ada/answers/none.jsonl")


@pytest.mark.parametrize(
    ("source", "module", "extra"),
    [
        ("rows.parquet", "pyarrow.parquet", "parquet"),
        ("hf://ada/answers", "huggingface_hub", "hub"),
        ("s3://data/rows.jsonl", "boto3", "s3"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    source: str, module: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.parquet").touch()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError) as caught:
        read(source)
    package = module.partition(".")[0]
    assert (
        str(caught.value) == f"This needs the package {package}: pip install 'finetender[{extra}]'."
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        # Nobody would ever write to it.
        ("pipe", "it is no plain file"),
        ("pipe.parquet", "it is no plain file"),
        # It never ends.
        ("/dev/zero", "/dev/zero cannot be read: it is no plain file"),
        (".", "it is no plain file"),
        ("none.jsonl", "none.jsonl cannot be read: No such file or directory."),
        ("x" * 300, "File name too long"),
        ("a\0b", "is no name of a file"),
        ("\ud800", "is no name of a file"),
    ],
    ids=ascii,
)
def test_what_is_no_file_that_ends_is_refused_before_it_is_read(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if name.startswith("pipe"):
        os.mkfifo(name)
    with pytest.raises(UsageError, match=words):
        read(name)
    answers = data.upload(name, zone="tiny")
    with pytest.raises(UsageError, match=words):
        next(answers)


def test_what_is_no_table_is_said(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_bytes(LINES)
    with pytest.raises(UsageError, match=r"rows\.parquet is no Parquet"):
        read(tmp_path / "rows.parquet")
    with pytest.raises(UsageError, match="cannot be read"):
        read(tmp_path / "none.parquet")
    assert data_sources.is_address("s3://bucket/key")
    assert not data_sources.is_address("C:/rows.jsonl")
