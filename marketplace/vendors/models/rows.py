"""Rows of data that people work on in the console, and what they did to them."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q

from marketplace.vendors.models.preparations import Preparation


class RowState(models.TextChoices):
    OPEN = "open", "Open"
    #: As the program proposed it.
    ACCEPTED = "accepted", "Accepted"
    EDITED = "edited", "Edited"
    DROPPED = "dropped", "Left out"


class WorkRow(models.Model):
    """One row of a preparation by people."""

    preparation_id: str
    leased_by_id: str | None

    preparation = models.ForeignKey(Preparation, on_delete=models.CASCADE, related_name="rows")
    #: 1 and on, in the order of the file.
    number = models.PositiveIntegerField()
    #: Line of the raw file on which it begins.
    line = models.PositiveIntegerField()
    #: The row as it was found, masked where its owner asked.
    raw = models.TextField()
    #: The row as the program repairs it, as JSON; empty where it cannot.
    proposal = models.TextField(default="", blank=True)
    #: What is wrong with the row, in sentences.
    notes: Any = models.JSONField(default=list)
    state = models.CharField(max_length=8, choices=RowState.choices, default=RowState.OPEN)
    #: The row as it will be delivered, as JSON; empty while open or where it is left out.
    value = models.TextField(default="", blank=True)
    #: Rises with each change.
    version = models.PositiveIntegerField(default=0)

    #: Who edits it, and until when the others may not.
    leased_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    leased_until = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["preparation", "number"], name="vendors_row_number")
        ]
        indexes = [
            models.Index(
                fields=["preparation", "number"],
                condition=Q(state="open"),
                name="vendors_row_open",
            )
        ]

    def __str__(self) -> str:
        return f"row {self.number} of {self.preparation_id}"


class RowEdit(models.Model):
    """One change of one row by one person; several made together share a batch."""

    row_id: int
    edited_by_id: str

    row = models.ForeignKey(WorkRow, on_delete=models.CASCADE, related_name="edits")
    batch = models.CharField(max_length=40, db_index=True)
    before_state = models.CharField(max_length=8, choices=RowState.choices)
    before_value = models.TextField(default="", blank=True)
    #: The row's version after it.
    version = models.PositiveIntegerField()
    edited_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+"
    )
    edited_at = models.DateTimeField()
    undone_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [models.Index(fields=["edited_by", "-id"], name="vendors_edit_of_person")]

    def __str__(self) -> str:
        return f"edit of {self.row_id}"
