"""Commands of other threads for the loop's thread, run between two training steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")
#: Between two looks at whether there is still a thread that runs commands.
_LOOK_EVERY_S = 1.0


class CommandQueue:
    """Commands in the order in which they came; ``thread`` is the one that runs them."""

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread
        self._waiting: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def put(self, command: Callable[[], None]) -> None:
        """Have a command run soon; nothing waits for it."""
        self._waiting.put(command)

    def call(self, action: Callable[[], T]) -> T:
        """Run an action between two steps on the loop's thread and wait for it."""
        if threading.current_thread() is self._thread:
            return action()
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(action())
            except BaseException as error:
                future.set_exception(error)

        self._waiting.put(run)
        # the loop may end before it comes to this
        while self._thread.is_alive() and not wait((future,), timeout=_LOOK_EVERY_S).done:
            pass
        if not future.done():
            self.run_waiting()
        return future.result()

    def run_waiting(self, *, wait: bool = False) -> None:
        """Run all that waits; ``wait``: until there is something to run."""
        try:
            command = self._waiting.get(block=wait)
            while True:
                command()
                command = self._waiting.get_nowait()
        except Empty:
            return
