"""The node's data sets on disk: fetched once, kept while used, thrown out oldest first."""

import errno
import os
import threading
import time

import pytest

from workers.node.blob_cache import BlobCache, DiskFullError
from workers.node.market_client import MarketClient, MarketRefusal, Patience
from workers.node.upload_files import link_or_copy
from workers.protocol.job_spec import BlobRef


@pytest.fixture
def client(market):
    patience = Patience(total_s=2.0, first_pause_s=0.01, longest_pause_s=0.05)
    with MarketClient(market.url, token=market.token, patience=patience) as client:
        yield client


def cached(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_blob_is_fetched_once_and_then_found(market, client, tmp_path):
    cache = BlobCache(tmp_path, client)
    blob = market.blob(b"rows")
    for _ in range(3):
        with cache.opened(blob) as path:
            assert path.read_bytes() == b"rows"
    assert len(market.requests) == 1


def test_many_who_ask_at_once_share_one_download(market, client, tmp_path):
    cache = BlobCache(tmp_path, client)
    blob = market.blob(b"x" * 2_000_000)
    read: list[int] = []

    def use() -> None:
        with cache.opened(blob) as path:
            read.append(path.stat().st_size)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read == [2_000_000] * 8
    assert len(market.requests) == 1


def test_files_of_a_closed_job_go_but_for_those_that_another_uses(market, client, tmp_path):
    cache = BlobCache(tmp_path / "cache", client)
    (tmp_path / "cache").mkdir()
    (tmp_path / "own").write_bytes(b"a file beside the cache")
    used, idle = market.blob(b"used"), market.blob(b"idle")
    with cache.opened(idle):
        pass
    with cache.opened(used) as path:
        cache.forget([used.sha256, idle.sha256, "../own", "0" * 64])
        assert path.read_bytes() == b"used"
        assert cached(tmp_path / "cache") == {used.sha256}
    assert (tmp_path / "own").exists()
    # It goes with who used it last, and so does what came of a file before a job closed.
    assert cached(tmp_path / "cache") == set()
    with cache.opened(used):
        cache.forget([used.sha256])
        cache.hold(used)
    cache.release(used)
    assert cached(tmp_path / "cache") == {used.sha256}
    cache.forget([used.sha256])
    (tmp_path / "cache" / f"{idle.sha256}.part").write_bytes(b"id")
    cache.forget([idle.sha256])
    assert cached(tmp_path / "cache") == set()


def test_a_file_cut_short_on_disk_is_fetched_again(market, client, tmp_path):
    cache = BlobCache(tmp_path, client)
    blob = market.blob(b"whole rows")
    (tmp_path / blob.sha256).write_bytes(b"whole")
    with cache.opened(blob) as path:
        assert path.read_bytes() == b"whole rows"


def test_the_oldest_unused_files_make_room(market, client, tmp_path):
    cache = BlobCache(tmp_path, client, limit_bytes=250)
    blobs = [market.blob(bytes([index]) * 100) for index in range(4)]
    for age, blob in enumerate(blobs[:2]):
        with cache.opened(blob) as path:
            pass
        os.utime(path, (time.time() - 1000 + age,) * 2)
    with cache.opened(blobs[0]) as path:
        os.utime(path, (time.time() - 500,) * 2)
    with cache.opened(blobs[2]):
        assert cached(tmp_path) == {blobs[0].sha256, blobs[2].sha256}


def test_a_file_in_use_is_never_thrown_out(market, client, tmp_path):
    cache = BlobCache(tmp_path, client, limit_bytes=150)
    used, new = market.blob(b"a" * 100), market.blob(b"b" * 100)
    with cache.opened(used) as path:
        os.utime(path, (1000, 1000))
        with cache.opened(new):
            assert cached(tmp_path) == {used.sha256, new.sha256}
    cache.sweep()
    assert len(cached(tmp_path)) == 1


def test_a_file_nobody_asked_for_in_a_day_goes_and_one_a_job_holds_stays(market, client, tmp_path):
    cache = BlobCache(tmp_path, client)
    forgotten, held, recent = (market.blob(bytes([index]) * 10) for index in range(3))
    day = 24 * 3600
    for blob in (forgotten, held, recent):
        with cache.opened(blob):
            pass
    for blob, days in ((forgotten, 1.1), (held, 400), (recent, 0.9)):
        os.utime(tmp_path / blob.sha256, (time.time() - days * day,) * 2)
    cache.hold(held, None)
    cache.sweep()
    assert cached(tmp_path) == {held.sha256, recent.sha256}
    cache.release(held, None)
    cache.sweep()
    assert cached(tmp_path) == {recent.sha256}
    BlobCache(tmp_path, client, kept_days=0.5).sweep()
    assert cached(tmp_path) == set()


def test_a_full_disk_empties_the_cache_and_tries_again(market, client, tmp_path, monkeypatch):
    cache = BlobCache(tmp_path, client)
    with cache.opened(market.blob(b"old")):
        pass
    blob = market.blob(b"new")
    real, calls = client.download, []

    def download(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(*arguments)

    monkeypatch.setattr(client, "download", download)
    with cache.opened(blob) as path:
        assert path.read_bytes() == b"new"
    assert cached(tmp_path) == {blob.sha256}


def test_a_disk_that_stays_full_is_said(market, client, tmp_path, monkeypatch):
    cache = BlobCache(tmp_path, client)

    def download(blob, path):
        path.with_name(f"{path.name}.part").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(client, "download", download)
    blob = market.blob(b"new")
    with pytest.raises(DiskFullError, match="no room for 3 bytes"), cache.opened(blob):
        pass
    assert cached(tmp_path) == set()


def test_a_blob_that_is_refused_leaves_nothing(market, client, tmp_path):
    cache = BlobCache(tmp_path, client)
    blob = BlobRef(url="/none", sha256="0" * 64, bytes=3)
    with pytest.raises(MarketRefusal), cache.opened(blob):
        pass
    assert cached(tmp_path) == set()


@pytest.mark.parametrize("sha256", ["", "../../etc/passwd", "A" * 64, "0" * 63, "g" * 64])
def test_a_name_that_is_no_hash_is_refused(market, client, tmp_path, sha256):
    cache = BlobCache(tmp_path, client)
    blob = BlobRef(url="/x", sha256=sha256, bytes=1)
    with pytest.raises(ValueError, match="is no SHA-256"), cache.opened(blob):
        pass
    assert market.requests == []


class TestFilesOnTheWay:
    def test_a_kept_copy_outlives_the_runtimes_own_file(self, tmp_path):
        path = tmp_path / "step-00000001.safetensors"
        path.write_bytes(b"state")
        copy = link_or_copy(path, tmp_path / "outbox", name="copy")
        path.unlink()
        assert copy.read_bytes() == b"state"

    def test_where_links_do_not_work_the_bytes_are_copied(self, tmp_path, monkeypatch):
        def no_link(*_):
            raise OSError(errno.EXDEV, "Invalid cross-device link")

        monkeypatch.setattr("workers.node.upload_files.os.link", no_link)
        path = tmp_path / "state"
        path.write_bytes(b"state")
        copy = link_or_copy(path, tmp_path / "outbox", name="copy")
        path.write_bytes(b"other")
        assert copy.read_bytes() == b"state"

    def test_a_copy_that_does_not_fit_leaves_nothing(self, tmp_path, monkeypatch):
        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("workers.node.upload_files.os.link", full)
        monkeypatch.setattr("workers.node.upload_files.shutil.copyfile", full)
        path = tmp_path / "state"
        path.write_bytes(b"state")
        with pytest.raises(OSError, match="No space left"):
            link_or_copy(path, tmp_path / "outbox", name="copy")
        assert list((tmp_path / "outbox").iterdir()) == []
