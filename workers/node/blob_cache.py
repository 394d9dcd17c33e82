"""Data sets on the node's disk by their hash; what is old or least recently used goes first."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from workers.node.market_client import MarketClient
from workers.protocol.job_spec import BlobRef

log = logging.getLogger(__name__)

#: Bytes the cache may take before it is swept.
CACHE_BYTES = 20 * 1024**3
#: Days a file is kept that nothing has asked for; those of a closed job go at once.
CACHE_DAYS = 1.0


class DiskFullError(Exception):
    """There is no room for a file, not even after the cache was emptied."""


class BlobCache:
    """Fetches each blob once, however many jobs ask for it."""

    def __init__(
        self,
        folder: Path,
        client: MarketClient,
        *,
        limit_bytes: int = CACHE_BYTES,
        kept_days: float = CACHE_DAYS,
    ) -> None:
        self._folder = folder
        self._client = client
        self._limit_bytes = limit_bytes
        self._kept_s = kept_days * 24 * 3600
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._users: defaultdict[str, int] = defaultdict(int)
        #: Of closed jobs, but in use.
        self._forgotten: set[str] = set()
        self._guard = threading.Lock()

    @contextlib.contextmanager
    def opened(self, blob: BlobRef):
        """The path of a blob, kept for as long as the context is.

        Raises
        ------
        MarketError
            When it cannot be fetched.
        DiskFullError
            When there is no room.
        """
        path = self._folder / check_sha256(blob)
        self.hold(blob)
        with self._guard:
            lock = self._locks[path.name]
        try:
            with lock:
                if not (path.exists() and path.stat().st_size == blob.bytes):
                    self._fetch(blob, path)
                os.utime(path)
            yield path
        finally:
            self.release(blob)

    def hold(self, *blobs: BlobRef | None) -> None:
        """Keep blobs, there already or not, until they are released as often."""
        with self._guard:
            for blob in blobs:
                if blob is not None:
                    self._users[blob.sha256] += 1
                    # of another job, which may come back
                    self._forgotten.discard(blob.sha256)

    def release(self, *blobs: BlobRef | None) -> None:
        """Let go of blobs that were held."""
        with self._guard:
            for blob in blobs:
                if blob is not None:
                    self._users[blob.sha256] -= 1
            self._delete_forgotten()

    def forget(self, hashes: Iterable[str]) -> None:
        """Delete blobs of a closed job, and what has come of them; what is in use, after it."""
        with self._guard:
            self._forgotten |= set(filter(_is_sha256, hashes))
            self._delete_forgotten()

    def _delete_forgotten(self) -> None:
        """Call while holding the guard."""
        for name in [name for name in self._forgotten if not self._users[name]]:
            self._forgotten.remove(name)
            for path in (self._folder / name, self._folder / f"{name}.part"):
                path.unlink(missing_ok=True)

    def _fetch(self, blob: BlobRef, path: Path) -> None:
        self.sweep(room_for=blob.bytes)
        try:
            self._client.download(blob, path)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            log.warning("the disk is full; emptying the cache of data sets")
            self.sweep(room_for=self._limit_bytes)
            try:
                self._client.download(blob, path)
            except OSError as again:
                path.with_name(f"{path.name}.part").unlink(missing_ok=True)
                raise DiskFullError(
                    f"The node's disk has no room for {blob.bytes:,} bytes of data."
                ) from again

    def sweep(self, *, room_for: int = 0) -> None:
        """Delete files no job uses: those kept for too long, then the least recently used.

        The second goes on until the rest and ``room_for`` fit.
        """
        oldest = time.time() - self._kept_s
        with self._guard:
            files = [(path.stat(), path) for path in self._folder.iterdir() if path.is_file()]
            total = sum(stat.st_size for stat, _ in files) + room_for
            for stat, path in sorted(files, key=lambda item: item[0].st_mtime):
                if total <= self._limit_bytes and stat.st_mtime >= oldest:
                    return
                if self._users[path.name.removesuffix(".part")]:
                    continue
                path.unlink(missing_ok=True)
                total -= stat.st_size


def check_sha256(blob: BlobRef) -> str:
    """The blob's hash, which becomes a file name, when it is one."""
    if not _is_sha256(blob.sha256):
        raise ValueError(f"{blob.sha256[:80]!r} is no SHA-256")
    return blob.sha256


def _is_sha256(text: str) -> bool:
    return len(text) == 64 and set(text) <= set("0123456789abcdef")
