"""What is checked, by whom, and what came of it."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from marketplace.common.models import IdField


class CheckStatus(models.TextChoices):
    #: Its steps are not all reported yet, or no other node is there to train them again.
    WAITING = "waiting", "Waiting"
    ASKED = "asked", "Asked"
    AGREED = "agreed", "Agreed"
    DISAGREED = "disagreed", "Disagreed"
    #: No checker answered in time.
    UNANSWERED = "unanswered", "Unanswered"


def check_path(check: SpotCheck, _filename: str) -> str:
    return f"jobs/{check.job_id}/checks/{check.pk}.safetensors"


class SpotCheck(models.Model):
    """A few steps of a slice that are trained again elsewhere, or the score of its result."""

    id = IdField(prefix="chk")
    zone = models.ForeignKey("fleet.Zone", on_delete=models.PROTECT, related_name="+")
    job = models.ForeignKey("jobs.Job", on_delete=models.PROTECT, related_name="+")
    slice = models.ForeignKey("jobs.Slice", on_delete=models.PROTECT, related_name="checks")
    #: Whose work is checked.
    node = models.ForeignKey("fleet.Node", on_delete=models.PROTECT, related_name="+")
    #: Who trains the steps again; of another provider.
    checker = models.ForeignKey("fleet.Node", on_delete=models.PROTECT, null=True, related_name="+")
    #: The first opinion that this one is to confirm.
    confirms = models.OneToOneField(
        "self", on_delete=models.PROTECT, null=True, related_name="confirmation"
    )
    #: The step that both begin after; 0: from fresh weights, without a file.
    from_step = models.PositiveIntegerField()
    #: The checkpoint of that step, kept for the check.
    file = models.FileField(upload_to=check_path, max_length=255, blank=True)
    sha256 = models.CharField(max_length=64, default="", blank=True)
    bytes = models.PositiveBigIntegerField(default=0)
    #: The step of what the node stored next, whose weights are compared; null: losses alone are.
    end_step = models.PositiveIntegerField(null=True)
    #: What ``weight_sketch`` makes its sums with, and those of what both begin with and of what was
    #: stored; the former is empty where they begin with fresh weights.
    sketch_seed = models.CharField(max_length=32, default="", blank=True)
    start_sketch = models.JSONField(default=list)
    end_sketch = models.JSONField(default=list)
    #: Whether the weights agree; null: nothing is known of them.
    weights_agree = models.BooleanField(null=True)
    #: ``[[step, training loss], ...]`` that the node reported, and that the checker found.
    claimed = models.JSONField(default=list)
    found = models.JSONField(default=list)
    #: Of a result: the loss on the held-out rows that the node reported, and that the checker
    #: found; null: steps are checked.
    claimed_score = models.FloatField(null=True)
    found_score = models.FloatField(null=True)
    #: Under which the checker fetches files and answers.
    token = models.CharField(max_length=64, unique=True)
    status = models.CharField(
        max_length=10, choices=CheckStatus.choices, default=CheckStatus.WAITING
    )
    #: Times that somebody was asked.
    attempts = models.PositiveSmallIntegerField(default=0)
    #: What the market paid for it.
    paid_micros = models.BigIntegerField(default=0)
    created_at = models.DateTimeField()
    asked_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField(null=True)
    answered_at = models.DateTimeField(null=True)
    #: Since when the node is set aside because of it.
    failed_at = models.DateTimeField(null=True)

    zone_id: str
    job_id: str
    slice_id: str
    node_id: str
    checker_id: str | None

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["slice", "from_step"],
                condition=Q(confirms__isnull=True, claimed_score__isnull=True),
                name="checks_once_for_each_start",
            ),
            models.UniqueConstraint(
                fields=["job"],
                condition=Q(confirms__isnull=True, claimed_score__isnull=False),
                name="checks_one_score_of_each_job",
            ),
            models.CheckConstraint(
                condition=Q(status__in=["waiting", "unanswered"]) | Q(checker__isnull=False),
                name="checks_asked_has_checker",
            ),
        ]
        indexes = [
            models.Index(
                fields=["zone"],
                condition=Q(status__in=["waiting", "asked"]),
                name="checks_open",
            )
        ]

    def __str__(self) -> str:
        return f"{self.job_id} from step {self.from_step}"
