"""Bids, the decision log of each zone, and rows derived from the log."""

from __future__ import annotations

from typing import Any

import pgtrigger
from django.conf import settings
from django.db import models
from django.db.models import F, Func, Q, Value

from marketplace.common.models import IdField
from marketplace.jobs.starts import StartKind


class NextArrival(Func):
    """The next number of the sequence that orders arrivals, from the database."""

    function = "nextval"
    output_field = models.BigIntegerField()  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__(Value("auction_bid_arrival"))


class BidStatus(models.TextChoices):
    PENDING = "pending", "Pending"
    ADMITTED = "admitted", "Admitted"
    REFUSED = "refused", "Refused"
    CANCELLED = "cancelled", "Cancelled"


def hold_reference(bid_id: str) -> str:
    """Name of the wallet's hold for a bid; every money effect of the bid goes by it."""
    return f"bid:{bid_id}"


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

    zone_id: str
    organisation_id: str
    placed_by_id: str | None
    dataset_id: str | None
    bundle_id: str | None
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
    #: Those that it was placed with; null: it was placed by itself.
    bundle = models.ForeignKey(Bundle, on_delete=models.PROTECT, null=True, related_name="bids")
    #: It wins or loses with all bids of its bundle. ``price_micros`` is then its part of the
    #: bundle's limit, by work, and the money is held for the bundle until that is decided.
    is_joint = models.BooleanField(default=False, db_default=False)
    name = models.CharField(max_length=64)
    status = models.CharField(max_length=12, choices=BidStatus.choices, default=BidStatus.PENDING)
    #: Order of arrival. Drawn before commit, so a lower number may appear later.
    arrival = models.BigIntegerField(unique=True, db_default=NextArrival(), editable=False)
    #: The most the job is worth to its owner; held in the wallet until decided.
    price_micros = models.BigIntegerField()
    deadline_at = models.DateTimeField()
    #: ``AdapterSpec`` with every ``auto`` resolved.
    adapter: Any = models.JSONField()
    #: ``TrainingSpec`` with every ``auto`` resolved.
    training: Any = models.JSONField()
    #: ``jobs.starts.Start`` as JSON; null: from fresh weights.
    start: Any = models.JSONField(null=True)
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
    #: ``PreparationWish`` as JSON; null: the data are trained on as they are.
    preparation: Any = models.JSONField(null=True)
    #: Vendors' offers when the bid arrived, ``vendors.quoting.VendorOffer.to_json`` of each.
    offers: Any = models.JSONField(default=list)
    idempotency_key = models.CharField(max_length=255, null=True)
    #: SHA-256 of what was asked under that key.
    request_hash = models.CharField(max_length=64)
    created_at = models.DateTimeField()

    #: JSON text of the signed receipt (``scheduler.auction.log.heads.SignedHead``) that the bid got
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
    parts: Any = models.JSONField(null=True)
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
    #: Tries that failed, by a fault of the house.
    failures = models.PositiveIntegerField(default=0, db_default=0)
    #: The others go ahead of it until then; null: it has its turn.
    retry_at = models.DateTimeField(null=True)

    #: Seconds from its request in which the express lane certified its end; null: an auction's bid.
    slo_s = models.FloatField(null=True)

    #: Slot in which the lane last looked for a new plan of the job and found none.
    replanned_slot = models.BigIntegerField(null=True)
    #: Part of the payment that was given back when the job ended.
    refund_micros = models.BigIntegerField(default=0)
    #: Paid by the house for a missed deadline.
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
                condition=Q(price_micros__gt=0), name="auction_bid_price_positive"
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
            models.CheckConstraint(
                condition=Q(refund_micros=0)
                | Q(refund_micros__gt=0, refund_micros__lte=F("payment_micros")),
                name="auction_bid_refund_within_payment",
            ),
        ]
        indexes = [
            models.Index(
                fields=["zone", "arrival"],
                condition=Q(status="pending"),
                name="auction_bid_pending",
            ),
            models.Index(fields=["organisation", "-arrival"], name="auction_bid_of_organisation"),
            models.Index(fields=["zone", "-position"], name="auction_bid_decided"),
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
            rows = Reservation.objects.filter(bid_id=self.pk, revision=FIRST_REVISION)
            cells = rows.order_by("slot").values_list("slot", "node_id")
            self.first_cells = [list(cell) for cell in cells]
        return self.first_cells

    @property
    def continued_job_id(self) -> str | None:
        """The owner's earlier job whose adapter they chose to continue."""
        start = self.start
        return start["job_id"] if start and start["kind"] == StartKind.CONTINUED else None

    @property
    def offer_id(self) -> str:
        """The warm start's offer that it names; empty without one."""
        return str((self.start or {}).get("offer_id", ""))

    @property
    def royalty_micros(self) -> int:
        """What of the payment is for the owner of the adapter that the job begins with."""
        return int((self.start or {}).get("royalty_micros", 0))

    @property
    def excess_micros(self) -> int:
        """What the payment with a warm start is above the price without it; it is returned."""
        if self.cold_price_micros is None or self.payment_micros is None:
            return 0
        return max(0, self.payment_micros - self.cold_price_micros)

    @property
    def paid_micros(self) -> int:
        """What the owner has paid after what was returned; nothing for a bid that did not win."""
        return (self.payment_micros or 0) - self.refund_micros

    @property
    def hold_reference(self) -> str:
        return hold_reference(self.id)


class LogEntry(models.Model):
    """One event of a zone and its outcome. Append-only, by trigger."""

    zone_id: str
    # The constraint below has an index that begins with it.
    zone = models.ForeignKey(
        "fleet.Zone", on_delete=models.PROTECT, related_name="+", db_index=False
    )
    position = models.BigIntegerField()
    kind = models.CharField(max_length=32)
    #: Canonical JSON text of the engine's event: text, because ``jsonb`` does
    #: not keep how a float was written and the hash covers the bytes.
    event = models.TextField()
    #: Canonical JSON text of what the engine answered.
    outcome = models.TextField()
    prev_hash = models.CharField(max_length=64)
    hash = models.CharField(max_length=64)
    recorded_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["zone", "position"], name="auction_log_one_per_position"
            )
        ]
        triggers = [
            pgtrigger.Protect(name="append_only", operation=pgtrigger.Update | pgtrigger.Delete)
        ]

    def __str__(self) -> str:
        return f"{self.zone_id}/{self.position} {self.kind}"


