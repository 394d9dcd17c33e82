"""Nodes that a late end is charged to, beside those that lost or failed a slice.

A node could leave a job just before its deadline, or fall silent between two of its cells: no
slice is lost then, and without a note the market would pay for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from marketplace.jobs.models import Job, Slice, SliceStatus

_TROUBLE = (SliceStatus.LOST, SliceStatus.FAILED)


def blame_nodes(job: Job, node_ids: Iterable[str]) -> None:
    """Note nodes that were gone when their cells came. Call while holding the job."""
    new = [node_id for node_id in node_ids if node_id not in job.blamed_nodes]
    if new:
        job.blamed_nodes = [*job.blamed_nodes, *new]
        job.save(update_fields=["blamed_nodes"])


def blame_overrun(job: Job, held: Slice, *, slot: int) -> None:
    """Note the node under which a plan runs out, if the plan had gone well until then.

    Two kinds of plans may be too short without a fault of the nodes that run them: one that was
    made after trouble, and one with a cell in which no slice was opened. Call while holding both.
    """
    slices = list(Slice.objects.filter(job=job).values_list("status", "first_slot", "last_slot"))
    had_trouble = job.blamed_nodes or any(status in _TROUBLE for status, _, _ in slices)
    missed = any(
        not any(first <= at <= last for _, first, last in slices)
        for at, _ in job.cells
        if at <= slot
    )
    if not had_trouble and not missed:
        blame_nodes(job, [held.node_id])
