"""Asking the market for the node's plan, over and over, on a thread of its own.

The market answers when there is a plan that this process does not hold, so a plan comes within
milliseconds although the node only ever asks. The market may be away for as long as it likes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from workers.node.backoff import Backoff
from workers.node.market_client import (
    SENT_AWAY,
    MarketClient,
    MarketError,
    MarketRefusal,
    Patience,
    ShuttingDownError,
)
from workers.protocol.joining import PROTOCOL_LEAST, VERSION_NOT_SPOKEN
from workers.protocol.messages import PROTOCOL_VERSION
from workers.protocol.plan_queue import (
    PATH_NEXT_PLAN,
    PATH_PLAN_SESSION,
    PATH_TOKEN,
    SUPERSEDED,
    NextPlanReply,
    NextPlanRequest,
    NodeToken,
    PlanSession,
    PlanSessionRequest,
)

log = logging.getLogger(__name__)

#: Seconds a request waits for a plan; proxies cut those that are idle for a minute.
WAIT_S = 25.0
#: Pauses after a call that failed: the first, and the longest. They are randomised.
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 5.0
_ONCE = Patience(total_s=0.0)


class PlanPuller:
    """Takes the node's plans in one session, which ends that of an earlier process.

    Parameters
    ----------
    refused
        Called with a sentence when the market has this process go, and whether it is for good:
        another process or another release of the node may take its place.
    rotated
        Called with the node's new token, before it is used.
    """

    def __init__(
        self,
        client: MarketClient,
        *,
        node_id: str,
        refused: Callable[..., None],
        rotated: Callable[[str], None],
    ) -> None:
        self._client = client
        self._node_id = node_id
        self._refused = refused
        self._rotated = rotated
        self._plans: SimpleQueue[NextPlanReply] = SimpleQueue()
        #: Slot and revision of the newest plan taken.
        self._held: tuple[int, int] | None = None
        self._session: str | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="plan-puller", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ask no more. A request under way is left to end with its client or its wait."""
        self._closing.set()

    def take(self, timeout_s: float) -> NextPlanReply:
        """The next plan.

        Raises
        ------
        queue.Empty
            None came within the time.
        """
        return self._plans.get(timeout=timeout_s)

    def give_back(self) -> None:
        """The plan taken last was not handled: the market hands out the newest again."""
        self._held = None

    def _run(self) -> None:
        backoff = Backoff(first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S)
        while not self._closing.is_set():
            try:
                self._pull()
            except ShuttingDownError:
                return
            except MarketRefusal as refusal:
                is_replaced = refusal.code in (SUPERSEDED, VERSION_NOT_SPOKEN)
                if is_replaced or refusal.status in SENT_AWAY:
                    self._refused(str(refusal), for_good=not is_replaced)
                    return
                log.error("asking for plans was refused: %s", refusal)
            except MarketError as error:
                log.warning("the market gives no plans: %s", error)
            # Whatever it was, the jobs that run go on meanwhile.
            except Exception:
                if self._closing.is_set():
                    return
                log.exception("asking for plans failed")
            else:
                backoff.reset()
                continue
            self._closing.wait(backoff.next_wait_s())

    def _pull(self) -> None:
        """One question and its answer."""
        if self._session is None:
            self._session = self._client.post(
                PATH_PLAN_SESSION,
                PlanSessionRequest(PROTOCOL_LEAST, PROTOCOL_VERSION),
                PlanSession,
                patience=_ONCE,
            ).session
        slot, revision = self._held or (None, 0)
        asked = NextPlanRequest(self._node_id, self._session, slot, revision, WAIT_S)
        reply = self._client.post(PATH_NEXT_PLAN, asked, NextPlanReply, patience=_ONCE)
        if reply.plan is not None:
            # Held from here on: a plan that is given back is forgotten after it was noted.
            self._held = (reply.slot, reply.revision)
            self._plans.put(reply)
        if reply.rotate_token:
            self._rotate_token()

    def _rotate_token(self) -> None:
        """Exchange the token; the old one is valid until the market has seen the new one."""
        token = self._client.post(PATH_TOKEN, {}, NodeToken, patience=_ONCE).api_token
        self._rotated(token)
        self._client.use_token(token)
        log.info("this node has a new token")
