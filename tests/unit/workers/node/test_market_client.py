"""The node's HTTPS client against a real server that misbehaves."""

import threading
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from tests.unit.workers.node.market_double import MarketDouble
from workers.node import backoff, market_client
from workers.node.market_client import (
    CorruptBlobError,
    MarketClient,
    MarketError,
    MarketRefusal,
    MarketUnreachableError,
    Patience,
    ShuttingDownError,
)
from workers.protocol.job_spec import BlobRef
from workers.protocol.messages import PATH_HEARTBEAT, Heartbeat, HeartbeatReply
from workers.protocol.plan_queue import NodeToken

QUICK = Patience(total_s=5.0, first_pause_s=0.005, longest_pause_s=0.02)
BEAT = Heartbeat(node_id="node_1", at=0.0)


@pytest.fixture
def client(market):
    with MarketClient(market.url, token=market.token, patience=QUICK) as client:
        yield client


def failing(market: MarketDouble, times: int, how: int | str) -> list[str]:
    """Have the market's first answers be trouble; the list fills with what was asked."""
    asked: list[str] = []

    def trouble(method: str, path: str) -> int | str | None:
        asked.append(f"{method} {path}")
        return how if len(asked) <= times else None

    market.trouble = trouble
    return asked


@pytest.mark.parametrize("how", [500, 503, "drop"])
def test_a_fault_of_the_market_is_tried_again(market, client, how):
    asked = failing(market, 3, how)
    assert client.post(PATH_HEARTBEAT, BEAT, HeartbeatReply) == HeartbeatReply()
    assert len(asked) == 4
    assert len(market.heartbeats) == 1


@pytest.mark.parametrize("status", [400, 404, 409, 410, 422, 429])
def test_a_refusal_is_never_tried_again(market, client, status):
    asked = failing(market, 99, status)
    with pytest.raises(MarketRefusal) as refusal:
        client.post(PATH_HEARTBEAT, BEAT, HeartbeatReply)
    assert refusal.value.status == status
    assert refusal.value.code == "trouble"
    assert str(refusal.value) == "The market says trouble."
    assert len(asked) == 1


def test_a_wrong_token_is_a_refusal(market):
    with (
        MarketClient(market.url, token="other", patience=QUICK) as client,
        pytest.raises(MarketRefusal) as refusal,
    ):
        client.post(PATH_HEARTBEAT, BEAT, HeartbeatReply)
    assert refusal.value.status == 401


