"""Telling the market that this node is alive, and hearing what it wants dropped."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from workers.node.market_client import (
    SENT_AWAY,
    MarketClient,
    MarketRefusal,
    MarketUnreachableError,
    Patience,
    ShuttingDownError,
)
from workers.node.slice_loop import SliceLoop
from workers.protocol.messages import PATH_HEARTBEAT, Heartbeat, HeartbeatReply

log = logging.getLogger(__name__)


class Heartbeats:
    """One message every ``every_s`` seconds, on a thread of its own."""

    def __init__(
        self,
        *,
        node: SliceLoop,
        client: MarketClient,
        every_s: float,
        memory_used_gb: Callable[[], float | None],
        heard: Path,
    ) -> None:
        self._node = node
        self._client = client
        self._every_s = every_s
        self._memory_used_gb = memory_used_gb
        #: Says to whoever watches this process when the market last answered.
        self._heard = heard
        #: Seconds from the process's start until its base models were loaded.
        self.load_s = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(self._every_s + 5.0)

    def beat(self) -> None:
        """Send one and pass on the answer; a market that is away is no error."""
        message = Heartbeat(
            node_id=self._node.node_id,
            at=time.time(),
            lease_tokens=self._node.leases(),
            memory_used_gb=self._memory_used_gb(),
            draining=self._node.draining,
            load_s=self.load_s,
            kept_jobs=self._node.kept.list(),
        )
        try:
            reply = self._client.post(
                PATH_HEARTBEAT, message, HeartbeatReply, patience=Patience(total_s=0.0)
            )
        except ShuttingDownError:
            return
        except MarketUnreachableError as error:
            log.warning("the market does not answer: %s", error)
        except MarketRefusal as refusal:
            if refusal.status in SENT_AWAY:
                self._node.refused(str(refusal))
            log.error("a heartbeat was refused: %s", refusal)
        else:
            self._node.heard(reply)
            self._note_answer()

    def _note_answer(self) -> None:
        try:
            self._heard.touch()
        except OSError as error:
            # A full disk stops no heartbeat.
            log.warning("%s was not written: %s", self._heard, error)

    def _run(self) -> None:
        while True:
            self.beat()
            if self._closing.wait(self._every_s):
                return
