"""A command line that was pointed at something else than a market, or at one that means ill."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import finetender
import pytest
from finetender import Client, FinetenderError, UnreachableError, UsageError, calls, streams
from finetender.__main__ import main
from finetender.access_commands import is_readable_on_its_way
from finetender.adapter_archives import read_vllm_line
from finetender.operations import data, file_parts

STEERS = "\x1b]0;owned\x07\x1b[2J\r\n\x7f\x9b31m"
#: Status, headers and content of an answer to a path.
Answer = tuple[int, dict[str, str], bytes]


@contextmanager
def serve(answer: Callable[[str, bytes], Answer]) -> Iterator[tuple[str, list[Any]]]:
    """A server of the answers, and what it was asked: method, path, key."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            given = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked.append((self.command, self.path, self.headers.get("Authorization")))
            status, headers, content = answer(self.path, given)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = _answer

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def use(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("FINETENDER_URL", url)
    monkeypatch.setenv("FINETENDER_API_KEY", "key-secret")


def as_json(value: Any, status: int = 200) -> Answer:
    return status, {"Content-Type": "application/json"}, json.dumps(value).encode()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("URL", "API_KEY", "PROFILE", "CA"):
        monkeypatch.delenv(f"FINETENDER_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_an_answer_that_sends_elsewhere_is_none_and_its_place_gets_no_key(
    status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(lambda *_: as_json({})) as (thief, stolen):
        moved = (status, {"Location": f"{thief}/x"}, b"")
        with serve(lambda *_: moved) as (url, asked):
            use(monkeypatch, url)
            assert main(["webhooks", "delete", "wh_1"]) == 6
            assert main(["nodes", "drain", "node_1"]) == 6
            assert main(["transcript", "fetch", "zone"]) == 6
            assert len(asked) == 3
    assert stolen == []
    told = capsys.readouterr()
    assert "Done." not in told.out
    assert f"sends elsewhere, to {thief}" in told.err
    assert list(Path().glob("zone*")) == []


def test_a_page_in_place_of_an_answer_is_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where an hotel's network asks for a sign-in first."""
    page = (200, {"Content-Type": "text/html"}, b"<h1>Sign in</h1>")
    with serve(lambda *_: page) as (url, _):
        use(monkeypatch, url)
        assert main(["nodes", "revoke", "node_1"]) == 6
        assert main(["keys", "list"]) == 6
    told = capsys.readouterr()
    assert (told.out, told.err.count("is no market: its answer is no JSON object")) == ("", 2)


def list_hostile() -> dict[str, Answer]:
    job = {
        "id": f"job_1{STEERS}",
        "status": f"running{STEERS}",
        "name": f"name{STEERS}",
        "zone": STEERS,
        "price": "1.00",
        "deadline": "2027-01-01T00:00:00Z",
        "failure_reason": STEERS,
        "progress": {
            "step": 1,
            "total_steps": 2,
            "train_loss": 0.5,
            "valid_loss": None,
            "eta_at": None,
        },
    }
    refused = {"detail": STEERS, "code": f"bad{STEERS}", "request_id": f"req{STEERS}"}
    way = {"title": f"Docker{STEERS}", "lines": f"docker run{STEERS}"}
    token = {"id": STEERS, "secret": STEERS, "commands": [way]}
    return {
        "/api/jobs": as_json({"data": [job], "has_more": True}),
        "/api/join-tokens": as_json(token, 201),
        "/api/nodes": as_json({"data": [{"id": STEERS, "name": STEERS}], "has_more": True}),
        "/api/wallet": as_json(refused, 403),
    }


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["jobs"], 0),
        (["nodes", "list"], 0),
        (["nodes", "token", "--zone", "z", "--ask", "1"], 0),
        (["wallet", "show"], 3),
    ],
    ids=str,
)
def test_nothing_that_a_market_says_steers_a_terminal(
    words: list[str],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers = list_hostile()
    with serve(lambda path, _: answers[path.partition("?")[0]]) as (url, _):
        use(monkeypatch, url)
        assert main(words) == code
    told = capsys.readouterr()
    for text in (told.out, told.err):
        for letter in set(STEERS) - set("\n]0;owned[2J31m"):
            assert letter not in text, (letter, text)


#: Prints by themselves: these, of what they draw or have made themselves.
RAW = {
    "progress.py": {"say", "show"},
    "output.py": {"show", "print_json"},
    "__main__.py": {"main"},
    "sweep_command.py": {"_await_jobs"},
    "access_commands.py": {"write_completion"},
}


def test_all_commands_print_by_what_keeps_terminals_safe() -> None:
    found: dict[str, set[str]] = {}
    for path in Path(finetender.__file__).parent.rglob("*.py"):
        for outer in ast.walk(ast.parse(path.read_text())):
            if not isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for inner in ast.walk(outer):
                if not isinstance(inner, ast.Call) or not isinstance(inner.func, ast.Name):
                    continue
                if inner.func.id == "print":
                    found.setdefault(path.name, set()).add(outer.name)
    found["progress.py"].discard("follow_in_terminal")
    found["output.py"].discard("show_bytes")
    assert found == RAW


@pytest.mark.parametrize(
    "name", [".bashrc", "..", "../x.gguf", "Makefile", "job_1-x\nFROM evil", "job_1/../x", ""]
)
def test_an_export_takes_no_name_but_its_jobs(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {"id": "exp_1", "status": "ready", "filename": name, "job_id": "job_1"}
    Path("Makefile").write_text("mine")
    with serve(lambda *_: as_json(made)) as (url, _):
        use(monkeypatch, url)
        assert main(["export", "job_1", "gguf-f16"]) == 2
    assert "Name it yourself, with --output" in capsys.readouterr().err
    assert Path("Makefile").read_text() == "mine"
    assert sorted(path.name for path in Path().iterdir()) == ["Makefile"]


@pytest.mark.parametrize(
    ("card", "line"),
    [
        ("    vllm serve a; id --lora-modules x=.", "vllm serve 'a;' id --lora-modules job=job"),
        ("vllm serve $(id) `id` x=.", "vllm serve '$(id)' '`id`' job=job"),
        ('vllm serve "a', None),
        ("rm -rf .", None),
    ],
)
def test_a_card_says_no_second_command(tmp_path: Path, card: str, line: str | None) -> None:
    adapter = tmp_path / "adapter.zip"
    with zipfile.ZipFile(adapter, "w") as archive:
        archive.writestr("README.md", f"# Card\n\n{card}\n")
    assert read_vllm_line(adapter, "job") == line


#: Where a file's entry in an archive says what it is, and what no reader takes: a password, a way
#: of packing that nobody knows, and content that is not packed as it says.
@pytest.mark.parametrize(
    ("entry", "index", "value"), [(6, 8, 1), (8, 10, 99), (39, None, 0xFF)], ids=str
)
def test_an_archive_that_cannot_be_read_names_no_line(
    tmp_path: Path, entry: int, index: int | None, value: int
) -> None:
    adapter = tmp_path / "adapter.zip"
    with zipfile.ZipFile(adapter, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("README.md", "vllm serve a --lora-modules x=.")
    content = bytearray(adapter.read_bytes())
    content[entry] = value
    if index is not None:
        content[content.index(b"PK\1\2") + index] = value
    adapter.write_bytes(content)
    assert read_vllm_line(adapter, "job") is None


def test_a_download_that_begins_anew_each_time_comes_to_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "_FIRST_WAIT_S", 0.0)
    short = (200, {"Content-Length": "1000", "Connection": "close", "ETag": '"x"'}, b"begin")
    with serve(lambda *_: short) as (url, asked), Client(url, "k") as client:
        with pytest.raises(UnreachableError):
            client.download_adapter("job_1", "a.zip")
        assert len(asked) == calls.TRIES + 1
    assert not Path("a.zip").exists()


@pytest.mark.parametrize("length", ["x", "-1", "²"])
def test_a_download_of_no_known_size_is_held_to_its_hash(length: str) -> None:
    content = b"adapter"
    etag = hashlib.sha256(content).hexdigest()
    headers = {"Content-Range": f"bytes 0-6/{length}".encode().decode("latin-1"), "ETag": etag}
    with serve(lambda *_: (200, headers, content)) as (url, _), Client(url, "k") as client:
        assert client.download_adapter("job_1", "a.zip").read_bytes() == content
    other = headers | {"ETag": "0" * 64}
    with (
        serve(lambda *_: (200, other, content)) as (url, _),
        Client(url, "k") as client,
        pytest.raises(FinetenderError, match="arrived damaged"),
    ):
        client.download_adapter("job_1", "b.zip")
    assert not Path("b.zip").exists()


def test_a_log_that_breaks_off_takes_no_name_and_no_other_ones_place() -> None:
    """Cut at the end of a line, it would hold as a shorter log."""
    Path("log.jsonl").write_text("whole")
    cut = (200, {"Content-Length": "1000", "Connection": "close"}, b'{"zone": "a"}\n')
    with (
        serve(lambda *_: cut) as (url, _),
        Client(url, "k") as client,
        pytest.raises(UnreachableError),
    ):
        client.download_transcript("a", "log.jsonl")
    assert Path("log.jsonl").read_text() == "whole"
    assert sorted(path.name for path in Path().iterdir()) == ["log.jsonl"]


def test_parts_of_a_file_that_was_written_meanwhile_are_not_sent(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else half of another file would be stored as the one that was hashed."""
    monkeypatch.setattr(data, "PARTS_FROM_BYTES", 10)
    monkeypatch.setattr(file_parts, "PART_BYTES", 10)
    rows, sent = folder / "rows.jsonl", list[bytes]()
    rows.write_bytes(b"a" * 30)

    def answer(path: str, content: bytes) -> Answer:
        if path.endswith("/parts"):
            sent.append(content)
            if len(sent) == 1:
                before = rows.stat()
                rows.write_bytes(b"b" * 30)
                os.utime(rows, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
            return as_json({"id": f"part_{len(sent)}"})
        return as_json({"id": "upload_1"})

    with (
        serve(answer) as (url, asked),
        Client(url, "k") as client,
        pytest.raises(UsageError, match="was changed while it was sent"),
    ):
        client.upload(rows)
    assert len(sent) == 1
    assert not any(path.endswith("/complete") for _, path, _ in asked)


@pytest.mark.parametrize(
    ("url", "is_readable"),
    [
        ("http://market.example", True),
        ("http://192.0.2.1:8000", True),
        ("http://localhost.example", True),
        ("http://127.0.0.1.example", True),
        ("https://market.example", False),
        ("http://localhost:8000", False),
        ("http://127.0.0.2", False),
        ("http://[::1]:8000", False),
    ],
)
def test_a_key_that_others_could_read_on_its_way_is_told_of(url: str, is_readable: bool) -> None:
    assert is_readable_on_its_way(url) is is_readable


def test_a_key_that_stays_on_this_machine_is_stored_without_a_word(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serve(lambda *_: as_json({"data": [], "has_more": False})) as (url, _):
        assert main(["login", "--url", url, "--key", "k"]) == 0
    assert capsys.readouterr().err == ""
