"""What a zone's prices are made by, and the last solve."""

from __future__ import annotations

from django.db import models


class SolveStatus(models.TextChoices):
    NONE = "none", "Never solved"
    SOLVING = "solving", "Solving"
    #: Solved; the lane writes the prices to the log at the next beat.
    WAITING = "waiting", "Waiting for the next beat"
    APPLIED = "applied", "In force"
    #: The beat that they were for had passed; the prices before stand.
    DISCARDED = "discarded", "Came late"
    FAILED = "failed", "Failed"
    #: There was no bid to forecast from, and cells sell at cost.
    IDLE = "idle", "No bids"


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
    #: The house's fee for a work unit that is in force, micro-dollars.
    fee_per_unit = models.FloatField(default=0.0)

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
    #: Log position of the state that it read.
    attempted_position = models.BigIntegerField(null=True)
    solve_s = models.FloatField(null=True)
    #: Hash of the entry that promised the coming day, and its witness's signature, in hex.
    day_promise = models.CharField(max_length=64, default="", blank=True)
    day_signature = models.CharField(max_length=128, default="", blank=True)
    #: JSON text of the event the lane is to apply at the next beat; null when none waits.
    waiting = models.TextField(null=True)

    def __str__(self) -> str:
        return f"{self.zone_id} {self.policy}"
