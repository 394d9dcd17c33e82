"""Others in the world beside owners and nodes: each has turns of its own, and what holds of them.

Most bugs that are put back are found in a world without them: each turn that there is more changes
what a seed does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.world.world import World

#: How often it comes, what it is, and what is done.
Turn = tuple[int, str, Callable[[], object]]


class Actor:
    """Somebody who does nothing yet."""

    def __init__(self, world: World, patch: pytest.MonkeyPatch) -> None:
        self.world = world

    def list_turns(self) -> Sequence[Turn]:
        return ()

    def settle(self) -> None:
        """Bring what was begun a step nearer to its end; nothing goes wrong any more."""

    def is_at_rest(self) -> bool:
        return True

    def check(self) -> None:
        """Look after each step."""

    def check_rest(self) -> None:
        """Look once all is at rest."""

    def describe(self) -> str:
        """What happened, in figures."""
        return ""
