"""Bids, and sweeps of them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from django.conf import settings
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models import F, Func, Q, Value
from django.db.models.functions import Coalesce

from marketplace.auction.bid_words import build_vector
from marketplace.common.brief_json import BriefJSONField
from marketplace.common.models import IdField, ValueField
from marketplace.jobs.usual_terms import USUAL_TERMS
from marketplace.payments.models import Hold
from workers.protocol.job_terms import JobTerms
from workers.protocol.starts import Start, StartKind

#: Of a bid's plan: the one that it was admitted with.
FIRST_REVISION = 1
#: Most prices have few parts.
_USUAL_PARTS: dict[str, Any] = dict.fromkeys(
    ("vendor", "operational", "compute", "memory", "rounding", "fee", "card", "tax"), 0.0
)


class NextArrival(Func):
    """The next number of the sequence that orders arrivals, from the database."""

    function = "nextval"
    output_field = models.BigIntegerField()  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__(Value("auction_bid_arrival"))


class BidStatus(models.TextChoices):
    PENDING = "pending", "Pending"
    PRICED = "priced", "Priced"
    ADMITTED = "admitted", "Admitted"
    REFUSED = "refused", "Refused"
    CANCELLED = "cancelled", "Cancelled"


#: Of the names of holds for bids.
HOLD_PREFIX = "bid:"


#: Since when a bid waits for the market: what its owner took to answer a price is not the market's.
WAITS_SINCE = Coalesce("price_offer__answered_at", "created_at")


def hold_reference(bid_id: str) -> str:
    """Name of the wallet's hold for a bid; every money effect of the bid goes by it."""
    return f"{HOLD_PREFIX}{bid_id}"


class Bundle(models.Model):
    """Bids for jobs that differ in some settings, placed together; see ``Bid.is_joint``."""

    zone_id: str
    organisation_id: str
    bids: models.Manager[Bid]
    id = IdField(prefix="bundle")
    zone = models.ForeignKey("fleet.Zone", on_delete=models.PROTECT, related_name="+")
    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.PROTECT, related_name="bundles", db_index=False
    )
    placed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, related_name="+"
    )
    name = models.CharField(max_length=64)
    #: All of its bids win or none does, and the limit is for all of them together.
    all_or_none = models.BooleanField()
    #: The most that all jobs are worth to their owner, or each of them.
    price_micros = models.BigIntegerField()
    deadline_at = models.DateTimeField()
    #: Values by setting, such as ``{"training.seed": [1, 2, 3]}``.
    sweep: Any = models.JSONField()
    idempotency_key = models.CharField(max_length=255, null=True)
    #: SHA-256 of what was asked under that key.
    request_hash = models.CharField(max_length=64)
    created_at = models.DateTimeField()

    #: Of one that all win or all lose: what became of it, as of a bid.
    decided_at = models.DateTimeField(null=True)
    position = models.BigIntegerField(null=True)
    payment_micros = models.BigIntegerField(null=True)
    refusal = models.CharField(max_length=16, default="", blank=True)
    winning_price_micros = models.BigIntegerField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["organisation", "idempotency_key"],
                condition=Q(idempotency_key__isnull=False),
                name="auction_bundle_one_per_idempotency_key",
            ),
            models.CheckConstraint(
                condition=Q(price_micros__gt=0), name="auction_bundle_price_positive"
            ),
            models.CheckConstraint(
                condition=Q(payment_micros__isnull=True) | Q(payment_micros__lt=F("price_micros")),
                name="auction_bundle_payment_within_price",
            ),
        ]
        indexes = [
            models.Index(fields=["organisation", "-created_at"], name="auction_bundle_of_owner"),
        ]

    def __str__(self) -> str:
        return f"{self.id} ({'all or none' if self.all_or_none else 'each for itself'})"

    @property
    def hold_reference(self) -> str:
        """Name of the hold on its limit; only of one that all win or all lose."""
        return hold_reference(self.id)