class Waits(threading.Event):
    """Waits that take no time: the clock that the client reads is set forward instead."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.taken = []

    def wait(self, timeout=None):
        self.taken.append(timeout)
        self.now += timeout
        return self.is_set()


def test_patience_ends(market, monkeypatch):
    waits = Waits()
    clock = SimpleNamespace(monotonic=lambda: waits.now, time=time.time)
    monkeypatch.setattr(market_client, "time", clock)
    monkeypatch.setattr(backoff, "random", SimpleNamespace(uniform=lambda low, high: 1.0))
    asked = failing(market, 10**6, 500)
    patience = Patience(total_s=10.0, first_pause_s=1.0, longest_pause_s=2.0)
    with (
        MarketClient(market.url, token=market.token, stopping=waits) as client,
        pytest.raises(MarketUnreachableError, match="answer 500"),
    ):
        client.post(PATH_HEARTBEAT, BEAT, HeartbeatReply, patience=patience)
    # At 0, 1, 3, 5, 7 and 9 seconds; another wait would end after ten.
    assert waits.taken == [1.0, 2.0, 2.0, 2.0, 2.0]
    assert len(asked) == 6


def test_no_patience_is_one_try(market, client):
    asked = failing(market, 10**6, 500)
    with pytest.raises(MarketUnreachableError):
        client.post(PATH_HEARTBEAT, BEAT, HeartbeatReply, patience=Patience(total_s=0.0))
    assert len(asked) == 1


def test_a_market_that_is_not_there_is_unreachable(market):
    url = market.url
    market.close()
    with (
        MarketClient(url, patience=Patience(total_s=0.05, first_pause_s=0.01)) as client,
        pytest.raises(MarketUnreachableError, match="no answer"),
    ):
        client.post(PATH_HEARTBEAT, BEAT, HeartbeatReply)


def test_stopping_ends_the_wait_between_tries(market):
    stopping = threading.Event()
    failing(market, 10**6, 500)
    slow = Patience(total_s=600.0, first_pause_s=300.0, longest_pause_s=300.0)
    with MarketClient(market.url, patience=slow, stopping=stopping) as client:
        threading.Timer(0.05, stopping.set).start()
        started = time.monotonic()
        with pytest.raises(ShuttingDownError):
            client.post(PATH_HEARTBEAT, BEAT, HeartbeatReply)
        assert time.monotonic() - started < 60


def test_an_answer_that_is_not_the_protocols_is_a_refusal(market, client):
    with pytest.raises(MarketRefusal, match="is not understood"):
        client.post("/internal/v1/join/models", {"token": market.join_token}, NodeToken)


@pytest.mark.parametrize("url", ["ftp://example.com", "example.com", "file:///etc/passwd"])
def test_an_address_that_is_none_is_refused_at_once(url):
    with pytest.raises(MarketError, match="is no web address"):
        MarketClient(url)


class TestDownload:
    def test_a_blob_arrives_whole(self, market, client, tmp_path):
        content = bytes(range(256)) * 4000
        target = tmp_path / "deep" / "file"
        client.download(market.blob(content), target)
        assert target.read_bytes() == content
        assert [path.name for path in target.parent.iterdir()] == ["file"]

    def test_an_empty_blob_arrives_too(self, market, client, tmp_path):
        client.download(market.blob(b""), tmp_path / "file")
        assert (tmp_path / "file").read_bytes() == b""

    def test_a_part_is_continued_where_it_stopped(self, market, client, tmp_path):
        content = b"0123456789" * 1000
        (tmp_path / "file.part").write_bytes(content[:4000])
        client.download(market.blob(content), tmp_path / "file")
        assert (tmp_path / "file").read_bytes() == content
        assert market.requests[-1][2]["Range"] == "bytes=4000-"

    def test_a_part_of_something_else_is_thrown_away(self, market, client, tmp_path):
        content = b"0123456789" * 1000
        (tmp_path / "file.part").write_bytes(b"x" * 4000)
        client.download(market.blob(content), tmp_path / "file")
        assert (tmp_path / "file").read_bytes() == content
        assert len(market.requests) == 2

    def test_a_part_longer_than_the_blob_is_thrown_away(self, market, client, tmp_path):
        (tmp_path / "file.part").write_bytes(b"x" * 4000)
        client.download(market.blob(b"short"), tmp_path / "file")
        assert (tmp_path / "file").read_bytes() == b"short"

    def test_wrong_content_leaves_no_file(self, market, client, tmp_path):
        blob = market.blob(b"right content")
        market.blobs[blob.url] = b"wrong content"
        with pytest.raises(CorruptBlobError, match="another hash"):
            client.download(blob, tmp_path / "file")
        assert list(tmp_path.iterdir()) == []
        assert len(market.requests) == 2

    def test_more_than_promised_is_not_stored(self, market, client, tmp_path):
        blob = market.blob(b"small")
        market.blobs[blob.url] = b"x" * 10_000_000
        with pytest.raises(CorruptBlobError):
            client.download(blob, tmp_path / "file")

    @pytest.mark.parametrize("url", ["http://evil.example/x", "//evil.example/x", "x"])
    def test_the_token_never_leaves_the_markets_host(self, market, client, tmp_path, url):
        with pytest.raises(CorruptBlobError, match="not on the market's own host"):
            client.download(BlobRef(url=url, sha256="0" * 64, bytes=1), tmp_path / "file")
        assert market.requests == []

    def test_a_blob_that_is_gone_is_a_refusal(self, client, tmp_path):
        blob = BlobRef(url="/blobs/none", sha256="0" * 64, bytes=1)
        with pytest.raises(MarketRefusal):
            client.download(blob, tmp_path / "file")


class TestUpload:
    def test_a_file_is_sent_with_its_length_and_hash(self, market, client, tmp_path):
        from tests.unit.workers.node.market_double import Lease

        market.leases["l1"] = Lease(expires_at=0)
        path = tmp_path / "checkpoint"
        path.write_bytes(b"abc" * 300_000)
        asked = failing(market, 2, 503)
        client.upload("/internal/v1/leases/l1/checkpoints/7", path)
        assert market.leases["l1"].checkpoints == {7: path.read_bytes()}
        assert len(asked) == 3
        assert market.requests[-1][2]["Content-Length"] == "900000"

    def test_a_file_that_is_not_there_is_the_callers_error(self, client):
        with pytest.raises(FileNotFoundError):
            client.upload("/internal/v1/leases/l1/adapter", Path("/nonexistent"))


def test_a_clock_that_differs_is_learnt(market, client):
    client.post(PATH_HEARTBEAT, BEAT, HeartbeatReply)
    assert client.clock_offset_s == 0.0
    market.clock_ahead_s = 100.0
    client.post(PATH_HEARTBEAT, BEAT, HeartbeatReply)
    assert 98.0 < client.clock_offset_s < 102.0
    assert client.market_time() == pytest.approx(time.time() + 100, abs=2)


def test_an_answer_larger_than_a_message_is_not_read_to_its_end(market, client, monkeypatch):
    monkeypatch.setattr(market_client, "ANSWER_BYTES_MAX", 1)
    with pytest.raises(MarketRefusal, match="more than 1 bytes"):
        client.post(PATH_HEARTBEAT, BEAT, HeartbeatReply)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (
            httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate"),
            "set SSL_CERT_FILE to a file with its certificate.",
        ),
        (httpx.ProxyError("407 Proxy Authentication Required"), "check it, and NO_PROXY."),
        (httpx.ConnectError("Connection refused"), "this machine's network, and HTTPS_PROXY."),
        (httpx.ReadTimeout("timed out"), "no answer (ReadTimeout: timed out)."),
    ],
)
def test_what_kept_a_call_from_the_market_is_said_with_what_to_look_at(
    market, client, monkeypatch, error, advice
):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(client, "_post_once", fail)
    with pytest.raises(MarketUnreachableError) as caught:
        client.post(PATH_HEARTBEAT, BEAT, HeartbeatReply, patience=Patience(total_s=0.0))
    assert str(caught.value).endswith(advice)


def test_an_address_with_a_path_is_said_to_be_no_market(monkeypatch, client):
    page = httpx.Response(404, html="<h1>Not found</h1>")
    monkeypatch.setattr(client, "_post_once", lambda *_: page)
    with pytest.raises(MarketRefusal, match="without a path after its host"):
        client.post("/elsewhere", BEAT, HeartbeatReply)
