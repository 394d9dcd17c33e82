"""Nodes' orders: leases and the plans of their slots."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q

from marketplace.common.brief_json import BriefJSONField
from marketplace.common.models import IdField
from marketplace.jobs.models.job import Job
from marketplace.jobs.models.states import SliceStatus
from marketplace.jobs.usual_terms import USUAL_RESULT


class Slice(models.Model):
    """One job's share of one or more consecutive slots on one node, held under a lease."""

    id = IdField(prefix="slice")
    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="slices")
    # An index below begins with it.
    node = models.ForeignKey(
        "fleet.Node", on_delete=models.PROTECT, related_name="slices", db_index=False
    )
    lease_token = models.CharField(max_length=64, unique=True)
    status = models.CharField(max_length=12, choices=SliceStatus.choices, default=SliceStatus.OPEN)
    first_slot = models.BigIntegerField()
    #: The latest slot it was given; consecutive cells on a node go on under one lease.
    last_slot = models.BigIntegerField()
    #: Optimizer step it began at, and the one up to which its work counts: what was reported,
    #: and once it has ended only what does not have to be done again.
    first_step = models.PositiveIntegerField(default=0)
    last_step = models.PositiveIntegerField(default=0)
    #: Steps reported beyond ``last_step`` that somebody has to do again; 0 until it has ended.
    steps_lost = models.PositiveIntegerField(default=0)
    lease_expires_at = models.DateTimeField()
    #: Of the newest progress event received.
    last_seq = models.PositiveBigIntegerField(default=0)
    #: When the node first showed that it works on it.
    acknowledged_at = models.DateTimeField(null=True)
    #: Heartbeats in a row that did not name an acknowledged lease.
    heartbeats_missed = models.PositiveIntegerField(default=0)
    #: When its speed was last taken, the step it was at then, and the speed, which is its own.
    speed_observed_at = models.DateTimeField(null=True)
    speed_step = models.PositiveIntegerField(null=True)
    #: Work units a second.
    units_per_s = models.FloatField(null=True)
    opened_at = models.DateTimeField()
    closed_at = models.DateTimeField(null=True)
    #: ``SliceResult`` as JSON.
    result: Any = BriefJSONField(usual=USUAL_RESULT, null=True)
    #: It blamed the job's input, and no check could decide whether it was right.
    is_excused = models.BooleanField(default=False, db_default=False)
    #: Why it ended, for the job's page.
    reason = models.CharField(max_length=1000, default="", blank=True)

    job_id: str
    node_id: str

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["job"], condition=Q(status="open"), name="jobs_slice_one_open_per_job"
            ),
            models.CheckConstraint(
                condition=Q(status="open", closed_at__isnull=True)
                | (~Q(status="open") & Q(closed_at__isnull=False)),
                name="jobs_slice_closed_when_ended",
            ),
        ]
        indexes = [
            models.Index(fields=["node"], condition=Q(status="open"), name="jobs_slice_open"),
            # What nodes did lately, however much they did before.
            models.Index(fields=["node", "-closed_at"], name="jobs_slice_of_node"),
            models.Index(
                fields=["lease_expires_at"], condition=Q(status="open"), name="jobs_slice_expiry"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} on {self.node_id}"


class NodePlan(models.Model):
    """A ``SlotPlan`` for a node, which takes the newest one."""

    node = models.ForeignKey("fleet.Node", on_delete=models.PROTECT, related_name="plans")
    slot = models.BigIntegerField()
    #: From 1; a later one replaces those before it.
    revision = models.PositiveIntegerField()
    plan = models.JSONField()
    #: Lease tokens in the plan, sorted: whether a plan changed is seen from these.
    lease_tokens = models.JSONField()
    ends_at = models.DateTimeField()
    made_at = models.DateTimeField()
    #: When the node was first given it.
    taken_at = models.DateTimeField(null=True)

    node_id: str

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["node", "slot", "revision"], name="jobs_node_plan_once")
        ]

    def __str__(self) -> str:
        return f"{self.node_id} slot {self.slot}.{self.revision}"
