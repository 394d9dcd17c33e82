"""The process that trains what the market plans for one node.

Threads: the main one waits for signals; ``plan-puller`` asks the market, ``plans`` is the Celery
worker, ``node`` owns all slices, ``training`` is the runtime's loop, ``heartbeat`` beats,
``questions`` and ``answers`` take and send what owners ask their models, small pools fetch and
send. Importing this module imports torch, which takes seconds.
"""

from __future__ import annotations

import logging
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType

from workers.node.answerer import Answerer
from workers.node.blob_cache import BlobCache
from workers.node.credentials import Credentials, StateDir, save_credentials
from workers.node.heartbeats import Heartbeats
from workers.node.kept_jobs import BLOBS
from workers.node.leaving import forget_owners
from workers.node.market_client import MarketClient
from workers.node.plan_receiver import PlanReceiver
from workers.node.process import EXIT_OK, EXIT_SENT_AWAY, EXIT_UNUSABLE
from workers.node.self_test import measure_memory_used_gb
from workers.node.slice_loop import SliceLoop
from workers.runtime.node_runtime import NodeRuntime
from workers.training.faults import TrainingFault

log = logging.getLogger(__name__)

#: Checkpoints of jobs that never came back are kept this long.
_WORK_KEPT_S = 24 * 3600
#: Seconds between two looks for data sets that have been kept long enough.
_SWEEP_EVERY_S = 3600.0


class NodeProcess:
    """The parts of a running node, wired together."""

    def __init__(
        self,
        credentials: Credentials,
        state: StateDir,
        *,
        grace_s: float,
        cache_days: float,
        began_s: float,
        gang_devices: Sequence[str] = (),
    ) -> None:
        self._credentials = credentials
        self._state = state
        self._grace_s = grace_s
        #: When the process began, by the monotonic clock.
        self._began_s = began_s
        self._stop_asked = threading.Event()
        #: Set by the signal that asks for an update.
        self.update_asked = False
        #: Once set, no call to the market waits or starts.
        self._stopping = threading.Event()
        remove_leftovers(state)
        self._client = MarketClient(
            credentials.market_url, token=credentials.api_token, stopping=self._stopping
        )
        self._runtime = NodeRuntime(
            device=credentials.device,
            cache_dir=state.work,
            memory_limit_gb=credentials.memory_gb,
            gang_devices=gang_devices,
        )
        self._cache = BlobCache(state.cache, self._client, kept_days=cache_days)
        self._node = SliceLoop(
            node_id=credentials.node_id,
            client=self._client,
            runtime=self._runtime,
            cache=self._cache,
            work=state.work,
            outbox=state.outbox,
            keepalive_s=min(10.0, credentials.heartbeat_every_s),
        )
        self._heartbeats = Heartbeats(
            node=self._node,
            client=self._client,
            every_s=credentials.heartbeat_every_s,
            memory_used_gb=lambda: measure_memory_used_gb(credentials.device),
            heard=state.heard,
        )
        self._answers = Answerer(
            node_id=credentials.node_id,
            runtime=self._runtime,
            cache=self._cache,
            client=self._client,
        )
        self._plans = PlanReceiver(
            credentials,
            self._client,
            offer=self._node.offer,
            refused=self._node.refused,
            rotated=self._keep_token,
        )

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        # Base models are loaded before the first plan, not while a slot runs.
        try:
            for base in self._credentials.base_models:
                self._runtime.resident(base)
        except TrainingFault as fault:
            print(fault, file=sys.stderr)
            self._runtime.close()
            self._client.close()
            return EXIT_UNUSABLE
        self._heartbeats.load_s = time.monotonic() - self._began_s
        self._node.start()
        self._heartbeats.start()
        self._plans.start()
        self._answers.start()
        log.info("node %s is ready", self._credentials.node_id)
        sweep_at = time.monotonic()
        while not (
            self._stop_asked.wait(0.5)
            or self._node.finished.is_set()
            or self._runtime.device_lost.is_set()
        ):
            if time.monotonic() >= sweep_at:
                self._cache.sweep()
                sweep_at = time.monotonic() + _SWEEP_EVERY_S
        is_device_lost = self._runtime.device_lost.is_set()
        if is_device_lost:
            log.error("the device failed; this process ends, and a new one can use it again")
        if self._stop_asked.is_set() or is_device_lost:
            self._hand_over()
        status = self._close()
        return EXIT_UNUSABLE if is_device_lost and status == EXIT_OK else status

    def _keep_token(self, token: str) -> None:
        self._credentials = replace(self._credentials, api_token=token)
        save_credentials(self._state, self._credentials)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._stop_asked.is_set():
            # A second one: do not wait for anything.
            self._stopping.set()
        self.update_asked = self.update_asked or number == signal.SIGHUP
        self._stop_asked.set()

    def _hand_over(self) -> None:
        """Checkpoint every job and send what is there, within the grace."""
        log.info("stopping; handing over jobs")
        self._node.drain()
        ends_at = time.monotonic() + self._grace_s
        while time.monotonic() < ends_at and not self._stopping.is_set():
            if self._node.finished.wait(0.2):
                return
        log.warning("not everything was sent; checkpoints stay on this disk")

    def _close(self) -> int:
        self._plans.close()
        self._answers.close()
        self._heartbeats.close()
        refusal = self._node.refusal
        if refusal is None and not self._stop_asked.is_set():
            # The market asked this node to leave, and nothing is left to do.
            self._heartbeats.beat()
        self._stopping.set()
        self._node.close()
        self._runtime.close()
        self._client.close()
        if self._node.leaves and self._node.finished.is_set():
            forget_owners(self._state)
        if refusal is not None:
            print(f"The market does not accept this node: {refusal}", file=sys.stderr)
            return EXIT_SENT_AWAY
        log.info("stopped")
        return EXIT_OK


def remove_leftovers(state: StateDir) -> None:
    """Remove what an earlier process left that is no longer of use."""
    if state.leaving.exists():
        forget_owners(state)
        state.prepare()
    shutil.rmtree(state.outbox, ignore_errors=True)
    oldest = time.time() - _WORK_KEPT_S
    for folder in state.work.iterdir():
        # a check or an export does not go on, and no heartbeat names it
        if folder.stat().st_mtime < oldest or not (folder / BLOBS).exists():
            shutil.rmtree(folder, ignore_errors=True)
