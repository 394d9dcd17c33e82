"""How much work jobs are: the whole of one, what is left of it, and what a node did of it.

Work is counted from the data set's runs of tokens (``token_runs``), the job's settings and its
zone's costs. The node that trains counts with the same functions (``workers.protocol.work``), so
both get the same number of units. Nothing here writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256

import numpy as np

from marketplace.common.bounded_cache import remember
from marketplace.common.errors import UserError
from marketplace.fleet import selectors as fleet
from marketplace.fleet.memory import compute_memory_demand
from marketplace.fleet.models import Zone
from marketplace.jobs.dataset_tokens import ensure_dataset_tokens
from marketplace.jobs.models import DatasetTokens, Job, Slice, SliceStatus
from marketplace.jobs.token_runs import TokenRuns
from workers.protocol.job_spec import AdapterSpec, DataFormat, TrainingSpec, WorkCosts
from workers.protocol.row_order import choose_validation_rows, count_validation_rows
from workers.protocol.work import RowLengths, TooMuchWorkError, WorkPlan, count_row_units

#: Values remembered of each kind; a crowd of bids asks for the same few.
_KEPT = 4096
#: Plans in the cache, and the most rows of a job whose plan is: a few megabytes in all.
_PLANS_KEPT, _PLAN_ROWS_KEPT = 256, 20_000
_PlanKey = tuple[int | str, int | None, str, int, TrainingSpec, WorkCosts]


@dataclass(frozen=True, slots=True)
class WorkTotals:
    """The work of a whole job."""

    units: int
    steps: int
    train_rows: int
    #: Held out, and evaluated now and then.
    valid_rows: int


@dataclass(frozen=True, slots=True)
class Work:
    """A job as the auction sees it."""

    #: M_i: work units of all epochs and evaluations.
    compute_demand: int
    #: r_i: GB beside the base model and a pack.
    memory_demand_gb: float
    #: s_ik: work units per slot by GPU type.
    rates: dict[str, float]
    #: Training rows times epochs.
    samples: int


def measure_work(
    *,
    zone: Zone,
    tokens: DatasetTokens,
    validation: DatasetTokens | None = None,
    data_format: str,
    adapter: AdapterSpec,
    training: TrainingSpec,
    rates: dict[str, float],
) -> Work:
    """Measure what a data set with these settings asks of a node.

    ``rates`` are the zone's (``fleet.selectors.load_rates``). The rows of ``validation`` are held
    out; without it, a share of the data set's own.

    Raises
    ------
    UserError
        ``invalid_hyperparameter``: nothing is left to learn, or more work than can be counted.
    """
    totals = count_totals(
        tokens=tokens,
        validation=validation,
        data_format=data_format,
        virtual_tokens=adapter.virtual_tokens,
        training=training,
        costs=fleet.get_work_costs(zone),
    )
    rows = totals.train_rows + totals.valid_rows
    return Work(
        compute_demand=totals.units,
        memory_demand_gb=compute_memory_demand(zone=zone, adapter=adapter, rows=rows),
        rates=rates,
        samples=totals.train_rows * training.epochs,
    )


def measure_equal_rows(
    *,
    zone: Zone,
    rows: int,
    row_tokens: int,
    adapter: AdapterSpec,
    training: TrainingSpec,
    rates: dict[str, float],
) -> Work:
    """Measure rows of one length, as ``measure_work``, with all of their tokens trained.

    Raises
    ------
    UserError
        ``invalid_hyperparameter``: it is more work than can be counted.
    """
    valid = count_validation_rows(rows=rows, share=training.validation_share)
    parts = _repeat_row(row_tokens, rows - valid), _repeat_row(row_tokens, valid)
    plan = _count_plan(fleet.get_work_costs(zone), training, *parts)
    return Work(
        compute_demand=plan.total_units,
        memory_demand_gb=compute_memory_demand(zone=zone, adapter=adapter, rows=rows),
        rates=rates,
        samples=(rows - valid) * training.epochs,
    )


def count_units_per_row(*, zone: Zone, row_tokens: int) -> int:
    """Work units of one row of a length, all of its tokens trained."""
    row = _repeat_row(row_tokens, 1)
    return int(count_row_units(fleet.get_work_costs(zone), row, even=True)[0])


def _repeat_row(tokens: int, rows: int) -> RowLengths:
    shape = (rows, 1)
    return RowLengths(np.full(shape, tokens), np.full(shape, tokens - 1))


def count_totals(
    *,
    tokens: DatasetTokens,
    validation: DatasetTokens | None = None,
    data_format: str,
    virtual_tokens: int,
    training: TrainingSpec,
    costs: WorkCosts,
) -> WorkTotals:
    """The work of a whole job.

    Parameters
    ----------
    virtual_tokens
        Of a soft prompt, which stands before every sequence.

    Raises
    ------
    UserError
        As ``measure_work``.
    """
    key = _name_plan(tokens, validation, data_format, virtual_tokens, training, costs)
    known = _totals.get(key)
    if known is None:
        plan, rows = _plan_work(tokens, validation, data_format, virtual_tokens, training, costs)
        totals = WorkTotals(plan.total_units, plan.total_steps, *rows)
        known = remember(_totals, key, totals, most=_KEPT)
    return known


def _name_plan(
    tokens: DatasetTokens,
    validation: DatasetTokens | None,
    data_format: str,
    virtual_tokens: int,
    training: TrainingSpec,
    costs: WorkCosts,
) -> _PlanKey:
    held_out = None if validation is None else validation.pk
    # Those of a plan's rows are stored with the plan.
    name = tokens.pk or sha256(tokens.runs).hexdigest()
    return name, held_out, data_format, virtual_tokens, training, costs


def _plan_work(
    tokens: DatasetTokens,
    validation: DatasetTokens | None,
    data_format: str,
    virtual_tokens: int,
    training: TrainingSpec,
    costs: WorkCosts,
) -> tuple[WorkPlan, tuple[int, int]]:
    """A job's work step by step, and its numbers of training rows and of held-out ones."""
    runs = TokenRuns.from_bytes(_read_runs(tokens))
    if validation is None:
        parts = split_rows(runs, data_format=data_format, training=training)
    else:
        held_out = TokenRuns.from_bytes(_read_runs(validation))
        parts = (
            cut_rows(runs, data_format=data_format, training=training),
            cut_rows(held_out, data_format=data_format, training=training),
        )
    train, valid = (rows.lengthen(virtual_tokens) for rows in parts)
    return _count_plan(costs, training, train, valid), (len(train), len(valid))


