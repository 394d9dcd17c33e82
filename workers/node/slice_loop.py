"""The node: takes plans, keeps the runtime in line with them, and tells the market.

One thread owns every slice and decides everything; what takes long (fetching, attaching,
sending) runs on pools and comes back as a call on that thread. So no state needs a lock,
and a plan that arrives twice, late or out of order is simply compared with what is.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue

from workers.node.blob_cache import BlobCache
from workers.node.checker import Checker, FaultChecker
from workers.node.errands import ErrandRunner
from workers.node.exporter import Exporter
from workers.node.kept_jobs import KeptJobs
from workers.node.market_client import MarketClient, ShuttingDownError
from workers.node.preparer import PreparationError, Preparer, Runtime
from workers.node.prober import Prober
from workers.node.sender import Sender, build_slice_result
from workers.node.slice_run import SliceRun, SliceState
from workers.node.slice_sink import SliceSink
from workers.node.upload_files import link_or_copy
from workers.protocol.errands import CHECK, EXPORT, FAULT, PROBE
from workers.protocol.joining import PROTOCOL_LEAST
from workers.protocol.messages import PROTOCOL_VERSION, HeartbeatReply, SliceSpec, SlotPlan
from workers.protocol.reports import Fault, ProgressReply, SliceEnd
from workers.runtime.job_sink import JobSummary

log = logging.getLogger(__name__)

#: Names a folder on this node, so nothing that could lead out of it.
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
#: Of what is left of a lease, the share that a job about to end has; the rest is for sending it.
ENDING_SHARE = 0.8
#: Seconds between two looks at clocks and buffers; at most two reports a second per job.
TICK_S = 0.5


class SliceLoop:
    """The slices of one node. ``offer`` and ``heard`` may be called from any thread."""

    def __init__(
        self,
        *,
        node_id: str,
        client: MarketClient,
        runtime: Runtime,
        cache: BlobCache,
        work: Path,
        outbox: Path,
        keepalive_s: float = 10.0,
    ) -> None:
        self.node_id = node_id
        self._client = client
        self._runtime = runtime
        self._cache = cache
        self._preparer = Preparer(runtime=runtime, cache=cache, work=work)
        #: What is on the disk of jobs that were here.
        self.kept = KeptJobs(work=work, cache=cache)
        self._outbox = outbox
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._preparing = ThreadPoolExecutor(2, thread_name_prefix="prepare")
        self._errands = ErrandRunner(
            handlers={
                PROBE: Prober(runtime=runtime, cache=cache),
                CHECK: Checker(runtime=runtime, cache=cache, client=client, work=work),
                FAULT: FaultChecker(runtime=runtime, cache=cache, client=client, work=work),
                EXPORT: Exporter(cache=cache, client=client, work=work),
            },
            client=client,
        )
        self._sender = Sender(
            client=client,
            post=self._inbox.put,
            keepalive_s=keepalive_s,
            answered=self._answered,
            lost=self._drop,
            closed=self._closed,
            refused=self._give_up,
        )
        #: Not closed, by lease token.
        self._slices: dict[str, SliceRun] = {}
        #: Slices that begin once the job's earlier one is off the device.
        self._next: dict[str, SliceSpec] = {}
        self._plan_at: tuple[int, int] = (-1, -1)
        self._draining = False
        self._stopping = False
        self._refused: str | None = None
        #: The market had it leave for good.
        self.leaves = False
        #: Set when nothing is left to do for a node that drains or stops.
        self.finished = threading.Event()
        self._thread = threading.Thread(target=self._run, name="node", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def offer(self, plan: SlotPlan) -> None:
        """Take a plan; returns at once."""
        self._inbox.put(lambda: self._apply(plan))

    def heard(self, reply: HeartbeatReply) -> None:
        """Take the market's answer to a heartbeat."""
        self._inbox.put(lambda: self._apply_heartbeat_reply(reply))

    def refused(self, reason: str, *, for_good: bool = True) -> None:
        """The market does not know this node's token any more, or has this process go: stop."""
        self._inbox.put(lambda: self._give_up(reason, for_good=for_good))

    def drain(self) -> None:
        """Checkpoint and hand back every job; ``finished`` is set when all is sent."""
        self._inbox.put(self._stop_all)

    def close(self) -> None:
        """Stop now; what was not sent is lost, but for checkpoints on the disk.

        Have the client stop first, or this waits for its patience.
        """
        self._stopping = True
        self._inbox.put(lambda: None)
        if self._thread.ident is not None:
            self._thread.join()
        self._preparing.shutdown(cancel_futures=True)
        self._errands.close()
        self._sender.close()

    @property
    def refusal(self) -> str | None:
        """Why the market sent the node away; ``None`` while it has not."""
        return self._refused

    @property
    def draining(self) -> bool:
        return self._draining

    def leases(self) -> tuple[str, ...]:
        """Tokens of the leases the node holds."""
        return tuple(token for token, run in list(self._slices.items()) if not run.lost)

    # Everything below runs on the node's thread.

    def _run(self) -> None:
        tick_at = time.monotonic()
        while not self._stopping:
            with contextlib.suppress(Empty):
                self._inbox.get(timeout=max(0.0, tick_at - time.monotonic()))()
            if time.monotonic() >= tick_at:
                tick_at = time.monotonic() + TICK_S
                self._tick()

    def _tick(self) -> None:
        now = self._client.market_time()
        for run in list(self._slices.values()):
            if run.on_device and run.is_over(now) and not run.stops_at_once:
                log.warning("the time of %s on this node is over", run.job_id)
                self._stop(run)
            self._sender.pump(run)
        for job_id in list(self._next):
            self._begin_next(job_id)
        if self._draining and not self._slices and not self._next:
            self.finished.set()

    def _apply(self, plan: SlotPlan) -> None:
        """Bring the slices in line with a plan."""
        speaks = PROTOCOL_LEAST <= plan.version <= PROTOCOL_VERSION
        if not speaks or plan.node_id != self.node_id:
            log.error("a plan for %s, version %s, is not ours", plan.node_id, plan.version)
            return
        if plan.ends_at <= self._client.market_time():
            log.info("the plan of slot %s came too late", plan.slot)
            return
        if (plan.slot, plan.revision) < self._plan_at:
            log.info("the plan of slot %s, revision %s, is old", plan.slot, plan.revision)
            return
        self._plan_at = (plan.slot, plan.revision)
        wanted = {spec.job.job_id: spec for spec in plan.slices}
        for job_id in [job_id for job_id in self._next if job_id not in wanted]:
            del self._next[job_id]
        for run in list(self._slices.values()):
            if run.on_device and run.job_id not in wanted:
                self._stop(run, may_end=True)
        if self._draining:
            return
        for spec in wanted.values():
            self._want(spec)
        for errand in plan.errands:
            self._errands.take(errand)

    def _want(self, spec: SliceSpec) -> None:
        """Have a slice of the plan run, going on with what there is of its job."""
        job_id = spec.job.job_id
        if not _JOB_ID.fullmatch(job_id):
            log.error("%r does not name a job", job_id[:80])
            return
        same = self._slices.get(spec.lease_token)
        if same is not None:
            same.lease_expires_at = max(same.lease_expires_at, spec.lease_expires_at)
            return
        if spec.lease_expires_at <= self._client.market_time():
            log.info("the lease of %s is over already", job_id)
            return
        for run in self._of_job(job_id):
            finished = run.outbox.result is not None and (
                run.outbox.result.status is SliceEnd.FINISHED
            )
            running = run.state in (SliceState.PREPARING, SliceState.RUNNING)
            if finished or (running and not run.stop_wanted):
                log.info("%s goes on under a new lease", job_id)
                del self._slices[run.token]
                run.adopt(spec)
                self._slices[run.token] = run
                return
        self._next[job_id] = spec
        self._begin_next(job_id)

    def _begin_next(self, job_id: str) -> None:
        if any(run.on_device for run in self._of_job(job_id)):
            return
        spec = self._next.pop(job_id)
        run = SliceRun(spec=spec, lease_expires_at=spec.lease_expires_at)
        run.stored_step = spec.resume_from.step if spec.resume_from else 0
        self._slices[run.token] = run
        # its data stays while it is here: a move back or a second try reads it again
        self._cache.hold(spec.job.dataset, spec.job.validation_dataset)
        self.kept.note(spec)
        log.info("%s begins", job_id)
        self._preparing.submit(self._prepare, run)

    def _of_job(self, job_id: str) -> list[SliceRun]:
        return [run for run in self._slices.values() if run.job_id == job_id]

    def _prepare(self, run: SliceRun) -> None:
        """On a pool's thread."""
        spec = run.spec
        try:
            self._preparer.prepare(spec, sink=self._sink(run))
        except ShuttingDownError:
            return
        except PreparationError as failure:
            self._inbox.put(partial(self._not_prepared, run, spec, failure))
        else:
            self._inbox.put(partial(self._attached, run))

    def _sink(self, run: SliceRun) -> SliceSink:
        return SliceSink(
            run, put=self._inbox.put, checkpointed=self._checkpointed, ended=self._ended
        )

    def _not_prepared(self, run: SliceRun, spec: SliceSpec, failure: PreparationError) -> None:
        log.warning("%s did not start: %s", run.job_id, failure)
        if run.state is not SliceState.PREPARING:
            return
        if failure.lease_lost and run.token != spec.lease_token and not run.lost:
            # Only the lease it began under is gone.
            self._preparing.submit(self._prepare, run)
            return
        run.lost = run.lost or failure.lease_lost
        summary = JobSummary(
            job_id=run.job_id, step=run.stored_step, total_steps=run.stored_step, samples_done=0
        )
        self._ended(run, SliceEnd.FAILED, summary, fault=failure.fault, reason=str(failure))

    def _attached(self, run: SliceRun) -> None:
        if run.state is SliceState.PREPARING:
            run.enter(SliceState.RUNNING)
        if run.stop_wanted and run.state is SliceState.RUNNING:
            self._detach(run)

    def _stop(self, run: SliceRun, *, may_end: bool = False) -> None:
        """Take a job off the device; its checkpoint goes to the market unless the lease is lost.

        One that ``may_end`` and has done its last step is left most of what its lease still lasts
        for its last evaluation, samples and adapter: elsewhere it would begin them again.
        """
        if not run.on_device or run.stops_at_once or (run.stop_wanted and may_end):
            return
        now = self._client.market_time()
        left_s = run.lease_expires_at - now if may_end else 0.0
        run.stop_wanted, run.leave_at = True, now + ENDING_SHARE * left_s
        run.stops_at_once = not may_end
        if run.state is not SliceState.PREPARING:
            self._detach(run)

    def _detach(self, run: SliceRun) -> None:
        if run.state is SliceState.RUNNING:
            run.enter(SliceState.STOPPING)
        self._runtime.detach(run.job_id, checkpoint=not run.lost, may_end=not run.stops_at_once)
        if run.lost:
            # A job dropped without a checkpoint tells its sink nothing more.
            run.enter(SliceState.CLOSED)
            self._forget(run)

    def _drop(self, run: SliceRun) -> None:
        """The market took the lease back: stop at once and send nothing."""
        if run.lost:
            return
        log.info("the lease of %s was taken back", run.job_id)
        run.lost = True
        if run.state is SliceState.SENDING:
            run.enter(SliceState.CLOSED)
            self._forget(run)
        else:
            self._stop(run)

    def _apply_heartbeat_reply(self, reply: HeartbeatReply) -> None:
        for token in self._slices.keys() & reply.revoked:
            self._drop(self._slices[token])
        for job_id in reply.closed_jobs:
            is_here = job_id in self._next or self._of_job(job_id)
            if _JOB_ID.fullmatch(job_id) and not is_here:
                self.kept.forget(job_id)
        if reply.drain and not self.leaves:
            log.info("the market asks this node to leave once its jobs are done")
            self.leaves = self._draining = True
            self._next.clear()

    def _stop_all(self) -> None:
        self._draining = True
        self._next.clear()
        for run in list(self._slices.values()):
            self._stop(run)

    def _give_up(self, reason: str, *, for_good: bool = True) -> None:
        self._refused, self.leaves = reason, self.leaves or for_good
        self._draining = True
        self._next.clear()
        for run in list(self._slices.values()):
            self._drop(run)
        self.finished.set()

    def _answered(self, run: SliceRun, reply: ProgressReply) -> None:
        """The market's answer to a report."""
        if not reply.keep_running:
            self._drop(run)
            return
        if reply.lease_expires_at is not None:
            run.lease_expires_at = reply.lease_expires_at
        if reply.checkpoint_and_stop:
            self._stop(run, may_end=True)

    def _ended(
        self,
        run: SliceRun,
        status: SliceEnd,
        summary: JobSummary,
        *,
        fault: Fault | None = None,
        reason: str = "",
        adapter_dir: Path | None = None,
    ) -> None:
        """The runtime is done with a job: queue what it leaves for the market."""
        if run.state in (SliceState.SENDING, SliceState.CLOSED):
            return
        if run.lost:
            run.enter(SliceState.CLOSED)
            self._forget(run)
            return
        run.enter(SliceState.SENDING)
        run.outbox.result = build_slice_result(
            run.token, status, summary, fault=fault, reason=reason
        )
        run.outbox.adapter_dir = adapter_dir
        if status is SliceEnd.FINISHED:
            run.outbox.drop_checkpoint()
        self._sender.pump(run)

    def _checkpointed(self, run: SliceRun, path: Path, step: int) -> None:
        if run.lost or run.state is SliceState.CLOSED or step <= run.stored_step:
            return
        try:
            copy = link_or_copy(path, self._outbox, name=f"{run.job_id}-{step:08d}.safetensors")
        except OSError as error:
            log.warning("a checkpoint of %s cannot be sent: %s", run.job_id, error)
            return
        run.outbox.put_checkpoint(copy, step)
        self._sender.pump(run)

    def _closed(self, run: SliceRun) -> None:
        """The market has the result."""
        result = run.outbox.result
        if run.state is not SliceState.CLOSED:
            run.enter(SliceState.CLOSED)
        self._forget(run)
        if result is not None and result.status is SliceEnd.FINISHED:
            self.kept.forget(run.job_id)

    def _forget(self, run: SliceRun) -> None:
        if self._slices.pop(run.token, None) is not None:
            self._cache.release(run.spec.job.dataset, run.spec.job.validation_dataset)
        run.outbox.drop_checkpoint()
