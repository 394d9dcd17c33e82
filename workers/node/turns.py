"""Nodes of one device that take turns: the market says whose turn it is, one process runs at most.

The supervisor asks for every node, so the market hears that the machine is there also for those
that rest. A process is stopped before another is started; a supervisor that starts again in the
middle asks, and waits for what an earlier one left running.
"""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from workers.node.backoff import Backoff
from workers.node.credentials import NodeSettingsError, StateDir, load_credentials
from workers.node.leaving import forget_owners
from workers.node.market_client import MarketClient, MarketError, MarketRefusal, Patience
from workers.node.process import EXIT_OK, EXIT_SENT_AWAY, find_running
from workers.protocol.turns import PATH_TURN, DeviceTurn, DeviceTurnRequest

log = logging.getLogger(__name__)

#: Ways to end after which starting again would change nothing.
FINAL = frozenset({EXIT_OK, EXIT_SENT_AWAY})
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
#: A process that ran for this time before it failed starts again at once.
RAN_WELL_S = 600.0
_LOOK_EVERY_S = 0.2
#: A process that has not ended this time after its grace is killed.
_KILL_AFTER_S = 15.0
_ONCE = Patience(total_s=0.0)
#: Of the market's answers, those that end a node for good; a market of an earlier release that
#: knows of no turns answers 404.
_SENT_AWAY = frozenset({401, 403, 410})


class SentAwayError(Exception):
    """The market does not know a node any more."""


class TurnKeeper:
    """Runs the nodes of one device, one at a time, until all have ended for good.

    Parameters
    ----------
    folders
        State directories of the nodes.
    start
        Starts a node's process.
    stop
        Has a process hand over its jobs and end; its exit status.
    grace_s
        What a process has to hand over when its turn ends.
    every_s
        Seconds between two questions: a heartbeat of the nodes.
    ask
        As ``ask_turn``.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        *,
        start: Callable[[Path], subprocess.Popen[bytes]],
        stop: Callable[[subprocess.Popen[bytes]], int],
        stopping: threading.Event,
        grace_s: float,
        every_s: float,
        ask: Callable[..., DeviceTurn | None] | None = None,
    ) -> None:
        self._folders = list(folders)
        self._start = start
        self._stop = stop
        self._stopping = stopping
        self._grace_s = grace_s
        self._every_s = every_s
        self._ask = ask or ask_turn
        self._running: tuple[Path, subprocess.Popen[bytes]] | None = None
        self._began = 0.0
        #: When the running process, whose turn is over, is killed.
        self._kill_at: float | None = None
        #: No process is started before.
        self._wait_until = 0.0
        self._pauses = Backoff(first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)
        self._statuses: dict[Path, int] = {}

    def run(self) -> int:
        """Run until stopped; the worst exit status of the nodes."""
        while self._folders and not self._stopping.is_set():
            # As regular as heartbeats, however long the market takes to answer.
            until = time.monotonic() + self._every_s
            self.take_turns()
            self._watch(until)
        if self._running is not None:
            folder, process = self._running
            self._statuses[folder] = self._stop(process)
        return max(self._statuses.values(), default=EXIT_OK)

    def take_turns(self) -> None:
        """Ask whose turn it is and have that node run."""
        running = None if self._running is None else self._running[0]
        turns: dict[Path, DeviceTurn] = {}
        for folder in list(self._folders):
            try:
                turn = self._ask(folder, is_up=folder == running)
            except SentAwayError as error:
                # A process that runs hears it by itself, and ends.
                if folder != running:
                    log.error("the node of %s: %s", folder, error)
                    if find_running(StateDir(folder)) is None:
                        forget_owners(StateDir(folder))
                    self._end(folder, EXIT_SENT_AWAY)
                continue
            if turn is not None:
                turns[folder] = turn
        if running in turns and not turns[running].serves and self._kill_at is None:
            self._have_rest()
        if self._running is None and time.monotonic() >= self._wait_until:
            self._begin([folder for folder, turn in turns.items() if turn.serves])

    def _have_rest(self) -> None:
        """Ask the running process to hand over and end; the others are asked for meanwhile."""
        assert self._running is not None
        folder, process = self._running
        log.info("the turn of the node of %s is over", folder)
        process.terminate()
        self._kill_at = time.monotonic() + self._grace_s + _KILL_AFTER_S

    def _begin(self, due: Sequence[Path]) -> None:
        left = [folder for folder in self._folders if find_running(StateDir(folder)) is not None]
        if left:
            log.warning("a process of an earlier start still runs the node of %s", left[0])
        elif due:
            log.info("it is the turn of the node of %s", due[0])
            self._running, self._began = (due[0], self._start(due[0])), time.monotonic()

    def _watch(self, until: float) -> None:
        """Wait until it is time to ask again, or the process that runs has ended."""
        while not self._stopping.wait(_LOOK_EVERY_S):
            if self._running is not None:
                if self._running[1].poll() is not None:
                    self._note_end(*self._running)
                    return
                if self._kill_at is not None and time.monotonic() >= self._kill_at:
                    self._running[1].kill()
            if time.monotonic() >= until:
                return

    def _note_end(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        has_rested, self._running, self._kill_at = self._kill_at is not None, None, None
        if has_rested:
            # Asked again at once: the market hears that it rests, and says whose turn it is.
            return
        self._statuses[folder] = process.returncode
        if process.returncode in FINAL:
            self._end(folder, process.returncode)
            return
        if time.monotonic() - self._began > RAN_WELL_S:
            self._pauses.reset()
        pause = self._pauses.next_wait_s()
        log.warning(
            "the node of %s ended with status %s; again in %.0f s",
            *(folder, process.returncode, pause),
        )
        self._wait_until = time.monotonic() + pause

    def _end(self, folder: Path, status: int) -> None:
        log.info("the node of %s ended for good (status %s)", folder, status)
        self._statuses[folder] = status
        self._folders.remove(folder)


def ask_turn(folder: Path, *, is_up: bool) -> DeviceTurn | None:
    """What the market says of a node; ``None`` where it says nothing now.

    Raises
    ------
    SentAwayError
        It does not know the node any more.
    """
    try:
        credentials = load_credentials(StateDir(folder))
        with MarketClient(
            credentials.market_url, token=credentials.api_token, patience=_ONCE
        ) as client:
            asked = DeviceTurnRequest(credentials.node_id, is_up)
            return client.post(PATH_TURN, asked, DeviceTurn)
    except MarketRefusal as refusal:
        # Its process may have exchanged the token meanwhile.
        same = load_credentials(StateDir(folder)).api_token == credentials.api_token
        if refusal.status in _SENT_AWAY and same:
            raise SentAwayError(str(refusal)) from refusal
        log.error("asking for the turn of %s was refused: %s", folder, refusal)
    except (MarketError, NodeSettingsError) as error:
        log.warning("the turn of %s is not known: %s", folder, error)
    return None
