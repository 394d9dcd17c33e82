"""The world finds bugs again that were found in a running house, each under a known seed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.world.actors import Actor, Turn
from tests.world.put_back import BUGS
from tests.world.world import WorldBroken, open_world

STEPS = 120
#: The seed under which each is found, the task that is looked at closely, and what is said.
FOUND = {
    "the race of solve and lane": (4, "auction.prices_solve", r"another beat|of the beat before"),
    "the deadlock of leases": (3, "", "slices are locked without their jobs"),
    "the push without a fence": (2, "webhooks.deliver", "was delivered before"),
    "the card bid without its validation file": (2, "", "lost its file"),
}


class CardBids(Actor):
    """More bids by card: among all that is done one in seventy has a file to lose."""

    def list_turns(self) -> Sequence[Turn]:
        buyer = self.world.owners[0]
        return [(60, "an owner bids by card", lambda: buyer.bid(self.world))]


#: Who is there beside owners and nodes.
WITH: dict[str, list[type[Actor]]] = {"the card bid without its validation file": [CardBids]}


@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.django_db(transaction=True)
def test_a_bug_that_is_put_back_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seed, often, says = FOUND[bug]
    BUGS[bug](monkeypatch)
    others = WITH.get(bug, [])
    with (
        open_world(seed, often=often, actors=others) as world,
        pytest.raises(WorldBroken, match=says),
    ):
        world.run(STEPS)
