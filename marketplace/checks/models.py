"""What is checked, by whom, and what came of it."""

from __future__ import annotations

from django.db import models

from marketplace.fleet.models import Node
from marketplace.jobs.models import Errand


class FaultCheck(Errand):
    """Steps that are trained again because a node says that its job's input is at fault.

    ``key`` is the slice's id.
    """

    job = models.ForeignKey("jobs.Job", on_delete=models.PROTECT, related_name="+")
    slice = models.ForeignKey("jobs.Slice", on_delete=models.PROTECT, related_name="+")
    #: The first opinion, that the input is sound, which this one is to confirm.
    confirms = models.OneToOneField(
        "self", on_delete=models.PROTECT, null=True, related_name="confirmation"
    )
    #: The step that the checker begins after, and the one after which the fault has shown or is
    #: none.
    from_step = models.PositiveIntegerField()
    until_step = models.PositiveIntegerField()
    #: Whether the input is at fault for the checker, too; null: nothing is known yet.
    found_fault = models.BooleanField(null=True)
    #: The last step that the checker could train before that; null: nothing was at fault.
    found_step = models.PositiveIntegerField(null=True)

    job_id: str
    slice_id: str

    def __str__(self) -> str:
        return f"{self.job_id} after step {self.from_step}"

    @property
    def checked_node(self) -> Node:
        """Which node said so."""
        return self.slice.node


class SpotCheck(Errand):
    """A few steps of a slice that are trained again elsewhere, or the score of its result.

    ``node`` is the checker, of another provider than the slice's; ``file`` a copy of the checkpoint
    that the steps begin with.
    """

    job = models.ForeignKey("jobs.Job", on_delete=models.PROTECT, related_name="+")
    slice = models.ForeignKey("jobs.Slice", on_delete=models.PROTECT, related_name="checks")
    #: The first opinion that this one is to confirm.
    confirms = models.OneToOneField(
        "self", on_delete=models.PROTECT, null=True, related_name="confirmation"
    )
    #: The step that both begin after; 0: from fresh weights, without a file.
    from_step = models.PositiveIntegerField()
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
    #: Whether the checker found what the node said; null: nothing is known yet.
    agrees = models.BooleanField(null=True)
    #: Since when the checked node is set aside because of it.
    failed_at = models.DateTimeField(null=True)
    #: When the pay of that node's unmeasured results went back to their owners.
    pay_returned_at = models.DateTimeField(null=True)

    job_id: str
    slice_id: str

    def __str__(self) -> str:
        return f"{self.job_id} from step {self.from_step}"

    @property
    def checked_node(self) -> Node:
        """Whose work is checked."""
        return self.slice.node