def _count_plan(
    costs: WorkCosts, training: TrainingSpec, train: RowLengths, valid: RowLengths
) -> WorkPlan:
    try:
        return WorkPlan(costs, training, train=train, valid=valid)
    except TooMuchWorkError as error:
        raise UserError("invalid_hyperparameter", str(error), param="training.epochs") from None


def _read_runs(tokens: DatasetTokens) -> bytes:
    """Not through the remembered row, which would then hold them for good."""
    if tokens.pk is None:
        return bytes(tokens.runs)
    runs = DatasetTokens.objects.values_list("runs", flat=True).get(pk=tokens.pk)
    return bytes(runs)


def split_rows(
    runs: TokenRuns, *, data_format: str, training: TrainingSpec
) -> tuple[RowLengths, RowLengths]:
    """Lengths of the rows that are trained on and of those held out.

    Raises
    ------
    UserError
        As ``cut_rows``.
    """
    rows = cut_rows(runs, data_format=data_format, training=training)
    held_out = choose_validation_rows(
        rows=len(rows), share=training.validation_share, seed=training.seed
    )
    return rows.select(~held_out), rows.select(held_out)


def cut_rows(runs: TokenRuns, *, data_format: str, training: TrainingSpec) -> RowLengths:
    """Lengths of the rows within the sequence length.

    Rows that truncation leaves nothing to learn drop out, as on the node.

    Raises
    ------
    UserError
        ``invalid_hyperparameter``: no row is left.
    """
    rows = runs.cut(training.sequence_length)
    if data_format != DataFormat.CLASSIFICATION:
        rows = rows.select(np.all(rows.trained > 0, axis=1))
    if not len(rows):
        raise UserError(
            "invalid_hyperparameter",
            "No row has anything to learn within the sequence length. Give a longer one.",
            param="training.sequence_length",
        )
    return rows


