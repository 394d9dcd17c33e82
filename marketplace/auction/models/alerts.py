"""What did not work, and when."""

from __future__ import annotations

from django.db import models
from django.db.models import Q


class Alert(models.Model):
    """Something that does not work, from when it was seen until it works again."""

    #: ``HealthPart`` of the probe that found it, and its label.
    part = models.CharField(max_length=12)
    label = models.CharField(max_length=200)
    #: Name of its zone, where it is of one.
    zone = models.CharField(max_length=80, blank=True)
    text = models.CharField(max_length=500)
    since_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    #: When the operators were sent its beginning, and its end.
    begin_sent_at = models.DateTimeField(null=True)
    end_sent_at = models.DateTimeField(null=True)
    #: Until then the process that has it sends it; no other one does.
    sending_until = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["label", "zone"], condition=Q(ended_at=None), name="alert_open_once"
            )
        ]
        indexes = [models.Index(fields=["since_at"], name="alert_by_time")]

    def __str__(self) -> str:
        return f"{self.label} {self.zone}".strip()
