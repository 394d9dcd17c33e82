"""How much of a job's work was done, and on which nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from marketplace.fleet.models import Node
from marketplace.jobs.models import Job, JobStatus, Slice, SliceStatus
from marketplace.jobs.work import count_sold_units, load_work_plan
from workers.protocol.work import WorkPlan


@dataclass(frozen=True, slots=True)
class NodeWork:
    """What one node did of a job."""

    node_id: str
    #: Whose node it is.
    organisation_id: str
    #: Optimizer steps that count.
    steps: int
    #: Work units of those steps, evaluations included, and of the samples where the job ended.
    units: int


@dataclass(frozen=True, slots=True)
class ExecutedSlice:
    """What counts of one slice: no other had to do it again."""

    slice: Slice
    #: Optimizer steps.
    steps: int
    #: Work units of those steps.
    units: int


@dataclass(frozen=True, slots=True)
class ExecutedWork:
    """What was done of a job; nodes in the order in which they began."""

    by_node: tuple[NodeWork, ...]
    #: Share of the work sold that was done: 1 for a job that finished without stopping early.
    share: Fraction
    #: Work that a warm start did beyond what was sold, as a share of that.
    overrun: Fraction = Fraction(0)

    @property
    def steps(self) -> int:
        return sum(work.steps for work in self.by_node)

    @property
    def units(self) -> int:
        return sum(work.units for work in self.by_node)


def measure_executed_work(job: Job) -> ExecutedWork:
    """Count the work that each node did and that no other node had to do again.

    A slice begins at the checkpoint it goes on from. The work of those before it counts up to
    there: what came after that checkpoint was lost with its node or set aside.
    """
    slices = list_slices(job)
    plan = load_work_plan(job) if slices else None
    executed = [] if plan is None else list_executed_slices(slices, plan)
    steps: dict[str, int] = {}
    units: dict[str, int] = {}
    owners: dict[str, str] = {}
    for of_slice in executed:
        node_id = of_slice.slice.node_id
        steps[node_id] = steps.get(node_id, 0) + of_slice.steps
        units[node_id] = units.get(node_id, 0) + of_slice.units
        owners[node_id] = of_slice.slice.node.provider.organisation_id
    by_node = tuple(
        NodeWork(node_id, owners[node_id], steps[node_id], units[node_id])
        for node_id in dict.fromkeys(held.node_id for held in slices)
        if steps[node_id]
    )
    done = sum(work.units for work in by_node)
    overrun = Fraction(0) if plan is None else _measure_overrun(job, plan, done)
    if job.status == JobStatus.SUCCEEDED and not job.stopped_early:
        return ExecutedWork(by_node, Fraction(1), overrun)
    if plan is None:
        return ExecutedWork((), Fraction(0))
    share = min(Fraction(1), Fraction(done, count_sold_units(job, plan)))
    return ExecutedWork(by_node, share, overrun)


def list_executed_slices(slices: Sequence[Slice], plan: WorkPlan) -> list[ExecutedSlice]:
    """What counts of each slice of a job, given and returned in the order they were opened in."""
    executed: list[ExecutedSlice] = []
    redone_from = None
    for held in reversed(slices):
        if held.status == SliceStatus.FINISHED:
            # What comes after it is a run of its own: the one from the adapter fell behind.
            redone_from = None
        end = held.last_step if redone_from is None else min(held.last_step, redone_from)
        redone_from = held.first_step if redone_from is None else min(redone_from, held.first_step)
        done = plan.count_between(held.first_step, end)
        if held.status == SliceStatus.FINISHED:
            # The node that ends a job writes its samples, however early that is.
            done = plan.count_ended_at(end) - plan.count_until(held.first_step)
        executed.append(ExecutedSlice(held, max(0, end - held.first_step), done))
    return executed[::-1]


def _measure_overrun(job: Job, plan: WorkPlan, done: int) -> Fraction:
    start = job.start
    if start is None or not start.steps:
        return Fraction(0)
    return max(Fraction(0), Fraction(done, count_sold_units(job, plan)) - 1)


def list_slices(job: Job) -> list[Slice]:
    """A job's slices with their nodes' providers, in the order in which they were opened."""
    slices = Slice.objects.filter(job=job).select_related("node__provider")
    return list(slices.order_by("opened_at", "pk"))


def list_organisations_at_fault(job: Job, slices: list[Slice]) -> list[str]:
    """Organisations whose nodes left the job's cells, let its plan run out, lost or failed it.

    The latest that lost or failed it is last.
    """
    failed = (SliceStatus.LOST, SliceStatus.FAILED)
    blamed = Node.objects.filter(pk__in=job.blamed_nodes)
    organisations = dict(blamed.values_list("pk", "provider__organisation_id"))
    found = [organisations[node_id] for node_id in job.blamed_nodes]
    found += [
        held.node.provider.organisation_id
        for held in slices
        if held.status in failed and not held.is_excused
    ]
    return list(dict.fromkeys(reversed(found)))[::-1]