_totals: dict[_PlanKey, WorkTotals] = {}
_plans: dict[_PlanKey, WorkPlan] = {}


def load_job_totals(job: Job) -> WorkTotals:
    """The work of the whole of a job."""
    return count_totals(
        tokens=_ensure_tokens(job),
        validation=_ensure_validation_tokens(job),
        data_format=job.dataset.format,
        virtual_tokens=_count_virtual_tokens(job),
        training=job.terms.training,
        costs=fleet.get_work_costs(job.zone),
    )


def load_work_plan(job: Job) -> WorkPlan:
    """The work of a job, step by step."""
    return plan_work(
        tokens=_ensure_tokens(job),
        validation=_ensure_validation_tokens(job),
        data_format=job.dataset.format,
        virtual_tokens=_count_virtual_tokens(job),
        training=job.terms.training,
        costs=fleet.get_work_costs(job.zone),
    )


def plan_work(
    *,
    tokens: DatasetTokens,
    validation: DatasetTokens | None = None,
    data_format: str,
    virtual_tokens: int,
    training: TrainingSpec,
    costs: WorkCosts,
) -> WorkPlan:
    """The work of a data set with these settings, step by step.

    Raises
    ------
    UserError
        As ``measure_work``.
    """
    key = _name_plan(tokens, validation, data_format, virtual_tokens, training, costs)
    known = _plans.get(key)
    if known is None:
        known, (train_rows, _) = _plan_work(
            tokens, validation, data_format, virtual_tokens, training, costs
        )
        if train_rows <= _PLAN_ROWS_KEPT:
            remember(_plans, key, known, most=_PLANS_KEPT)
    return known


def _count_virtual_tokens(job: Job) -> int:
    return job.terms.adapter.virtual_tokens


def count_sold_units(job: Job, plan: WorkPlan) -> int:
    """Work units that the job's owner bought: fewer than all with a warm start, or resumed."""
    start, resumes = job.start, job.terms.resumes
    if resumes is not None:
        return plan.total_units - plan.count_until(resumes.step)
    if start is None or not start.steps:
        return plan.total_units
    return plan.count_ended_at(start.steps)


def _ensure_tokens(job: Job) -> DatasetTokens:
    """The tokens of a job's data; those of a job sold before counts were stored are counted now."""
    return ensure_dataset_tokens(dataset=job.dataset, zone=job.zone)


def _ensure_validation_tokens(job: Job) -> DatasetTokens | None:
    held_out = job.validation_dataset
    return None if held_out is None else ensure_dataset_tokens(dataset=held_out, zone=job.zone)


def measure_job_work(job: Job, *, rates: dict[str, float] | None = None) -> Work:
    """What the whole of a job asks of a node, at the speeds known now.

    ``rates`` spares reading the zone's again.
    """
    return measure_work(
        zone=job.zone,
        tokens=_ensure_tokens(job),
        validation=_ensure_validation_tokens(job),
        data_format=job.dataset.format,
        adapter=job.terms.adapter,
        training=job.terms.training,
        rates=fleet.load_rates(job.zone) if rates is None else rates,
    )


def compute_work_left_share(job: Job) -> float:
    """Share of the job's work units still to do, from where it would go on: 0 to 1.

    A running job goes on from its step, any other from its newest checkpoint. Of a warm start only
    the steps that were sold are to do, until its node says that it fell behind.
    """
    start = job.start
    sold_steps = 0 if start is None else start.sold_steps
    if not job.total_steps and not sold_steps and not job.checkpoint_step:
        return 1.0
    running = Slice.objects.filter(job=job, status=SliceStatus.OPEN).exists()
    step = job.step if running else job.checkpoint_step
    if step == 0 and not sold_steps:
        return 1.0
    plan = load_work_plan(job)
    last_step = (job.total_steps or sold_steps) if sold_steps else plan.total_steps
    left = max(0, plan.count_ended_at(last_step) - plan.count_until(step))
    return float(Fraction(left, plan.total_units))
