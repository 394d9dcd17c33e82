"""Proxies and certificates, against servers that speak them."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from finetender import Client, Connection, UnreachableError, UsageError
from finetender.__main__ import main

ZONE = {"name": "z", "base_model": "b", "slot_s": 10, "latest_deadline": "2027-01-01T00:00:00Z"}


class Market(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"data": self.list_data(), "has_more": False}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def list_data(self) -> list[dict[str, object]]:
        return [ZONE] if self.path.startswith("/api/zones") else []

    def log_message(self, *args: object) -> None:
        pass


class Tunnel(BaseHTTPRequestHandler):
    """A proxy that hands bytes on after ``CONNECT``, and notes to where."""

    asked: list[str] = []

    def do_CONNECT(self) -> None:
        self.asked.append(self.path)
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host, int(port))) as onward:
            self.send_response(200)
            self.end_headers()
            back = threading.Thread(target=self.hand_on, args=(onward, self.connection))
            back.start()
            self.hand_on(self.connection, onward)
            back.join(10)

    @staticmethod
    def hand_on(source: socket.socket, target: socket.socket) -> None:
        try:
            while content := source.recv(65536):
                target.sendall(content)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serve(handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext | None) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"{'http' if context is None else 'https'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate that no machine knows, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "market")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    (folder / "ca.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return folder / "ca.pem", folder / "key.pem"


@pytest.fixture
def market(certificate: tuple[Path, Path]) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with serve(Market, context) as url:
        yield url


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("finetender.calls._FIRST_WAIT_S", 0.0)
    names = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "FINETENDER_CA")
    for name in (*names, *map(str.lower, names), "SSL_CERT_DIR", "FINETENDER_PROFILE"):
        monkeypatch.delenv(name, raising=False)


def test_a_market_whose_certificate_is_not_known_is_refused_with_the_way_out(market: str) -> None:
    with Client(market, "k") as client, pytest.raises(UnreachableError, match="--ca, or FINETE"):
        client.list_zones()


@pytest.mark.parametrize("way", ["argument", "FINETENDER_CA", "SSL_CERT_FILE"])
def test_its_authority_is_named_by_an_argument_or_the_environment(
    market: str, certificate: tuple[Path, Path], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = str(certificate[0])
    if way != "argument":
        monkeypatch.setenv(way, ca)
    connection = Connection(ca=ca if way == "argument" else None)
    with Client(market, "k", connection=connection) as client:
        assert [zone.name for zone in client.list_zones()] == ["z"]


def test_an_authority_is_kept_with_the_profile_that_was_signed_in_with_it(
    market: str, certificate: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    login = ["login", "--url", market, "--key", "k", "--profile", "own"]
    assert main(login) == 6
    assert main([*login, "--ca", str(certificate[0])]) == 0
    assert main(["zones", "--profile", "own", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.partition("\n")[2])["data"] == [ZONE]


@pytest.mark.parametrize("way", ["argument", "HTTPS_PROXY", "ALL_PROXY"])
def test_requests_go_through_a_proxy(
    market: str, certificate: tuple[Path, Path], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Tunnel.asked.clear()
    with serve(Tunnel, None) as proxy:
        if way != "argument":
            monkeypatch.setenv(way, proxy)
        named = proxy if way == "argument" else None
        connection = Connection(ca=str(certificate[0]), proxy=named)
        with Client(market, "k", connection=connection) as client:
            assert [zone.name for zone in client.list_zones()] == ["z"]
        assert Tunnel.asked == [market.removeprefix("https://")]
        if way != "argument":
            monkeypatch.setenv("NO_PROXY", "127.0.0.1")
            with Client(market, "k", connection=connection) as client:
                client.list_zones()
            assert len(Tunnel.asked) == 1


def test_what_cannot_be_used_is_wrong_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    for ca in (empty, tmp_path / "missing.pem"):
        with pytest.raises(UsageError, match="no file of certificates"):
            Client("https://market.example", "k", connection=Connection(ca=str(ca)))
    monkeypatch.setenv("FINETENDER_URL", "https://market.example")
    monkeypatch.setenv("FINETENDER_API_KEY", "k")
    monkeypatch.setenv("HTTPS_PROXY", "ftp://proxy.example")
    assert main(["zones", "--json"]) == 2
    assert "cannot be used" in json.loads(capsys.readouterr().out)["error"]["detail"]
