"""Rented machines, the state of a zone's two tiers, and jobs' stays on serverless."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from marketplace.common.models import IdField
from marketplace.fleet.models import Tier


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
    """Whether and how the house runs its own tiers in a zone, and where the scalers stand."""

    zone = models.OneToOneField(
        "fleet.Zone", on_delete=models.PROTECT, primary_key=True, related_name="tiers"
    )
    #: The house's own provider; lists the machines' nodes.
    provider = models.ForeignKey("fleet.Provider", on_delete=models.PROTECT, related_name="+")
    #: Where serverful machines come from, and where serverless ones do.
    backend = models.CharField(max_length=32, default="local")
    serverless_backend = models.CharField(max_length=32, default="local")
    is_on = models.BooleanField(default=True)
    serverless_cap = models.PositiveIntegerField(default=1)
    serverful_cap = models.PositiveIntegerField(default=1)
    #: Pause of a move, as measured here: to write a checkpoint, and to go on from it.
    checkpoint_s = models.FloatField(default=5.0)
    restore_s = models.FloatField(default=10.0)
    #: Idle seconds after which a machine is given back.
    idle_s = models.FloatField(default=60.0)
    #: F of Algorithm 1, seconds.
    threshold_s = models.FloatField(default=300.0)
    #: p of equation 2; infinite with demand and no workers.
    pressure = models.FloatField(default=0.0)
    ticked_at = models.DateTimeField(null=True)

    zone_id: str

    def __str__(self) -> str:
        return self.zone_id

    def backend_of(self, tier: str) -> str:
        return self.serverless_backend if tier == Tier.SERVERLESS else self.backend


class Machine(models.Model):
    """A machine the house pays for by the second, from request to release."""

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
    #: Found running although nobody had asked for it.
    is_orphan = models.BooleanField(default=False)
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
        indexes = [models.Index(fields=["zone", "status"], name="tiers_machine_of_zone")]

    def __str__(self) -> str:
        return self.id

    @property
    def node_id(self) -> str | None:
        """The node it became, once joined."""
        return None if self.join_token is None else self.join_token.node_id


class Stay(models.Model):
    """One job's time on a serverless machine, at the house's expense."""

    job = models.ForeignKey("jobs.Job", on_delete=models.PROTECT, related_name="stays")
    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="stays")
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    #: The machine's price over the stay.
    cost_micros = models.BigIntegerField(default=0)
    #: When the reserved cells it made needless went back to the market.
    released_at = models.DateTimeField(null=True)

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

    def __str__(self) -> str:
        return f"{self.job_id} on {self.machine_id}"