class MarketHead(models.Model):
    """How far the log of a zone is; changed only by its lane, once per batch."""

    zone_id: str
    zone = models.OneToOneField(
        "fleet.Zone", primary_key=True, on_delete=models.PROTECT, related_name="+"
    )
    #: Of the last entry of the log, which counts from 1.
    position = models.BigIntegerField(default=0)
    head_hash = models.CharField(max_length=64)
    #: Of the last event on the stream ``market.<zone name>``.
    seq = models.BigIntegerField(default=0)
    #: Latest slot the log knows.
    slot = models.BigIntegerField()
    updated_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.zone_id}@{self.position}"


class SolveStatus(models.TextChoices):
    NONE = "none", "Never solved"
    SOLVING = "solving", "Solving"
    #: Solved; the lane has not written the prices to the log yet.
    WAITING = "waiting", "Waiting for the lane"
    APPLIED = "applied", "In force"
    #: The market had moved on when the prices came.
    DISCARDED = "discarded", "Discarded"
    FAILED = "failed", "Failed"


class Pricing(models.Model):
    """Which policy a zone's log is under, and how the last solve for prices went.

    The log is the truth: these columns say the same sooner. The prices of a solve
    wait here for the lane.
    """

    zone_id: str
    zone = models.OneToOneField(
        "fleet.Zone", primary_key=True, on_delete=models.PROTECT, related_name="pricing"
    )
    #: In force; ``Zone.policy`` is what the operator wants. Empty before the log begins.
    policy = models.CharField(max_length=16, default="", blank=True)
    policy_since_at = models.DateTimeField(null=True)

    #: Log position and slot of the prices in force; null: none were solved.
    applied_position = models.BigIntegerField(null=True)
    applied_slot = models.BigIntegerField(null=True)
    applied_at = models.DateTimeField(null=True)
    #: Share of the dual value that solving took off: how badly the prices before fitted.
    gain = models.FloatField(null=True)
    #: Bids expected in the horizon when they were solved.
    expected_bids = models.FloatField(null=True)

    #: The last attempt.
    status = models.CharField(max_length=12, choices=SolveStatus.choices, default=SolveStatus.NONE)
    #: Why it failed or was discarded; empty otherwise.
    problem = models.CharField(max_length=500, default="", blank=True)
    attempted_at = models.DateTimeField(null=True)
    #: Slot and fleet it was for.
    attempted_slot = models.BigIntegerField(null=True)
    attempted_fleet = models.CharField(max_length=64, default="", blank=True)
    solve_s = models.FloatField(null=True)
    #: Attempts that failed since the last that did not.
    failures = models.PositiveIntegerField(default=0)
    #: Not tried again before.
    next_at = models.DateTimeField(null=True)
    #: JSON text of the event the lane is to apply; null when none waits.
    waiting = models.TextField(null=True)

    def __str__(self) -> str:
        return f"{self.zone_id} {self.policy}"


