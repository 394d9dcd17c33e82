"""Owners of jobs: they bid, ask again when no answer came, and change their minds."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from marketplace.accounts.models import Organisation
from marketplace.auction.bidding.cancel import cancel_bid
from marketplace.auction.bidding.card_bids import authorise_bid, place_authorised_bid
from marketplace.auction.bidding.place import NewBid
from marketplace.auction.cancelling import cancel_sold_job, quote_cancelling
from marketplace.auction.models import Bid, BidStatus
from marketplace.common.errors import PaymentRequired
from marketplace.fleet.selectors import slot_at as zone_slot
from marketplace.jobs.models import Dataset, Job
from marketplace.payments.models import CardPayment, PaymentStatus
from tests import builders
from tests import market_builders as market

if TYPE_CHECKING:
    from tests.world.world import World


@dataclass
class Owner:
    organisation: Organisation
    data: Dataset
    validation: Dataset
    #: What was asked for under each key; the same key may be sent again and again.
    asked: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: The bid that answered each key.
    answers: dict[str, str] = field(default_factory=dict)
    #: By bid, what it was last shown to get back for its job.
    shown: dict[str, int] = field(default_factory=dict)

    def bid(self, world: World) -> None:
        key = f"key-{len(self.asked)}"
        rng = world.rng
        self.asked[key] = {
            "price_micros": rng.choice([20_000, 300_000, 900_000, 2_000_000, 5_000_000]),
            "slots": rng.randint(2, 30),
            "epochs": rng.randint(1, 4),
            "now": world.now,
        } | self.choose_data(world)
        self._send(world, key)

    def choose_data(self, world: World) -> dict[str, Any]:
        return {"validation": self.validation if world.rng.random() < 0.5 else None}

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
            if job.is_active:
                is_asked = world.rng.random() < 0.5
                due = quote_cancelling(bid=bid, job=job, now=world.now) if is_asked else None
                self.shown[bid.pk] = 0 if due is None else due.refund_micros
            shown = self.shown.get(bid.pk)
            cancel_sold_job(job=job, cancelled_by=None, at_least_micros=shown, now=world.now)
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


@dataclass
class CardOwner(Owner):
    """Pays each bid by card; the gateway has authorised it before the bid is placed."""

    def _send(self, world: World, key: str) -> None:
        asked = dict(self.asked[key])
        now: datetime = asked.pop("now")
        if key not in self.answers:
            payment = self.authorise(world, asked, key, now)
            # Or the owner left the page, and the beat places it.
            if world.rng.random() < 0.5:
                place_authorised_bid(payment=payment, now=world.now)
        placed = Bid.objects.filter(organisation=self.organisation, idempotency_key=key).first()
        if placed is not None:
            had = self.answers.setdefault(key, placed.pk)
            assert had == placed.pk, f"{key} was answered with {had}, and then with {placed.pk}"

    def authorise(
        self, world: World, asked: dict[str, Any], key: str, now: datetime
    ) -> CardPayment:
        """Have the amount authorised; what the gateway says of it is made up here."""
        payment = self.start_payment(world, asked, key, now)
        waiting = CardPayment.objects.filter(pk=payment.pk, status=PaymentStatus.STARTED)
        waiting.update(status=PaymentStatus.AUTHORISED, gateway_id=f"pi_{payment.pk}")
        return CardPayment.objects.select_related("organisation", "created_by").get(pk=payment.pk)

    def start_payment(
        self, world: World, asked: dict[str, Any], key: str, now: datetime
    ) -> CardPayment:
        terms = market.job_terms(epochs=asked["epochs"])
        zone, asker = world.zone, builders.owner_of(self.organisation)
        new = NewBid(
            organisation=self.organisation,
            placed_by=asker,
            zone=zone,
            dataset=self.data,
            validation=asked["validation"],
            name="a job",
            price_micros=asked["price_micros"],
            deadline_at=market.slot_at(zone, zone_slot(zone, now) + 1 + asked["slots"]),
            idempotency_key=key,
            **terms,
        )
        return authorise_bid(asked=new, asked_by=asker, card_id=None, now=now)
