"""Second opinions on rows that a vendor delivered."""

from __future__ import annotations

from typing import Any, ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q

from marketplace.vendors.models.preparations import Preparation
from marketplace.vendors.models.rows import RowState


class RowOpinion(models.Model):
    """A row of a delivery that another person does again, without seeing what was delivered."""

    #: What is the owner's in it.
    TEXTS: ClassVar = ("raw", "proposal", "delivered", "value")

    preparation_id: str
    first_by_id: str | None
    given_by_id: str | None

    preparation = models.ForeignKey(Preparation, on_delete=models.CASCADE, related_name="opinions")
    #: The row's id: its place in the owner's file, from 1.
    number = models.PositiveIntegerField()
    #: The row as it was found, masked where its owner asked.
    raw = models.TextField()
    #: The row as the program repairs it, as JSON; empty where it cannot.
    proposal = models.TextField(default="", blank=True)
    #: The row as it was delivered, as JSON; empty where it was left out.
    delivered = models.TextField(default="", blank=True)
    #: Whether the vendor took the row as proposed, changed it or left it out.
    first_decision = models.CharField(max_length=8, choices=RowState.choices)
    #: Who of the vendor decided it; null for its systems.
    first_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )

    #: Everybody of the vendor who worked on it, also where that was undone.
    edited_by: Any = models.JSONField(default=list)

    #: What the second person makes of it; empty where they leave it out, or before.
    value = models.TextField(default="", blank=True)
    #: Whether they took it as proposed, changed it or left it out; empty before.
    second_decision = models.CharField(
        max_length=8, choices=RowState.choices, default="", blank=True
    )
    given_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    given_at = models.DateTimeField(null=True, blank=True)
    #: Whether both say the same; null before.
    agrees = models.BooleanField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["preparation", "number"], name="vendors_opinion_once"),
            models.CheckConstraint(
                condition=Q(given_at__isnull=True, agrees__isnull=True)
                | Q(given_at__isnull=False, agrees__isnull=False),
                name="vendors_opinion_given_agrees",
            ),
        ]

    def __str__(self) -> str:
        return f"opinion on row {self.number} of {self.preparation_id}"
