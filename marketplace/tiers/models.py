"""Rented machines, the state of a zone's two tiers, and jobs' stays on serverless."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from marketplace.common.models import IdField
from marketplace.fleet.models import Tier
from scheduler.tiers.rules import TierRules


class MachineStatus(models.TextChoices):
    #: Decided, not yet asked of its backend.
    REQUESTED = "requested", "Requested"
    BOOTING = "booting", "Booting"
    #: Its node is in the market.
    RUNNING = "running", "Running"
    #: Being ended; asked again until its backend no longer lists it.
    ENDING = "ending", "Ending"
    ENDED = "ended", "Ended"


#: Machines that cost money or soon will.
LIVE = (
    MachineStatus.REQUESTED,
    MachineStatus.BOOTING,
    MachineStatus.RUNNING,
    MachineStatus.ENDING,
)


class ZoneTiers(models.Model):
    """Whether and how the market runs its own tiers in a zone, and where the scalers stand."""

    zone = models.OneToOneField(
        "fleet.Zone", on_delete=models.PROTECT, primary_key=True, related_name="tiers"
    )
    #: The market's own provider; lists the machines' nodes.
    provider = models.ForeignKey("fleet.Provider", on_delete=models.PROTECT, related_name="+")
    #: Where serverful machines come from, and where serverless ones do.
    backend = models.CharField(max_length=32, default="local")
    serverless_backend = models.CharField(max_length=32, default="local")
    is_on = models.BooleanField(default=True)
    #: A job may begin on a worker; otherwise every job that waits begins on serverless.
    starts_directly = models.BooleanField(default=True)
    #: What could be rented is on sale before it is.
    sells_offers = models.BooleanField(default=False)
    serverless_cap = models.PositiveIntegerField(default=1)
    serverful_cap = models.PositiveIntegerField(default=1)
    #: Pause of a move: to write a checkpoint, and to go on from it. What the operator says, until
    #: enough moves were measured (``switch_latency.measure_pauses``).
    checkpoint_s = models.FloatField(default=5.0)
    restore_s = models.FloatField(default=10.0)
    #: Idle seconds after which a machine is given back.
    idle_s = models.FloatField(default=60.0)
    #: Seconds on serverless after which a job's speed is known.
    probe_s = models.FloatField(default=30.0)
    #: Lambda: dollars the operator pays to save a job an hour of delay.
    delay_usd_per_h = models.FloatField(default=5.0)
    #: F of Algorithm 1, seconds.
    threshold_s = models.FloatField(default=300.0)
    #: p of equation 2; infinite with demand and no workers.
    pressure = models.FloatField(default=0.0)
    ticked_at = models.DateTimeField(null=True)
    #: What Algorithm 1 would have spent and we did not (``scheduler.tiers.allowance``),
    #: dollars times 3600.
    surplus = models.FloatField(default=0.0)
    #: Tables of ``scheduler.tiers.hazard``, learned from the zone's ended jobs; empty at first.
    deaths = models.JSONField(default=list)
    exposure_s = models.JSONField(default=list)
    #: Jobs that ended up to then are in the tables.
    learned_at = models.DateTimeField(null=True)

    zone_id: str

    def __str__(self) -> str:
        return self.zone_id

    @property
    def rules(self) -> TierRules:
        """The policies' rules with the zone's own pauses and price of delay."""
        return TierRules(
            checkpoint_s=self.checkpoint_s,
            restore_s=self.restore_s,
            delay_usd_per_h=self.delay_usd_per_h,
        )

    def backend_of(self, tier: str) -> str:
        return self.serverless_backend if tier == Tier.SERVERLESS else self.backend


class Machine(models.Model):
    """A machine the market pays for by the second, from request to release."""

    id = IdField(prefix="mach")
    #: Null for a machine that was found running and belongs to no zone we know.
    zone = models.ForeignKey("fleet.Zone", on_delete=models.PROTECT, null=True, related_name="+")
    backend = models.CharField(max_length=32)
    tier = models.CharField(max_length=16, choices=Tier.choices)
    offer = models.CharField(max_length=64)
    price_micros_per_h = models.BigIntegerField()
    status = models.CharField(
        max_length=12, choices=MachineStatus.choices, default=MachineStatus.REQUESTED
    )
    #: What its node joins with; names the node once it has joined.
    join_token = models.OneToOneField(
        "fleet.JoinToken", on_delete=models.PROTECT, null=True, related_name="+"
    )
    #: Found running although it was not requested.
    is_orphan = models.BooleanField(default=False)
    #: When it was given up though it was asked for: our cost, and its offer is left alone
    #: for a while.
    failed_at = models.DateTimeField(null=True)
    requested_at = models.DateTimeField()
    ready_at = models.DateTimeField(null=True)
    #: Since when it has had nothing to do.
    idle_since_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    cost_micros = models.BigIntegerField(default=0)
    #: Why it was asked for, then why it ended.
    reason = models.CharField(max_length=255, default="", blank=True)

    zone_id: str | None

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(price_micros_per_h__gte=0, cost_micros__gte=0),
                name="tiers_machine_costs_not_negative",
            ),
            models.CheckConstraint(
                condition=Q(status=MachineStatus.ENDED, ended_at__isnull=False)
                | (~Q(status=MachineStatus.ENDED) & Q(ended_at__isnull=True)),
                name="tiers_machine_ended_has_time",
            ),
        ]
        indexes = [
            models.Index(fields=["zone", "status"], name="tiers_machine_of_zone"),
            models.Index(
                fields=["failed_at"],
                condition=Q(failed_at__isnull=False, ready_at__isnull=True),
                name="tiers_machine_boot_failed",
            ),
        ]

    def __str__(self) -> str:
        return self.id

    @property
    def node_id(self) -> str | None:
        """The node it became, once joined."""
        return None if self.join_token is None else self.join_token.node_id


class ListedOffer(models.Model):
    """An offer of a backend that is on sale as a node, and is rented when a cell of it is sold."""

    tiers = models.ForeignKey(ZoneTiers, on_delete=models.PROTECT, related_name="listed")
    node = models.OneToOneField("fleet.Node", on_delete=models.PROTECT, related_name="+")
    offer = models.CharField(max_length=64)
    price_micros_per_h = models.BigIntegerField()
    #: What was rented for it.
    machine = models.OneToOneField(
        Machine, on_delete=models.PROTECT, null=True, related_name="listing"
    )
    listed_at = models.DateTimeField()
    #: When it was taken off sale, or its machine was in the market or given up.
    closed_at = models.DateTimeField(null=True)

    node_id: str
    machine_id: str | None

    class Meta:
        indexes = [
            models.Index(
                fields=["tiers"],
                condition=Q(closed_at__isnull=True),
                name="tiers_listed_open",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.offer} as {self.node_id}"


class Stay(models.Model):
    """One job's time on a serverless machine, at the market's expense."""

    job = models.ForeignKey("jobs.Job", on_delete=models.PROTECT, related_name="stays")
    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="stays")
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    #: The machine's price over the stay.
    cost_micros = models.BigIntegerField(default=0)
    #: When the reserved cells it made needless went back to the market.
    released_at = models.DateTimeField(null=True)
    #: From its last step here to its first one elsewhere; null for a job that ended here.
    pause_s = models.FloatField(null=True)
    #: Its part in the allowance; null until the job was first looked at after its probe.
    credit = models.FloatField(null=True)
    planned = models.FloatField(default=0.0)
    #: Dollars an hour above the worker it was compared with, and the cost of one move to it.
    premium = models.FloatField(default=0.0)
    move_cost = models.FloatField(default=0.0)
    #: F when it was first looked at.
    budget_s = models.FloatField(default=0.0)

    job_id: str
    machine_id: str

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["job"], condition=Q(ended_at__isnull=True), name="tiers_stay_one_per_job"
            ),
            models.UniqueConstraint(
                fields=["machine"],
                condition=Q(ended_at__isnull=True),
                name="tiers_stay_one_per_machine",
            ),
        ]
        indexes = [
            models.Index(
                fields=["machine"],
                condition=Q(ended_at__isnull=False, released_at__isnull=True),
                name="tiers_stay_unreleased",
            ),
            models.Index(
                fields=["ended_at"],
                condition=Q(ended_at__isnull=False, pause_s__isnull=True),
                name="tiers_stay_unpaused",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} on {self.machine_id}"


class BookingOutcome(models.TextChoices):
    #: The worker boots, or the job is about to leave for it.
    WAITING = "waiting", "Waiting"
    MOVED = "moved", "Moved"
    #: The job ended first, or moving no longer repaid.
    NEEDLESS = "needless", "Needless"
    #: The worker never came up, or went before the job had moved.
    FAILED = "failed", "Failed"


class Booking(models.Model):
    """A worker promised to a job, until the job runs on it.

    Just-in-time hand-off: the worker boots while the job still runs where it is. A job that has
    not begun waits for it.
    """

    job = models.ForeignKey("jobs.Job", on_delete=models.PROTECT, related_name="bookings")
    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="bookings")
    #: Where the job ran when the worker was booked; null for one that begins on the worker.
    origin = models.ForeignKey(Machine, on_delete=models.PROTECT, null=True, related_name="+")
    made_at = models.DateTimeField()
    #: When the job was given cells on the worker, and what it then had left to run (as booked,
    #: where it begins on the worker).
    handed_at = models.DateTimeField(null=True)
    left_s = models.FloatField(default=0.0)
    closed_at = models.DateTimeField(null=True)
    outcome = models.CharField(
        max_length=10, choices=BookingOutcome.choices, default=BookingOutcome.WAITING
    )
    #: What going on where it was would have cost more, as known at the hand-off.
    saved_micros = models.BigIntegerField(default=0)
    #: From the last step on the one node to the first on the other.
    pause_s = models.FloatField(null=True)
    #: What it gave the surplus of the allowance, dollars times 3600; taken back unless the
    #: job moves.
    credit = models.FloatField(default=0.0)

    job_id: str
    machine_id: str
    origin_id: str | None

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["job"],
                condition=Q(closed_at__isnull=True),
                name="tiers_booking_one_per_job",
            ),
            models.UniqueConstraint(
                fields=["machine"],
                condition=Q(closed_at__isnull=True),
                name="tiers_booking_one_per_machine",
            ),
            models.CheckConstraint(
                condition=Q(outcome=BookingOutcome.WAITING, closed_at__isnull=True)
                | (~Q(outcome=BookingOutcome.WAITING) & Q(closed_at__isnull=False)),
                name="tiers_booking_closed_has_outcome",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} to {self.machine_id}"


class Sample(models.Model):
    """The tiers of a zone at one tick, for the operator's chart; kept for a day."""

    zone = models.ForeignKey("fleet.Zone", on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField()
    #: Null: infinite, demand without any capacity.
    pressure = models.FloatField(null=True)
    threshold_s = models.FloatField()
    serverless = models.PositiveIntegerField()
    serverful = models.PositiveIntegerField()
    cost_micros_per_h = models.BigIntegerField()

    zone_id: str

    class Meta:
        indexes = [models.Index(fields=["zone", "at"], name="tiers_sample_series")]

    def __str__(self) -> str:
        return f"{self.zone_id} {self.at}"


class ProfitSum(models.Model):
    """What one line of the house gained in a month and zone, in the entries that were summed."""

    #: Its first moment, in UTC.
    month_at = models.DateTimeField()
    #: By name; what belongs to none has a name of its own.
    zone_name = models.CharField(max_length=200)
    #: The account of the house that the line is a sum of.
    kind = models.CharField(max_length=40)
    amount_micros = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["month_at", "zone_name", "kind"], name="tiers_profit_sum_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.month_at:%Y-%m} {self.zone_name} {self.kind}"


class ProfitCursor(models.Model):
    """How far profits are summed; there is one row."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    #: The last seal of the ledger whose entries are in the sums.
    seal_number = models.PositiveBigIntegerField(default=0)

    class Meta:
        constraints = [models.CheckConstraint(name="tiers_profit_cursor_is_one", condition=Q(id=1))]

    def __str__(self) -> str:
        return f"seal {self.seal_number}"
