"""Known prompts that a soft-prompt job may start from, as the node fetches them."""

from __future__ import annotations

from django.db import models

from marketplace.jobs.models.job import Job


def prompts_path(prompts: CandidatePrompts, _filename: str) -> str:
    return f"jobs/{prompts.job_id}/prompts.safetensors"


class CandidatePrompts(models.Model):
    """One file of candidates for one job's lookup."""

    job = models.OneToOneField(
        Job, primary_key=True, on_delete=models.PROTECT, related_name="candidate_prompts"
    )
    file = models.FileField(upload_to=prompts_path, max_length=255)
    sha256 = models.CharField(max_length=64)
    bytes = models.PositiveBigIntegerField()
    #: Seconds that the lookup may take.
    budget_s = models.FloatField()
    created_at = models.DateTimeField()

    job_id: str

    def __str__(self) -> str:
        return f"prompts for {self.job_id}"