class Snapshot(models.Model):
    """The engine's state at a position of the log; the one at 0 holds the zone's rules."""

    zone_id: str
    zone = models.ForeignKey("fleet.Zone", on_delete=models.PROTECT, related_name="+")
    #: Of the last entry applied; 0 before the first.
    position = models.BigIntegerField()
    head_hash = models.CharField(max_length=64)
    #: JSON text, exact floats.
    state = models.TextField()
    taken_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["zone", "position"], name="auction_snapshot_one_per_position"
            )
        ]

    def __str__(self) -> str:
        return f"{self.zone_id}@{self.position}"


#: The plan that a bid was admitted with.
FIRST_REVISION = 1


class Reservation(models.Model):
    """One cell of one admitted bid, for queries; the log is the truth.

    The rows of a bid are the record of its plans: each new plan is a revision, and a cell that
    went back on sale has ``released_at``. Rows are never deleted.
    """

    bid_id: str
    zone_id: str
    node_id: str
    bid = models.ForeignKey(Bid, on_delete=models.PROTECT, related_name="reservations")
    # The index below begins with it.
    zone = models.ForeignKey(
        "fleet.Zone", on_delete=models.PROTECT, related_name="+", db_index=False
    )
    node = models.ForeignKey("fleet.Node", on_delete=models.PROTECT, related_name="+")
    #: Of the bid's plan, from ``FIRST_REVISION`` on.
    revision = models.PositiveIntegerField(default=FIRST_REVISION, db_default=FIRST_REVISION)
    slot = models.BigIntegerField()
    #: Work units; the column is named as the paper names them.
    samples = models.FloatField()
    memory_gb = models.FloatField()
    #: What the provider is to earn for this share of the slot (e_ikt), rounded up.
    operational_cost_micros = models.BigIntegerField()
    #: Micro-dollars a sample, as posted when the cell was sold; null: the ask is paid.
    posted_rate_micros = models.FloatField(null=True)
    released_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["bid", "slot"],
                condition=Q(released_at__isnull=True),
                name="auction_reservation_one_node_per_slot",
            )
        ]
        indexes = [
            models.Index(fields=["zone", "slot", "node"], name="auction_reservation_cell"),
        ]

    def __str__(self) -> str:
        return f"{self.bid_id} slot {self.slot} on {self.node_id}"


class WorkShare(models.Model):
    """What one node did of a job that was settled, and what its provider got for it."""

    bid_id: str
    node_id: str
    organisation_id: str

    bid = models.ForeignKey(Bid, on_delete=models.PROTECT, related_name="work_shares")
    node = models.ForeignKey("fleet.Node", on_delete=models.PROTECT, related_name="work_shares")
    #: The provider.
    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.PROTECT, related_name="+"
    )
    #: Optimizer steps that counted.
    steps = models.PositiveIntegerField()
    #: Work units of those steps, evaluations included.
    units = models.PositiveBigIntegerField()
    #: Its part of the operational cost, by its units.
    earned_micros = models.BigIntegerField()
    #: What of it was paid: less where the provider was at fault.
    paid_micros = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["bid", "node"], name="auction_work_share_once"),
            models.CheckConstraint(
                condition=Q(paid_micros__gte=0, paid_micros__lte=F("earned_micros")),
                name="auction_work_share_paid_within_earned",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.steps} steps of {self.bid_id} on {self.node_id}"


