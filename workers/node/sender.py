"""What leaves the node: reports twice a second, files and results in order.

``pump`` is called on the node's thread and starts at most one report and one upload for
a slice at a time; their outcome comes back as a call on that thread. What the market
could not take is tried again, ever more slowly, for as long as the slice is not closed.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

from workers.node.market_client import (
    MarketClient,
    MarketRefusal,
    MarketUnreachableError,
    Patience,
    ShuttingDownError,
)
from workers.node.slice_run import SliceRun, SliceState
from workers.node.upload_files import discard
from workers.protocol.adapter_check import WEIGHTS_NAME
from workers.protocol.messages import PATH_ADAPTER, PATH_CHECKPOINT, PATH_PROGRESS, PATH_RESULT
from workers.protocol.reports import (
    Fault,
    JobFigures,
    ProgressEvent,
    ProgressReply,
    ProgressReport,
    SliceEnd,
    SliceResult,
)
from workers.runtime.job_sink import JobSummary

log = logging.getLogger(__name__)

#: Answers by which the market says that a lease is not ours any more.
LEASE_LOST = frozenset({403, 404, 409, 410})
#: What the market keeps of a reason.
_REASON_CHARS = 1000
#: Seconds between two reports of a job.
_REPORT_EVERY_S = 0.5
_LONGEST_PAUSE_S = 15.0
#: One try; the next one is the pump's decision.
_ONCE = Patience(total_s=0.0)

Call = Callable[[], None]


class Sender:
    """Sends for all slices of a node."""

    def __init__(
        self,
        *,
        client: MarketClient,
        post: Callable[[Call], None],
        keepalive_s: float,
        answered: Callable[[SliceRun, ProgressReply], None],
        lost: Callable[[SliceRun], None],
        closed: Callable[[SliceRun], None],
        refused: Callable[[str], None],
    ) -> None:
        self._client = client
        #: Runs a call on the node's thread.
        self._post = post
        #: A silent job's lease is renewed by an empty report this often.
        self._keepalive_s = keepalive_s
        self._answered = answered
        self._lost = lost
        self._closed = closed
        self._refused = refused
        self._reports = ThreadPoolExecutor(4, thread_name_prefix="report")
        self._uploads = ThreadPoolExecutor(2, thread_name_prefix="upload")

    def close(self) -> None:
        self._reports.shutdown(cancel_futures=True)
        self._uploads.shutdown(cancel_futures=True)

    def pump(self, run: SliceRun) -> None:
        """Start whatever of this slice can be sent now."""
        if run.lost or run.state is SliceState.CLOSED:
            return
        self._pump_progress(run)
        self._pump_outbox(run)

    def _pump_progress(self, run: SliceRun) -> None:
        buffer, now = run.progress, time.monotonic()
        if buffer.busy or now < buffer.not_before:
            return
        silent_for = now - buffer.reported_at
        if buffer.empty and not (run.on_device and silent_for >= self._keepalive_s):
            return
        if silent_for < _REPORT_EVERY_S and run.on_device:
            return
        buffer.busy = True
        buffer.reported_at = now
        events = tuple(_finite_event(event) for event in buffer.batch())
        report = ProgressReport(lease_token=run.token, events=events)
        self._reports.submit(self._report, run, report)

    def _report(self, run: SliceRun, report: ProgressReport) -> None:
        try:
            reply = self._client.post(PATH_PROGRESS, report, ProgressReply, patience=_ONCE)
        except ShuttingDownError:
            return
        except MarketUnreachableError as error:
            log.info("a report of %s waits: %s", run.job_id, error)
            self._post(partial(self._report_failed, run))
        except MarketRefusal as refusal:
            self._post(partial(self._report_refused, run, report, refusal))
        # A report must never be stuck as busy.
        except Exception:
            log.exception("a report of %s failed", run.job_id)
            self._post(partial(self._report_failed, run))
        else:
            self._post(partial(self._report_answered, run, report, reply))

    def _report_answered(self, run: SliceRun, report: ProgressReport, reply: ProgressReply) -> None:
        if run.token != report.lease_token:
            run.progress.busy = False
            return
        run.progress.busy = False
        run.progress.confirmed(last_seq=reply.last_seq)
        self._answered(run, reply)
        self.pump(run)

    def _report_failed(self, run: SliceRun) -> None:
        buffer = run.progress
        buffer.busy = False
        buffer.tries += 1
        buffer.not_before = time.monotonic() + _pause(buffer.tries)

    def _report_refused(
        self, run: SliceRun, report: ProgressReport, refusal: MarketRefusal
    ) -> None:
        run.progress.busy = False
        if refusal.status == 401:
            self._refused(str(refusal))
        elif run.token != report.lease_token:
            return
        elif refusal.status in LEASE_LOST:
            self._lost(run)
        else:
            log.error("a report of %s was refused: %s", run.job_id, refusal)
            run.progress.confirmed(last_seq=0)

    def _pump_outbox(self, run: SliceRun) -> None:
        box = run.outbox
        if box.busy or time.monotonic() < box.not_before:
            return
        if box.checkpoint is not None:
            path, step = box.checkpoint
            box.sending = path
            send = self._checkpoint_send(run.token, path, step)
            done = self._checkpoint_done(run, path, step)
        elif run.state is not SliceState.SENDING or not run.progress.empty:
            return
        elif box.adapter_dir is not None:
            send = self._adapter_send(run.token, box.adapter_dir)
            done = self._adapter_done(run)
        elif box.result is not None:
            send = self._result_send(run)
            done = self._result_done(run)
        else:
            return
        box.busy = True
        self._uploads.submit(self._upload, run, run.token, send, done)

    def _upload(self, run: SliceRun, token: str, send: Call, done: Call) -> None:
        try:
            send()
        except ShuttingDownError:
            return
        except MarketUnreachableError as error:
            log.info("an upload of %s waits: %s", run.job_id, error)
            self._post(partial(self._upload_failed, run))
        except MarketRefusal as refusal:
            self._post(partial(self._upload_refused, run, token, refusal))
        except OSError as error:
            self._post(partial(self._upload_impossible, run, str(error)))
        # An upload must never be stuck as busy.
        except Exception as error:
            log.exception("an upload of %s failed", run.job_id)
            self._post(partial(self._upload_impossible, run, str(error)))
        else:
            self._post(partial(self._upload_done, run, token, done))

    def _upload_done(self, run: SliceRun, token: str, done: Call) -> None:
        self._not_busy(run)
        run.outbox.tries = 0
        if run.token == token and run.state is not SliceState.CLOSED:
            done()
        self.pump(run)

    def _upload_failed(self, run: SliceRun) -> None:
        box = run.outbox
        self._not_busy(run)
        box.tries += 1
        box.not_before = time.monotonic() + _pause(box.tries)

    def _upload_refused(self, run: SliceRun, token: str, refusal: MarketRefusal) -> None:
        if refusal.status == 401:
            self._not_busy(run)
            self._refused(str(refusal))
        elif run.token != token:
            self._not_busy(run)
            self.pump(run)
        elif refusal.status in LEASE_LOST:
            self._not_busy(run)
            self._lost(run)
        else:
            self._upload_impossible(run, str(refusal))

    def _upload_impossible(self, run: SliceRun, why: str) -> None:
        """A file cannot be sent at all: go on without it and say so."""
        log.error("an upload of %s is impossible: %s", run.job_id, why)
        box = run.outbox
        sending = box.sending
        self._not_busy(run)
        if sending is not None:
            discard(sending)
            if box.checkpoint is not None and box.checkpoint[0] == sending:
                box.checkpoint = None
        elif box.adapter_dir is not None and box.result is not None:
            box.adapter_dir = None
            box.result = replace(
                box.result,
                status=SliceEnd.FAILED,
                fault=Fault.SYSTEM,
                reason=f"The finished adapter could not be delivered: {why}"[:_REASON_CHARS],
            )
        else:
            # The market refuses the result itself; its sweep will end the lease.
            self._lost(run)
            return
        self.pump(run)

    def _not_busy(self, run: SliceRun) -> None:
        box = run.outbox
        newest = box.checkpoint[0] if box.checkpoint else None
        if box.sending is not None and box.sending != newest:
            discard(box.sending)
        box.sending = None
        box.busy = False

    def _checkpoint_send(self, token: str, path: Path, step: int) -> Call:
        url = PATH_CHECKPOINT.format(lease_token=token, step=step)
        return lambda: self._client.upload(url, path, patience=_ONCE)

    def _checkpoint_done(self, run: SliceRun, path: Path, step: int) -> Call:
        def done() -> None:
            run.stored_step = max(run.stored_step, step)
            if run.outbox.checkpoint == (path, step):
                run.outbox.checkpoint = None
            discard(path)

        return done

    def _adapter_send(self, token: str, directory: Path) -> Call:
        url = PATH_ADAPTER.format(lease_token=token)
        return lambda: self._client.upload(url, directory / WEIGHTS_NAME, patience=_ONCE)

    def _adapter_done(self, run: SliceRun) -> Call:
        def done() -> None:
            run.outbox.adapter_dir = None

        return done

    def _result_send(self, run: SliceRun) -> Call:
        assert run.outbox.result is not None
        result = replace(run.outbox.result, lease_token=run.token)
        return lambda: self._client.send(PATH_RESULT, result, patience=_ONCE)

    def _result_done(self, run: SliceRun) -> Call:
        return lambda: self._closed(run)


def build_slice_result(
    token: str,
    status: SliceEnd,
    summary: JobSummary,
    *,
    fault: Fault | None,
    reason: str,
) -> SliceResult:
    """A summary in the form the market takes."""
    figures = {field.name: getattr(summary, field.name) for field in fields(JobFigures)}
    figures |= {name: drop_nan(figures[name]) for name in _LOSSES}
    figures["outliers"] = tuple(row for row in summary.outliers if math.isfinite(row.loss))
    return SliceResult(
        lease_token=token, status=status, fault=fault, reason=reason[:_REASON_CHARS], **figures
    )


def _pause(tries: int) -> float:
    return min(_LONGEST_PAUSE_S, 0.25 * 2 ** min(tries, 10))


def drop_nan(value: float | None) -> float | None:
    """JSON has no NaN; a loss that is NaN is not sent."""
    return value if value is not None and math.isfinite(value) else None


def _finite_event(event: ProgressEvent) -> ProgressEvent:
    values = {name: drop_nan(getattr(event, name)) for name in _NUMBERS}
    return replace(event, **values)


_LOSSES = ("first_train_loss", "last_train_loss", "valid_loss_before", "valid_loss_after")
_NUMBERS = (
    *("train_loss", "valid_loss", "learning_rate", "grad_norm"),
    *("tokens_per_s", "samples_per_s", "eta_s", "memory_gb"),
)
