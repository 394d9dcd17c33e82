"""Which of a device's nodes has its turn, where several of them serve a zone each at their hours.

The market decides it, by the hours of sale; the machine asks for each of the nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

#: POST, under the node's bearer token.
PATH_TURN = "/internal/v1/turn"


@dataclass(frozen=True, slots=True)
class DeviceTurnRequest:
    """Asked by the machine every few heartbeats, also for the nodes whose process does not run."""

    node_id: str
    #: Whether the node's process runs, or loads its base model.
    is_up: bool = False


@dataclass(frozen=True, slots=True)
class DeviceTurn:
    """Whether the node's process should run now; of a device's nodes one at most should."""

    serves: bool = True
    #: Unix seconds: from when on the node is sold next, where it does not serve.
    rests_until: float | None = None
