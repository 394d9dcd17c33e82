"""What is fetched of strangers, and what is not: addresses inside the network above all."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any, ClassVar

import pytest

from marketplace.common.outbound import AnswerLimits, FetchFailed, ask_stranger


class Stranger(BaseHTTPRequestHandler):
    """A server that says where it was asked, or what it is set to."""

    asked: ClassVar[list[tuple[str, str]]] = []

    def do_POST(self) -> None:
        self.asked.append((self.path, self.headers["Host"]))
        if self.path == "/drop-by-drop":
            with suppress(OSError):
                for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n":
                    self.wfile.write(bytes([byte]))
                    time.sleep(0.05)
            return
        self.send_response({"/moved": 302, "/gone": 404}.get(self.path, 200))
        self.send_header("Location", "/elsewhere")
        self.end_headers()
        self.wfile.write(b"x" * 2000 if self.path == "/long" else b"heard")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Stranger) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def ask(
    url: str, *, allows_private: bool, answer_s: float = 30.0, bytes_max: int = 5_000_000
) -> bytes:
    limits = AnswerLimits(10.0, answer_s, bytes_max)
    return ask_stranger(
        url, body=b"{}", headers={}, allows_private=allows_private, limits=limits
    ).body


@pytest.fixture(autouse=True)
def _nothing_asked() -> None:
    Stranger.asked.clear()


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "10.1.2.3",
        "192.168.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "[::1]",
        "[fe80::1]",
        "[fd00::1]",
        "[::ffff:127.0.0.1]",
        "[::10.0.0.1]",
        "[2002:a9fe:a9fe::1]",
        "[64:ff9b::a9fe:a9fe]",
        "[64:ff9b:1::a9fe:a9fe]",
        "[fec0::1]",
        "2130706433",
        "0x7f.1",
    ],
)
def test_an_address_inside_the_network_is_not_asked(host: str) -> None:
    with pytest.raises(FetchFailed, match="has no public address"):
        ask(f"https://{host}/heads", allows_private=False)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/",
        "file:///etc/passwd",
        "https://",
        "https://a@example.org/",
        "https://[",
    ],
)
def test_what_is_not_an_encrypted_address_is_refused(url: str) -> None:
    with pytest.raises(FetchFailed):
        ask(url, allows_private=False)


def test_a_host_with_one_private_address_among_others_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def resolve(*_: object, **__: object) -> list[Any]:
        kind = socket.AF_INET, socket.SOCK_STREAM, 6, ""
        return [(*kind, ("93.184.216.34", 443)), (*kind, ("10.0.0.8", 443))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(FetchFailed, match=r"^market\.example has no public address$"):
        ask("https://market.example/heads", allows_private=False)


def test_a_name_that_leads_nowhere_reads_like_one_that_leads_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def resolve(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(FetchFailed, match=r"^no-such\.invalid has no public address$"):
        ask("https://no-such.invalid/heads", allows_private=False)


def test_the_address_that_was_looked_at_is_the_one_that_is_asked(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    real = socket.getaddrinfo

    def resolve(host: str, *args: Any, **terms: Any) -> Any:
        names.append(host)
        # Whoever asks for the name a second time gets nowhere.
        return real("127.0.0.1" if names.count(host) == 1 else "127.0.0.2", *args, **terms)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert ask(f"http://market.example:{port}/a?b=1#c", allows_private=True) == b"heard"
    assert names.count("market.example") == 1
    assert Stranger.asked == [("/a?b=1", f"market.example:{port}")]


def test_redirects_refusals_and_long_answers_are_failures(port: int) -> None:
    for path, problem in (("moved", "302"), ("gone", "404"), ("long", "more than 1000 bytes")):
        with pytest.raises(FetchFailed, match=problem):
            ask(f"http://127.0.0.1:{port}/{path}", allows_private=True, bytes_max=1000)
    assert [path for path, _ in Stranger.asked] == ["/moved", "/gone", "/long"]
    with pytest.raises(FetchFailed, match="did not say all"):
        ask(f"http://127.0.0.1:{port}/", allows_private=True, answer_s=-1.0)


def test_one_who_sends_a_head_a_byte_at_a_time_has_no_longer_than_others(
    port: int,
) -> None:
    with pytest.raises(FetchFailed, match=r"did not say all within 0\.2 seconds"):
        ask(f"http://127.0.0.1:{port}/drop-by-drop", allows_private=True, answer_s=0.2)