class Bid(models.Model):
    """One offer for one job; once decided, what the auction answered."""

    #: States of those that won nothing.
    LOST = (BidStatus.REFUSED, BidStatus.CANCELLED)
    #: States of those that wait: for the market, or for their owner's answer to a price.
    OPEN = (BidStatus.PENDING, BidStatus.PRICED)

    zone_id: str
    organisation_id: str
    placed_by_id: str | None
    dataset_id: str | None
    validation_dataset_id: str | None
    bundle_id: str | None
    reservations: models.Manager[Any]
    #: Only of a bid that asks for its price (``models.offers``).
    price_offer: Any

    id = IdField(prefix="bid")
    # The indexes below begin with these two.
    zone = models.ForeignKey(
        "fleet.Zone", on_delete=models.PROTECT, related_name="bids", db_index=False
    )
    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.PROTECT, related_name="bids", db_index=False
    )
    placed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, related_name="+"
    )
    #: Null: the express lane buys cells for jobs to come, and no job is opened for the bid.
    dataset = models.ForeignKey(
        "jobs.Dataset", on_delete=models.PROTECT, null=True, related_name="+"
    )
    #: Its rows are held out; null: a share of the data set's own.
    validation_dataset = models.ForeignKey(
        "jobs.Dataset", on_delete=models.PROTECT, null=True, db_index=False, related_name="+"
    )
    #: Those that it was placed with; null: it was placed by itself.
    bundle = models.ForeignKey(Bundle, on_delete=models.PROTECT, null=True, related_name="bids")
    #: It wins or loses with all bids of its bundle. ``price_micros`` is then its part of the
    #: bundle's limit, by work, and the money is held for the bundle until that is decided.
    is_joint = models.BooleanField(default=False, db_default=False)
    name = models.CharField(max_length=64)
    status = models.CharField(max_length=12, choices=BidStatus.choices, default=BidStatus.PENDING)
    #: Order of arrival. Drawn before commit, so a lower number may appear later.
    arrival = models.BigIntegerField(unique=True, db_default=NextArrival(), editable=False)
    #: The most the job is worth to its owner; held in the wallet until decided. Where it asks for
    #: its price first: 0, and just above that price once its owner takes it.
    price_micros = models.BigIntegerField()
    #: It is priced first, and its owner takes or leaves the price; ``price_offer`` has the rest.
    asks_price = models.BooleanField(default=False, db_default=False)
    deadline_at = models.DateTimeField()
    #: What the job is. ``dataset``, ``validation_dataset``, ``verified_only`` and
    #: ``resumed_job_id`` follow from it, by ``derive_columns``; null: the express lane's, as there.
    terms: Any = ValueField(kind=JobTerms, usual=USUAL_TERMS, null=True)
    #: Names of the settings the owner left to us.
    resolved: Any = models.JSONField(default=list)
    #: Training rows times epochs, as people count them.
    samples = models.PositiveBigIntegerField()
    #: M_i: the zone's work units of all epochs and evaluations, a whole number.
    compute_demand = models.FloatField()
    #: r_i: GB beside the base model.
    memory_demand_gb = models.FloatField()
    #: s_ik: work units per slot by GPU type, when the bid arrived.
    rates: Any = models.JSONField()
    #: Nodes of verified providers only.
    verified_only = models.BooleanField(default=False, db_default=False)
    #: The owner's paused job that it goes on with.
    resumed_job_id = models.CharField(max_length=40, null=True)
    #: Vendors' offers when the bid arrived, ``vendors.quoting.VendorOffer.to_json`` of each.
    offers: Any = models.JSONField(default=list)
    idempotency_key = models.CharField(max_length=255, null=True)
    #: SHA-256 of what was asked under that key.
    request_hash = models.CharField(max_length=64)
    created_at = models.DateTimeField()

    #: JSON text of the signed receipt (``scheduler.public_log.heads.SignedHead``) that the bid got
    #: when it was last received into the log; empty before.
    receipt = models.TextField(default="", db_default="", blank=True)
    #: Slot it was received in, and so is decided in.
    received_slot = models.BigIntegerField(null=True)
    #: No cell before this slot; null: from the next one on.
    not_before_slot = models.BigIntegerField(null=True)
    #: What the log's commitments to it are made with; only its owner learns it.
    salt = models.CharField(max_length=32, default="", db_default="", blank=True)

    decided_at = models.DateTimeField(null=True)
    #: Position of the decision in the zone's log.
    position = models.BigIntegerField(null=True)
    decision_hash = models.CharField(max_length=64, default="", blank=True)
    #: What the winner pays; it does not depend on ``price_micros``.
    payment_micros = models.BigIntegerField(null=True)
    #: Price parts in micro-dollars, not rounded one by one.
    parts: Any = BriefJSONField(usual=_USUAL_PARTS, null=True)
    #: With a warm start: the price at the decision without it, beyond which nothing is paid;
    #: null: there was no plan without it.
    cold_price_micros = models.BigIntegerField(null=True)
    finish_planned_at = models.DateTimeField(null=True)
    #: ``scheduler.types.Refusal``.
    refusal = models.CharField(max_length=16, default="", blank=True)
    #: A bid above it would have won.
    winning_price_micros = models.BigIntegerField(null=True)
    #: The earliest later deadline at which this price would have won.
    winning_deadline_at = models.DateTimeField(null=True)
    winning_deadline_price_micros = models.BigIntegerField(null=True)

    #: Why the last try to decide it, or to settle its ended job, failed; empty when none has.
    failure = models.CharField(max_length=500, default="", db_default="", blank=True)
    #: Tries that failed, by a fault of the market.
    failures = models.PositiveIntegerField(default=0, db_default=0)
    #: The others go ahead of it until then; null: it has its turn.
    retry_at = models.DateTimeField(null=True)

    #: Of a job that its owner ended: what is kept of the price of work that was not done, found as
    #: its cells went back on sale; null: they did not.
    kept_micros = models.BigIntegerField(null=True)
    #: The same if an open dispute, which held the job up, is decided for its owner.
    kept_if_won_micros = models.BigIntegerField(null=True)
    #: Of what is kept, what waits for cells that begin soon to be sold again.
    waits_micros = models.BigIntegerField(default=0, db_default=0)
    #: What of it goes back at most, once the job is settled; null before, and when it has.
    rent_due_micros = models.BigIntegerField(null=True)
    #: What its owner was told the log would give back for its cells, as it ended the job.
    promised_micros = models.BigIntegerField(default=0, db_default=0)
    #: Seconds from its request in which the express lane certified its end; null: an auction's bid.
    slo_s = models.FloatField(null=True)

    #: Slot in which the lane last looked for a new plan of the job and found none.
    replanned_slot = models.BigIntegerField(null=True)
    #: Paid by the market for a missed deadline.
    credit_micros = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["organisation", "idempotency_key"],
                condition=Q(idempotency_key__isnull=False),
                name="auction_bid_one_per_idempotency_key",
            ),
            models.UniqueConstraint(
                fields=["zone", "position"],
                condition=Q(position__isnull=False),
                name="auction_bid_one_per_position",
            ),
            models.CheckConstraint(
                condition=Q(price_micros__gt=0)
                | Q(price_micros=0, asks_price=True, payment_micros__isnull=True),
                name="auction_bid_price_positive",
            ),
            models.CheckConstraint(
                condition=~Q(status="admitted") | Q(payment_micros__gte=0, position__isnull=False),
                name="auction_bid_admitted_has_decision",
            ),
            models.CheckConstraint(
                condition=Q(payment_micros__isnull=True)
                | Q(is_joint=True)
                | Q(payment_micros__lte=F("price_micros")),
                name="auction_bid_payment_within_price",
            ),
        ]
        indexes = [
            models.Index(
                fields=["zone", "arrival"],
                condition=Q(status__in=["pending", "priced"]),
                name="auction_bid_open",
            ),
            models.Index(fields=["organisation", "-id"], name="auction_bid_of_organisation"),
            # Those of one outcome, however many there are of the other.
            models.Index(
                fields=["organisation", "-id"],
                condition=Q(status="admitted"),
                name="auction_bid_won",
            ),
            models.Index(
                fields=["organisation", "-id"],
                condition=Q(status__in=["refused", "cancelled"]),
                name="auction_bid_lost",
            ),
            GinIndex(build_vector(), name="auction_bid_words"),
            # The figures of a day, however many there were before.
            models.Index(fields=["created_at"], name="auction_bid_of_day"),
            models.Index(fields=["decided_at"], name="auction_bid_answered"),
            models.Index(
                fields=["id"],
                condition=Q(rent_due_micros__isnull=False),
                name="auction_bid_rent_due",
            ),
            # Those that a fault of the market held up; mostly none.
            models.Index(
                fields=["retry_at"],
                condition=Q(retry_at__isnull=False),
                name="auction_bid_put_off",
            ),
            models.Index(
                fields=["validation_dataset"],
                condition=Q(validation_dataset__isnull=False),
                name="auction_bid_validated_with",
            ),
            models.Index(
                fields=["resumed_job_id"],
                condition=Q(resumed_job_id__isnull=False),
                name="auction_bid_resuming",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.id} ({self.status})"

    #: ``cells``, once read.
    first_cells: list[list[Any]] | None = None

    @property
    def cells(self) -> list[list[Any]] | None:
        """``[[slot, node id], ...]`` as decided: the first revision of the plan, if it won one."""
        if self.status != BidStatus.ADMITTED:
            return None
        if self.first_cells is None:
            rows = self.reservations.filter(revision=FIRST_REVISION)
            cells = rows.order_by("slot").values_list("slot", "node_id")
            self.first_cells = [list(cell) for cell in cells]
        return self.first_cells

    @property
    def start(self) -> Start | None:
        """What its job begins with, if not with fresh weights."""
        return None if self.terms is None else self.terms.start

    @property
    def continued_job_id(self) -> str | None:
        """The owner's earlier job whose adapter they chose to continue."""
        start = self.start
        return start.job_id if start and start.kind is StartKind.CONTINUED else None

    @property
    def offer_id(self) -> str:
        """The warm start's offer that it names; empty without one."""
        return "" if self.start is None else self.start.offer_id

    @property
    def warm_start(self) -> Start | None:
        """The start that it was sold less work for."""
        return self.start if self.start is not None and self.start.cold_units else None

    @property
    def royalty_micros(self) -> int:
        """What of the payment is for the owner of the adapter that the job begins with."""
        return 0 if self.start is None else self.start.royalty_micros

    @property
    def excess_micros(self) -> int:
        """What the payment with a warm start is above the price without it; it is returned."""
        if self.cold_price_micros is None or self.payment_micros is None:
            return 0
        return max(0, self.payment_micros - self.cold_price_micros)

    @cached_property
    def refund_micros(self) -> int:
        """What of the payment went back, by its hold; for many bids use ``annotate_refunds``."""
        holds = Hold.objects.filter(reference=self.hold_reference)
        return holds.values_list("refunded_micros", flat=True).first() or 0

    @property
    def paid_micros(self) -> int:
        """What the owner has paid after what was returned; nothing for a bid that did not win."""
        return (self.payment_micros or 0) - self.refund_micros

    @property
    def has_amount(self) -> bool:
        """Whether there is an amount to hold: not before a price is taken, nor once it is left."""
        return self.price_micros > 0

    @property
    def hold_reference(self) -> str:
        return hold_reference(self.id)
