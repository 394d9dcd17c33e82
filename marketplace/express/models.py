"""The prompt bank: who lends prompts, which there are, and what lookups found."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q

from marketplace.auction.models import hold_reference
from marketplace.common.models import IdField


class Sharing(models.TextChoices):
    """Who may start from the prompts that an organisation tunes."""

    NOBODY = "nobody", "Nobody: no prompt is stored"
    PRIVATE = "private", "Your own jobs"
    EVERYBODY = "everybody", "Everybody's jobs on the same base model"


class BankConsent(models.Model):
    """What an organisation agreed to; without a row, nothing."""

    organisation = models.OneToOneField(
        "accounts.Organisation", primary_key=True, on_delete=models.PROTECT, related_name="+"
    )
    sharing = models.CharField(max_length=12, choices=Sharing.choices, default=Sharing.NOBODY)
    given_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, related_name="+"
    )
    given_at = models.DateTimeField()

    organisation_id: str

    def __str__(self) -> str:
        return f"{self.organisation_id}: {self.sharing}"


class BankPrompt(models.Model):
    """One tuned prompt that jobs may start from: its numbers, and no text of its owner."""

    id = IdField(prefix="prompt")
    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.PROTECT, related_name="+", db_index=False
    )
    #: The job that tuned it.
    job_id = models.CharField(max_length=40, unique=True)
    #: Source and revision of the base model: zones with the same one share the bank.
    base_model = models.CharField(max_length=400)
    is_shared = models.BooleanField()
    virtual_tokens = models.PositiveIntegerField()
    width = models.PositiveIntegerField()
    #: ``float32[virtual_tokens, width]``, little-endian; empty once withdrawn.
    values = models.BinaryField()
    #: SHA-256 of the values.
    sha256 = models.CharField(max_length=64)
    #: ``float32[task_features.WIDTH]``: what its task is about.
    features = models.BinaryField()
    created_at = models.DateTimeField()
    withdrawn_at = models.DateTimeField(null=True)

    #: Jobs it was a candidate of, and jobs that started from it.
    offered = models.PositiveIntegerField(default=0)
    hits = models.PositiveIntegerField(default=0)
    #: Sum over its hits of the loss that the job's own prompt had more.
    gain = models.FloatField(default=0.0)

    organisation_id: str

    class Meta:
        indexes = [
            models.Index(
                fields=["base_model", "virtual_tokens", "is_shared"],
                condition=Q(withdrawn_at__isnull=True),
                name="express_prompt_candidates",
            ),
            models.Index(fields=["organisation", "-created_at"], name="express_prompt_of"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["base_model", "sha256"],
                condition=Q(withdrawn_at__isnull=True),
                name="express_prompt_once",
            ),
        ]

    def __str__(self) -> str:
        return self.id


class LookupRecord(models.Model):
    """What the bank did for one finished soft-prompt job, and what the job gave to the bank."""

    job_id = models.CharField(max_length=40, primary_key=True)
    #: ``workers.protocol.LookupFigures`` as JSON; null: nothing was looked up.
    lookup: Any = models.JSONField(null=True)
    #: The prompt that the job started from, if it was one of the bank's.
    started_from = models.ForeignKey(
        BankPrompt, on_delete=models.PROTECT, null=True, related_name="records"
    )
    #: Why its own prompt is not in the bank; empty where it is.
    left_out = models.CharField(max_length=200, default="", blank=True)
    recorded_at = models.DateTimeField()

    started_from_id: str | None

    def __str__(self) -> str:
        return f"lookup of {self.job_id}"


class ExpressLane(models.Model):
    """What an operator chose for the express lane of a zone, and what it sells at now."""

    zone = models.OneToOneField(
        "fleet.Zone", primary_key=True, on_delete=models.PROTECT, related_name="express_lane"
    )
    #: Whose wallet pays for the seats.
    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.PROTECT, related_name="+"
    )
    is_open = models.BooleanField(default=True)
    #: It buys seats on nodes of verified providers only, and so may take jobs that ask for them.
    verified_only = models.BooleanField(default=False, db_default=False)
    #: Bounds of the floor; bursts go up to the second as well.
    least_seats = models.PositiveIntegerField(default=1)
    most_seats = models.PositiveIntegerField(default=4)
    #: Most that a seat may cost in a slot: the limit of the lane's own bids.
    seat_limit_micros = models.BigIntegerField()
    #: Most that the floor may cost in an hour.
    budget_micros_per_h = models.BigIntegerField()
    #: What a seat's second is sold for, above what the last seats cost.
    markup_percent = models.PositiveIntegerField(default=50)
    #: Surcharge at the least SLO; half of it at twice that.
    urgency_percent = models.PositiveIntegerField(default=50)
    slo_max_s = models.FloatField(default=180.0)

    #: Posted rate of a seat, micro-dollars a second; null until a seat was bought.
    rate_micros = models.BigIntegerField(null=True)
    #: Seats that the newsvendor rule wants now.
    floor_seats = models.PositiveIntegerField(default=0)
    ticked_at = models.DateTimeField(null=True)

    zone_id: str
    organisation_id: str

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(least_seats__lte=models.F("most_seats")),
                name="express_lane_bounds_rise",
            )
        ]

    def __str__(self) -> str:
        return f"express lane of {self.zone_id}"


class Seat(models.Model):
    """Cells that the lane bid for: one job's place on a node, slot after slot."""

    #: The lane's bid in the auction.
    bid_id = models.CharField(max_length=40, primary_key=True)
    lane = models.ForeignKey(ExpressLane, on_delete=models.PROTECT, related_name="seats")
    #: First bid of the chain of cells that it goes on; its own where it begins one.
    root = models.CharField(max_length=40)
    #: Bought for jobs that wait, above the floor.
    is_burst = models.BooleanField()
    first_slot = models.BigIntegerField()
    last_slot = models.BigIntegerField()
    created_at = models.DateTimeField()
    #: When its provider was paid and what was not used went back.
    settled_at = models.DateTimeField(null=True)

    lane_id: str

    class Meta:
        indexes = [models.Index(fields=["lane", "last_slot"], name="express_seat_present")]

    def __str__(self) -> str:
        return f"seat {self.bid_id}"


