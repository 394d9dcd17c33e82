"""The serverful backlog: earliest deadline first (Liu and Layland, 1973).

Strict: a gang at the head waits until enough workers are idle at once, and nobody
overtakes it.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field


def backlog_key(due_s: float, remaining_s: float, overloaded: bool) -> float:
    """The improved backlog's key, lowest first.

    Earliest deadline first keeps every deadline that can be kept; once the tier is
    overloaded (pressure above one) some cannot be, and EDF makes many late together.
    From then until the backlog is empty the shortest job goes first.

    Parameters
    ----------
    due_s : float
        Deadline.
    remaining_s : float
        Seconds to the end once started.
    overloaded : bool
        Whether the pressure went above one since the backlog was last empty.
    """
    return remaining_s if overloaded else due_s


@dataclass(slots=True)
class Backlog:
    """Waiting job ids by deadline, ties by order of entry; every step O(log n)."""

    _heap: list[tuple[float, int, str]] = field(default_factory=list[tuple[float, int, str]])
    #: Ticket of each waiting job; a heap entry with another ticket is stale.
    _tickets: dict[str, int] = field(default_factory=dict[str, int])
    _next_ticket: int = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._tickets

    def push(self, *, job_id: str, deadline_s: float) -> None:
        """Adds a job, or moves it to a new deadline."""
        self._next_ticket += 1
        self._tickets[job_id] = self._next_ticket
        heapq.heappush(self._heap, (deadline_s, self._next_ticket, job_id))

    def discard(self, job_id: str) -> None:
        """Forgets a job that was cancelled or took another way; absent is fine."""
        self._tickets.pop(job_id, None)

    def head(self) -> str | None:
        """The job due first, left in place."""
        while self._heap:
            _, ticket, job_id = self._heap[0]
            if self._tickets.get(job_id) == ticket:
                return job_id
            heapq.heappop(self._heap)
        return None

    def pop(self) -> str:
        """Removes and returns the job due first."""
        job_id = self.head()
        if job_id is None:
            raise IndexError("the backlog is empty")
        heapq.heappop(self._heap)
        del self._tickets[job_id]
        return job_id
