"""Getting a job onto the device: its data, the state to go on from, the runtime."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from workers.node.blob_cache import BlobCache, DiskFullError
from workers.node.market_client import MarketError, MarketRefusal, ShuttingDownError
from workers.node.sender import LEASE_LOST
from workers.protocol.blobs import hash_file
from workers.protocol.job_spec import CheckpointRef, JobSpec, PromptLookup
from workers.protocol.messages import SliceSpec
from workers.protocol.probes import ProbeResult, ProbeTask
from workers.protocol.reports import Fault
from workers.runtime.checkpoint_pipe import format_checkpoint_name
from workers.runtime.job_sink import JobSink
from workers.training.faults import SystemFault, UserFault

log = logging.getLogger(__name__)


class Runtime(Protocol):
    """What the node needs of ``workers.runtime.node_runtime.NodeRuntime``."""

    def attach(
        self,
        *,
        job: JobSpec,
        data_path: Path,
        validation_path: Path | None,
        checkpoint_paths: Sequence[Path],
        start_path: Path | None,
        prompts_path: Path | None,
        sink: JobSink,
        pause_at: int | None = None,
    ) -> None: ...

    def detach(self, job_id: str, *, checkpoint: bool, may_end: bool = False) -> None: ...

    def probe(
        self, probe: ProbeTask, paths: Mapping[str, Path], *, expires_at: float
    ) -> ProbeResult: ...


class PreparationError(Exception):
    """A job could not be started; the text is for its owner."""

    def __init__(self, fault: Fault, reason: str, *, lease_lost: bool = False) -> None:
        super().__init__(reason)
        self.fault = fault
        #: The market does not give its files under this lease any more.
        self.lease_lost = lease_lost


class Preparer:
    """Used from the threads of a pool.

    Parameters
    ----------
    work : Path
        The runtime's folder, whose files may be those that the market names.
    """

    def __init__(self, *, runtime: Runtime, cache: BlobCache, work: Path) -> None:
        self._runtime = runtime
        self._cache = cache
        self._work = work

    def prepare(self, spec: SliceSpec, *, sink: JobSink) -> None:
        """Fetch what the slice needs and attach its job.

        Raises
        ------
        PreparationError
            With whose fault it is.
        ShuttingDownError
            The node is shutting down.
        """
        try:
            self._attach(spec, sink)
        except ShuttingDownError:
            raise
        except UserFault as fault:
            raise PreparationError(Fault.USER, str(fault)) from fault
        except MarketRefusal as refusal:
            lost = refusal.status in LEASE_LOST
            raise PreparationError(Fault.SYSTEM, str(refusal), lease_lost=lost) from refusal
        except (SystemFault, MarketError, DiskFullError) as fault:
            raise PreparationError(Fault.SYSTEM, str(fault)) from fault
        # Whatever else goes wrong is this node's fault, and must not leave the slice hanging.
        except Exception as error:
            log.exception("%s could not be started", spec.job.job_id)
            reason = f"The node could not start the job: {error}."
            raise PreparationError(Fault.SYSTEM, reason) from error

    def _attach(self, spec: SliceSpec, sink: JobSink) -> None:
        job = spec.job
        with contextlib.ExitStack() as stack:
            data = stack.enter_context(self._cache.opened(job.dataset))
            validation = None
            if job.validation_dataset is not None:
                validation = stack.enter_context(self._cache.opened(job.validation_dataset))
            checkpoints = []
            if spec.resume_from is not None:
                own = self._find_own_copy(job.job_id, spec.resume_from)
                blob = spec.resume_from.blob
                checkpoints = [own or stack.enter_context(self._cache.opened(blob))]
            start = None
            if job.warm_start is not None:
                start = stack.enter_context(self._cache.opened(job.warm_start.adapter))
            prompts = None
            if job.lookup is not None and spec.resume_from is None:
                prompts = self._open_prompts(stack, job.lookup)
            self._runtime.attach(
                job=job,
                data_path=data,
                validation_path=validation,
                checkpoint_paths=checkpoints,
                start_path=start,
                prompts_path=prompts,
                sink=sink,
            )

    def _open_prompts(self, stack: contextlib.ExitStack, lookup: PromptLookup) -> Path | None:
        """The candidates of a lookup; nothing where one was withdrawn meanwhile: a job can start
        without."""
        try:
            return stack.enter_context(self._cache.opened(lookup.prompts))
        except MarketRefusal as refusal:
            if refusal.status != 404:
                raise
            log.warning("a lookup is left out: %s", refusal)
            return None

    def _find_own_copy(self, job_id: str, wanted: CheckpointRef) -> Path | None:
        """The market's checkpoint where this disk has the same file, which spares a download.

        Never a later one: the market may have set it aside.
        """
        path = self._work / job_id / format_checkpoint_name(wanted.step)
        try:
            same = path.stat().st_size == wanted.blob.bytes
            return path if same and hash_file(path) == wanted.blob.sha256 else None
        except OSError:
            return None