class RequestStatus(models.TextChoices):
    PENDING = "pending", "Pending"
    ADMITTED = "admitted", "Certified"
    #: A later SLO can be certified; nothing is held for it.
    OFFERED = "offered", "Later"
    REFUSED = "refused", "Refused"


class ExpressRequest(models.Model):
    """One prompt-tuning job that asks for an SLO, and what the lane answered."""

    id = IdField(prefix="express")
    zone = models.ForeignKey("fleet.Zone", on_delete=models.PROTECT, related_name="+")
    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.PROTECT, related_name="+", db_index=False
    )
    placed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, related_name="+"
    )
    dataset = models.ForeignKey("jobs.Dataset", on_delete=models.PROTECT, related_name="+")
    name = models.CharField(max_length=64)
    status = models.CharField(
        max_length=12, choices=RequestStatus.choices, default=RequestStatus.PENDING
    )
    #: Seconds from the request in which the job is to be done.
    slo_s = models.FloatField()
    #: ``AdapterSpec`` and ``TrainingSpec`` with every ``auto`` resolved.
    adapter: Any = models.JSONField()
    training: Any = models.JSONField()
    resolved: Any = models.JSONField(default=list)
    samples = models.PositiveBigIntegerField()
    compute_demand = models.FloatField()
    memory_demand_gb = models.FloatField()
    rates: Any = models.JSONField()
    #: Seconds of a seat that it takes at most, without and for a lookup.
    work_s = models.FloatField()
    lookup_s = models.FloatField()
    #: What its rows are about; see ``task_features``.
    features = models.BinaryField()
    #: Seats on nodes of verified providers only.
    verified_only = models.BooleanField(default=False, db_default=False)
    #: Posted rate and surcharge when it was asked, and what it costs at most; held until the
    #: answer.
    price: Any = models.JSONField()
    limit_micros = models.BigIntegerField()
    idempotency_key = models.CharField(max_length=255, null=True)
    request_hash = models.CharField(max_length=64)
    created_at = models.DateTimeField()

    answered_at = models.DateTimeField(null=True)
    #: ``scheduler.prompts.answers.answer_question``'s.
    answer: Any = models.JSONField(null=True)
    #: Place of the answer in the zone's log, and its hash there.
    position = models.BigIntegerField(null=True)
    decision_hash = models.CharField(max_length=64, default="", blank=True)
    #: The admitted job's bid, made of the answer, and the first bid of the chain it sits on.
    bid_id = models.CharField(max_length=40, default="", blank=True)
    seat_bid_id = models.CharField(max_length=40, default="", blank=True)

    zone_id: str
    organisation_id: str
    dataset_id: str
    placed_by_id: str | None

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["organisation", "idempotency_key"],
                condition=Q(idempotency_key__isnull=False),
                name="express_request_one_per_idempotency_key",
            ),
        ]
        indexes = [
            models.Index(
                fields=["zone", "created_at"],
                condition=Q(status="pending"),
                name="express_request_pending",
            ),
            models.Index(fields=["organisation", "-created_at"], name="express_request_of"),
            models.Index(
                fields=["seat_bid_id"],
                condition=~Q(seat_bid_id=""),
                name="express_request_seat",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.id} ({self.status})"

    @property
    def planned_bid_id(self) -> str:
        """The bid that it becomes once it is admitted, and whose hold it has from the first."""
        return self.id.replace("express", "bid", 1)

    @property
    def hold_reference(self) -> str:
        return hold_reference(self.planned_bid_id)


class GangSeat(models.Model):
    """A further seat of an admitted job that sits on several."""

    request = models.ForeignKey(ExpressRequest, on_delete=models.CASCADE, related_name="gang_seats")
    #: As ``ExpressRequest.seat_bid_id``, which has the first one.
    root = models.CharField(max_length=40, db_index=True)

    request_id: str

    def __str__(self) -> str:
        return f"{self.root} of {self.request_id}"
