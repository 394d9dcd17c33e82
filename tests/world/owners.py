"""Owners of jobs: they bid, ask again when no answer came, and change their minds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from marketplace.accounts.models import Organisation
from marketplace.auction.bidding.cancel import cancel_bid
from marketplace.auction.models import Bid, BidStatus
from marketplace.common.errors import PaymentRequired
from marketplace.jobs.models import Dataset, Job
from marketplace.jobs.services import cancel_job
from tests import market_builders as market

if TYPE_CHECKING:
    from tests.world.world import World


@dataclass
class Owner:
    organisation: Organisation
    data: Dataset
    #: What was asked for under each key; the same key may be sent again and again.
    asked: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: The bid that answered each key.
    answers: dict[str, str] = field(default_factory=dict)

    def bid(self, world: World) -> None:
        key = f"key-{len(self.asked)}"
        rng = world.rng
        self.asked[key] = {
            "price_micros": rng.choice([20_000, 300_000, 900_000, 2_000_000, 5_000_000]),
            "slots": rng.randint(2, 30),
            "epochs": rng.randint(1, 4),
            "now": world.now,
        }
        self._send(world, key)

    def ask_again(self, world: World) -> None:
        """Send what has no answer again, and now and then what has one."""
        for key in [key for key in self.asked if key not in self.answers]:
            self._send(world, key)
        if self.answers:
            self._send(world, world.rng.choice(sorted(self.answers)))

    def cancel(self, world: World) -> None:
        if not self.answers:
            return
        key = world.rng.choice(sorted(self.answers))
        bid = Bid.objects.get(pk=self.answers[key])
        job = Job.objects.filter(bid_id=bid.pk).first()
        if job is not None:
            cancel_job(job=job, cancelled_by=None, now=world.now)
        elif bid.status == BidStatus.PENDING:
            cancel_bid(bid=bid, now=world.now)

    def _send(self, world: World, key: str) -> None:
        asked = dict(self.asked[key])
        try:
            bid = market.bid(self.organisation, world.zone, data=self.data, key=key, **asked)
        except PaymentRequired:
            if key in self.answers:
                raise
            # Answered: there is no such bid, and nothing is asked for again.
            del self.asked[key]
            return
        had = self.answers.setdefault(key, bid.pk)
        assert had == bid.pk, f"{key} was answered with {had}, and then with {bid.pk}"
