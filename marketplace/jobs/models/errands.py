"""Errands: side jobs of nodes, such as exports, checks and probes."""

from __future__ import annotations

import secrets
from typing import Any

from django.db import models
from django.db.models import Q

from marketplace.common.models import IdField
from workers.protocol import errands as protocol


class ErrandKind(models.TextChoices):
    EXPORT = protocol.EXPORT, "Export"
    CHECK = protocol.CHECK, "Check"
    PROBE = protocol.PROBE, "Probe"
    FAULT = protocol.FAULT, "Fault check"


class ErrandState(models.TextChoices):
    #: No node has been asked yet, or the last one did not do it.
    WAITING = "waiting", "Waiting"
    ASKED = "asked", "Asked"
    DONE = "done", "Done"
    #: No node did it.
    FAILED = "failed", "Failed"


def make_token() -> str:
    return secrets.token_urlsafe(32)


def errand_path(errand: Errand, _filename: str) -> str:
    return f"errands/{errand.id}"


class Errand(models.Model):
    """A side job of a node. Each kind adds a table with what it alone needs."""

    OPEN = (ErrandState.WAITING, ErrandState.ASKED)

    id = IdField(prefix="errand")
    kind = models.CharField(max_length=8, choices=ErrandKind.choices)
    #: What it is about: there is one errand of a kind for each key. Null: as many as there are.
    key = models.CharField(max_length=120, null=True)
    zone = models.ForeignKey("fleet.Zone", on_delete=models.PROTECT, related_name="+")
    #: Nodes of verified providers only.
    verified_only = models.BooleanField(default=False)
    state = models.CharField(max_length=8, choices=ErrandState.choices, default=ErrandState.WAITING)
    #: Who does it, or was asked last.
    node = models.ForeignKey("fleet.Node", on_delete=models.PROTECT, null=True, related_name="+")
    #: Names it between the market and the node; a new one each time that a node is asked.
    token = models.CharField(max_length=64, unique=True, default=make_token)
    #: What the node is asked, as ``workers.protocol.errands.ErrandSpec.task``.
    task: Any = models.JSONField(null=True)
    #: What the node delivered, where it is asked for a file; what a check of steps begins with.
    file = models.FileField(upload_to=errand_path, max_length=255, blank=True)
    sha256 = models.CharField(max_length=64, default="", blank=True)
    bytes = models.PositiveBigIntegerField(default=0)
    #: Times that a node was asked.
    attempts = models.PositiveSmallIntegerField(default=0)
    #: Why it failed.
    reason = models.CharField(max_length=500, default="", blank=True)
    #: What the node's provider earned with it.
    paid_micros = models.BigIntegerField(default=0)
    created_at = models.DateTimeField()
    #: No node is looked for after that. Null: it is not ready yet.
    gives_up_at = models.DateTimeField(null=True)
    asked_at = models.DateTimeField(null=True)
    #: Until then the node that was asked may answer.
    expires_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    zone_id: str
    node_id: str | None

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["kind", "key"], name="jobs_errand_once"),
            models.CheckConstraint(
                condition=Q(state__in=["waiting", "failed"]) | Q(node__isnull=False),
                name="jobs_errand_asked_has_node",
            ),
        ]
        indexes = [
            models.Index(
                fields=["created_at"],
                condition=Q(state__in=["waiting", "asked"]),
                name="jobs_errands_open",
            )
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.key or self.id}"
