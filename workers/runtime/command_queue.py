"""Commands of other threads for the loop's thread, run between two training steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")


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
        if not self._thread.is_alive():
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
