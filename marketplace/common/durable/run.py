"""Doing what is due: take, load, do, and apply under the lease.

A worker may die at any point. Its lease then runs out and another worker begins again, so ``do``
may run twice. What a worker finds whose lease was taken over is not stored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

from django.db import transaction

from marketplace.common.durable.kinds import Failure, HeldWork, WorkFailed, WorkKind
from marketplace.common.durable.locks import lock_held_work, put_off_work, take_due_work
from marketplace.common.errors import StorageUnavailable
from marketplace.common.models import DurableWork, WorkState

log = logging.getLogger(__name__)

_THREADS = 8
_ERROR_CHARS = 500
_OUR_FAULT = "The market failed. The fault is ours."


class WorkerLost(Exception):
    """The worker of the last attempt did not come to its end."""


def run_due_work(kind: WorkKind, *, clock: Callable[[], datetime], key: str | None = None) -> int:
    """Do a batch of what is due of a kind, or the piece with a key; how many pieces were taken.

    Call outside of any transaction.
    """
    taken = take_due_work(kind, key=key, now=clock())
    loaded = [(work, found) for work in taken if (found := _load(kind, work, clock)) is not None]
    if kind.batch == 1:
        ends = [_do(kind, *each) for each in loaded]
    else:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix=kind.name) as pool:
            ends = list(pool.map(lambda each: _do(kind, *each), loaded))
    for (work, found), (result, error) in zip(loaded, ends, strict=True):
        if error is None:
            error = _apply(kind, work, found, result, now=clock())
        if error is not None:
            _record_failure(kind, work, error, now=clock())
    return len(taken)


def _load(kind: WorkKind, work: HeldWork, clock: Callable[[], datetime]) -> Any:
    """What the work needs; ``None`` where it ends here."""
    try:
        if work.follows_lost and kind.backoff(work.attempt - 1) is None:
            raise WorkerLost("The worker of the last attempt died.")
        with transaction.atomic(durable=True):
            found = kind.load(work)
            if found is None and (row := lock_held_work(work)) is not None:
                row.delete()
    except Exception as error:
        _record_failure(kind, work, error, now=clock())
        return None
    return found


def _do(kind: WorkKind, work: HeldWork, loaded: Any) -> tuple[Any, Exception | None]:
    try:
        return kind.do(work, loaded), None
    except Exception as error:
        return None, error


def _apply(
    kind: WorkKind, work: HeldWork, loaded: Any, result: Any, *, now: datetime
) -> Exception | None:
    try:
        with transaction.atomic(durable=True):
            row = lock_held_work(work)
            if row is None:
                log.warning("%s %s took longer than its lease", work.kind, work.key)
                kind.discard(result)
                return None
            again_at = kind.apply(work, loaded, result, now=now)
            if again_at is None:
                row.delete()
            else:
                row.attempts = 0
                _give_back(row, due_at=again_at, error="")
    except Exception as error:
        return _find_unstored(kind, work, result, error)
    return None


def _find_unstored(
    kind: WorkKind, work: HeldWork, result: Any, error: Exception
) -> Exception | None:
    """The error of work that was not stored: it may also follow a commit whose answer was lost."""
    try:
        with transaction.atomic(durable=True):
            is_held = lock_held_work(work) is not None
    except Exception:
        # Nothing is known, so nothing is deleted. If it was not stored, its lease runs out.
        log.exception("whether %s %s was stored is not known", work.kind, work.key)
        return None
    if not is_held:
        log.warning("%s %s was stored before an error", work.kind, work.key, exc_info=error)
        return None
    kind.discard(result)
    return error


def _record_failure(kind: WorkKind, work: HeldWork, error: Exception, *, now: datetime) -> None:
    """Store a failed attempt. Failures of ours stay for the operator when nothing more is tried."""
    is_told = isinstance(error, WorkFailed)
    wait = None if isinstance(error, WorkFailed) and error.is_final else kind.backoff(work.attempt)
    retry_at = None if wait is None else now + wait
    if not is_told:
        log.error("%s %s failed", work.kind, work.key, exc_info=error)
    failure = Failure(str(error) if is_told else _OUR_FAULT, error, retry_at)
    try:
        with transaction.atomic(durable=True):
            row = lock_held_work(work)
            if row is None:
                return
            kind.fail(work, failure, now=now)
            if retry_at is None and is_told:
                row.delete()
                return
            row.state = WorkState.FAILED if retry_at is None else WorkState.WAITING
            text = str(error) if is_told else f"{type(error).__name__}: {error}"
            _give_back(row, due_at=retry_at or now, error=text)
            if isinstance(error, StorageUnavailable) and retry_at is not None:
                # Each of the others would wait for an answer, one after the other. They come before
                # this one again: it may be the only piece that is refused.
                put_off_work(kind.name, until=now + (kind.backoff(1) or kind.lease), now=now)
    except Exception:
        # Its lease runs out, and another worker tries.
        log.exception("the failure of %s %s could not be stored", work.kind, work.key)


def _give_back(row: DurableWork, *, due_at: datetime, error: str) -> None:
    row.due_at, row.lease_token, row.lease_until = due_at, "", None
    row.last_error = error.replace("\0", "")[:_ERROR_CHARS]
    row.save()
