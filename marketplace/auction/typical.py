"""What jobs of usual sizes would cost now: for people who have not uploaded anything yet."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from marketplace.auction import book as books
from marketplace.auction.terms import terms_resolve
from marketplace.common.kept import Kept
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import model_shape, slot_at, slot_ends_at
from marketplace.jobs.models import Dataset
from marketplace.jobs.selectors import work_measure
from scheduler import types as scheduler

#: Seconds for which one answer serves everybody who looks at the market.
KEPT_S = 10.0


@dataclass(frozen=True, slots=True)
class TypicalJob:
    """A job by its size; the rest is left to the house."""

    name: str
    rows: int
    epochs: int


JOBS = (
    TypicalJob("A first try", rows=500, epochs=2),
    TypicalJob("A support tone", rows=2_000, epochs=2),
    TypicalJob("A product line", rows=10_000, epochs=2),
    TypicalJob("A large corpus", rows=50_000, epochs=1),
)
#: Deadlines looked at, as shares of the horizon.
SHARES = (0.125, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class TypicalQuote:
    """The posted price of a usual job by each deadline; ``None`` where no plan is fast enough."""

    job: TypicalJob
    deadlines: tuple[datetime, ...]
    prices: tuple[int | None, ...]


_kept: Kept[tuple[TypicalQuote, ...]] = Kept(for_s=KEPT_S)


def typical_quotes(*, zone: Zone, now: datetime) -> tuple[TypicalQuote, ...]:
    """Prices that hold for a moment; they reserve nothing.

    Rows are taken to be as long as the zone's reference rows; the price of one's own data is the
    bid page's to tell. A whole curve is dear, so an answer serves everybody for ``KEPT_S``.
    """
    return _kept.get(zone.pk, now=now, read=lambda: _typical_quotes(zone, now))


def _typical_quotes(zone: Zone, now: datetime) -> tuple[TypicalQuote, ...]:
    slot = slot_at(zone, now)
    slots = tuple(slot + max(1, round(share * zone.horizon_slots)) - 1 for share in SHARES)
    deadlines = tuple(slot_ends_at(zone, at) for at in slots)
    tasks = [_task(zone, job, slot=slot, deadline_slot=slots[-1]) for job in JOBS]
    with books.read_book(zone=zone, now=now) as book:
        curves = [book.engine.quote(task, slot=slot).curve for task in tasks]
    return tuple(
        TypicalQuote(
            job=job,
            deadlines=deadlines,
            prices=tuple(
                next(
                    (int(tread.price) for tread in reversed(curve) if tread.deadline_slot <= at),
                    None,
                )
                for at in slots
            ),
        )
        for job, curve in zip(JOBS, curves, strict=True)
    )


def _task(zone: Zone, job: TypicalJob, *, slot: int, deadline_slot: int) -> scheduler.Task:
    terms = terms_resolve(
        adapter={},
        training={"epochs": job.epochs},
        rows=job.rows,
        longest_row_tokens=zone.reference_sequence_length,
        sequence_length_limit=zone.max_sequence_length,
        model_width=model_shape(zone).hidden_size,
    )
    work = work_measure(
        dataset=Dataset(rows=job.rows, format="chat"),
        zone=zone,
        adapter=terms.adapter,
        training=terms.training,
    )
    return scheduler.Task(
        id="typical",
        arrival_slot=slot + 1,
        deadline_slot=deadline_slot,
        compute_demand=work.compute_demand,
        memory_demand=work.memory_demand_gb,
        bid=0.0,
        rates=dict(sorted(work.rates.items())),
    )