class MarketKey(models.Model):
    """A key that signs, or signed, heads and receipts; its private half is a file."""

    #: Ed25519, 32 bytes in hex.
    public_key = models.CharField(max_length=64, primary_key=True)
    created_at = models.DateTimeField()
    #: In use no longer; what it signed stays valid.
    retired_at = models.DateTimeField(null=True)
    #: Signature of the key before over this one, in hex; empty for the first key, and for one
    #: that was made because the key before was lost.
    vouched_by = models.CharField(max_length=128, default="", blank=True)

    def __str__(self) -> str:
        return self.public_key


class PublishedHead(models.Model):
    """A head of a zone's log as the market signed it. Append-only, by trigger."""

    zone_id: str
    # The constraint below has an index that begins with it.
    zone = models.ForeignKey(
        "fleet.Zone", on_delete=models.PROTECT, related_name="+", db_index=False
    )
    position = models.BigIntegerField()
    #: JSON text of ``scheduler.auction.log.heads.SignedHead``.
    text = models.TextField()
    signed_at = models.DateTimeField()

    class Meta:
        db_table = "auction_signedhead"
        constraints = [
            models.UniqueConstraint(
                fields=["zone", "position"], name="auction_signed_head_one_per_position"
            )
        ]
        triggers = [
            pgtrigger.Protect(name="append_only", operation=pgtrigger.Update | pgtrigger.Delete)
        ]

    def __str__(self) -> str:
        return f"{self.zone_id}@{self.position}"


class WitnessCursor(models.Model):
    """How far a witness has a zone's signed heads, and what keeps it from having more."""

    zone_id: str
    #: As the settings name it.
    witness = models.CharField(max_length=500)
    zone = models.ForeignKey("fleet.Zone", on_delete=models.PROTECT, related_name="+")
    #: Of the last head that it took.
    position = models.BigIntegerField(default=-1)
    delivered_at = models.DateTimeField(null=True)
    #: Tries that failed since the last that did not.
    failures = models.PositiveIntegerField(default=0)
    problem = models.CharField(max_length=500, default="", blank=True)
    #: Not tried again before.
    next_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["witness", "zone"], name="auction_witness_cursor_one_per_zone"
            )
        ]

    def __str__(self) -> str:
        return f"{self.witness} of {self.zone_id}@{self.position}"


class WitnessedLog(models.Model):
    """Another market's log whose signed heads this market stores, and what keeps it from them."""

    #: As the settings name it.
    url = models.CharField(max_length=500, unique=True)
    #: Of the last head that was fetched.
    position = models.BigIntegerField(default=-1)
    fetched_at = models.DateTimeField(null=True)
    #: Tries that failed since the last that did not.
    failures = models.PositiveIntegerField(default=0)
    problem = models.CharField(max_length=500, default="", blank=True)
    #: Not tried again before.
    next_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return self.url


class WitnessedHead(models.Model):
    """A head of another market's log as that market signed it. Append-only, by trigger."""

    # The constraint below has an index that begins with it.
    log = models.ForeignKey(
        WitnessedLog, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    #: As that market names it.
    zone = models.CharField(max_length=200)
    position = models.BigIntegerField()
    hash = models.CharField(max_length=128)
    #: JSON text of ``scheduler.auction.log.heads.SignedHead``.
    text = models.TextField()
    seen_at = models.DateTimeField()

    class Meta:
        constraints = [
            # Two heads of one position are the proof of two histories: both are stored.
            models.UniqueConstraint(
                fields=["log", "zone", "position", "hash"], name="auction_witnessed_head_once"
            )
        ]
        triggers = [
            pgtrigger.Protect(name="append_only", operation=pgtrigger.Update | pgtrigger.Delete)
        ]

    def __str__(self) -> str:
        return f"{self.zone}@{self.position}"
