"""What jobs leave on this machine's disk, so that it goes once the market has closed them."""

from __future__ import annotations

import json
import logging
import shutil
from contextlib import suppress
from pathlib import Path

from workers.node.blob_cache import BlobCache
from workers.protocol.messages import KEPT_JOBS_MOST, SliceSpec

log = logging.getLogger(__name__)

#: In the folder of each job that may come back: the hashes of what it was fed with.
BLOBS = "blobs.json"


class KeptJobs:
    """Jobs that were here and may come back: their folders, and the files that they were fed with.

    Parameters
    ----------
    work : Path
        The runtime's folder, with one of its own for each job.
    """

    def __init__(self, *, work: Path, cache: BlobCache) -> None:
        self._work = work
        self._cache = cache

    def note(self, spec: SliceSpec) -> None:
        """Write down which files a slice is fed with."""
        job = spec.job
        blobs = [
            *(job.dataset, job.validation_dataset),
            spec.resume_from and spec.resume_from.blob,
            job.warm_start and job.warm_start.adapter,
            job.lookup and job.lookup.prompts,
        ]
        used = self._read(job.job_id) | {blob.sha256 for blob in blobs if blob is not None}
        path = self._work / job.job_id / BLOBS
        try:
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(sorted(used)))
        except OSError as error:
            # The job still runs; what it leaves here is swept once it is old.
            log.warning("%s: its files were not written down: %s", job.job_id, error)

    def list(self) -> tuple[str, ...]:
        """The jobs, those that changed longest ago first."""
        found: list[tuple[float, str]] = []
        for path in self._work.glob(f"*/{BLOBS}"):
            # another thread may have deleted it just now
            with suppress(OSError):
                found.append((path.parent.stat().st_mtime, path.parent.name))
        return tuple(name for _, name in sorted(found)[:KEPT_JOBS_MOST])

    def forget(self, job_id: str) -> None:
        """Delete a job's folder, and its files that no other job here needs."""
        used = self._read(job_id)
        shutil.rmtree(self._work / job_id, ignore_errors=True)
        for other in self.list():
            used -= self._read(other)
        self._cache.forget(used)

    def _read(self, job_id: str) -> set[str]:
        try:
            return set(json.loads((self._work / job_id / BLOBS).read_text()))
        # the process may have ended while it wrote; what is old is swept anyway
        except (OSError, ValueError):
            return set()
