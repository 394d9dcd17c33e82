"""The order of the serverful backlog: earliest deadline first (Liu and Layland, 1973)."""

from __future__ import annotations


def compute_backlog_key(due_s: float, remaining_s: float, overloaded: bool) -> float:
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
