"""What a job of some size would cost now: for people who have not uploaded anything yet."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime

from marketplace.auction.bidding.quotes import CurvePoint, build_curve
from marketplace.auction.bidding.refusals import describe_refusal
from marketplace.auction.bidding.terms import ResolvedSettings, resolve_terms
from marketplace.auction.book import engine_cache as books
from marketplace.auction.task_values import build_task
from marketplace.common.ttl_cache import TtlCache
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import get_model_shape, load_rates, slot_at, slot_ends_at
from marketplace.jobs.work import Work, count_units_per_row, measure_equal_rows
from scheduler.types import Refusal

#: Seconds for which one answer serves all visitors of the market.
KEPT_S = 10.0


@dataclass(frozen=True, slots=True)
class SizedJob:
    """A job by its size; the rest is left to the market."""

    rows: int
    #: Of each row.
    row_tokens: int
    #: ``None``: the market chooses, by the number of rows.
    epochs: int | None = None

    @property
    def tokens(self) -> int:
        return self.rows * self.row_tokens


@dataclass(frozen=True, slots=True)
class SizedQuote:
    """What a job of this size would cost by each deadline; it reserves nothing."""

    job: SizedJob
    #: With the epochs that the market chose.
    settings: ResolvedSettings
    work: Work
    curve: tuple[CurvePoint, ...]
    #: Why nothing fits and what to do; empty otherwise.
    refusal_text: str
    made_at: datetime
    #: The latest deadline that is on sale.
    ends_at: datetime


#: There is no later deadline to be asked for.
TOO_MUCH = (
    "This is more work than the machines here do by the latest deadline on sale. Ask for fewer "
    "epochs or fewer rows."
)
EPOCHS = 2
#: Sizes looked at, as shares of what the zone's fastest node does in its whole horizon.
SIZES = (0.02, 0.08, 0.25, 0.6)
#: Deadlines looked at, as shares of the horizon.
SHARES = (1 / 6, 1 / 2, 1.0)


@dataclass(frozen=True, slots=True)
class TypicalQuote:
    """The posted price of a usual job by each deadline; ``None`` where no plan is fast enough."""

    job: SizedJob
    deadlines: tuple[datetime, ...]
    prices: tuple[int | None, ...]


_kept: TtlCache[tuple[TypicalQuote, ...]] = TtlCache(for_s=KEPT_S)


def make_typical_quotes(*, zone: Zone, now: datetime) -> tuple[TypicalQuote, ...]:
    """Prices that hold for a moment; they reserve nothing.

    Rows are taken to be as long as the zone's reference rows; the price of one's own data is the
    bid page's to tell. A whole curve is expensive, so an answer is cached for all for ``KEPT_S``.
    """
    return _kept.get(zone.pk, now=now, read=lambda: _typical_quotes(zone, now))


def quote_sized_job(*, zone: Zone, job: SizedJob, now: datetime) -> SizedQuote:
    """Quote a job of equal rows, by every deadline that is on sale.

    Raises
    ------
    UserError
        ``invalid_hyperparameter``: it is more work than can be counted, or a row is longer than
        the zone takes.
    """
    slot = slot_at(zone, now)
    last = slot + zone.horizon_slots - 1
    settings, work = _measure(zone, load_rates(zone), job)
    task = build_task(work, task_id="sized", arrival_slot=slot + 1, deadline_slot=last)
    with books.read_book(zone=zone, now=now) as book:
        answer = book.engine.quote(task, slot=slot)
    refused = ""
    if answer.refusal is Refusal.WINDOW:
        refused = TOO_MUCH
    elif answer.refusal is not None:
        refused = describe_refusal(
            refusal=answer.refusal,
            price_micros=None,
            posted_price_micros=None,
            zone=zone,
            adapter=settings.adapter,
            memory_demand_gb=work.memory_demand_gb,
            later_deadline_at=None,
            later_price_micros=None,
        )
    return SizedQuote(
        job=job,
        settings=settings,
        work=work,
        curve=build_curve(zone, answer.curve),
        refusal_text=refused,
        made_at=now,
        ends_at=slot_ends_at(zone, last),
    )


def _typical_quotes(zone: Zone, now: datetime) -> tuple[TypicalQuote, ...]:
    slot = slot_at(zone, now)
    slots = tuple(slot + max(1, round(share * zone.horizon_slots)) - 1 for share in SHARES)
    deadlines = tuple(slot_ends_at(zone, at) for at in slots)
    rates = load_rates(zone)
    jobs = _jobs(zone, rates)
    works = [_measure(zone, rates, job)[1] for job in jobs]
    tasks = [
        build_task(work, task_id="typical", arrival_slot=slot + 1, deadline_slot=slots[-1])
        for work in works
    ]
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
        for job, curve in zip(jobs, curves, strict=True)
    )


def _jobs(zone: Zone, rates: dict[str, float]) -> list[SizedJob]:
    """Sizes in round numbers of rows, from small to what takes most of the horizon."""
    rows_per_slot = max(rates.values(), default=0.0) / count_units_per_row(
        zone=zone, row_tokens=zone.reference_sequence_length
    )
    rows = {_round_down(share * rows_per_slot * zone.horizon_slots / EPOCHS) for share in SIZES}
    return [
        SizedJob(rows=size, row_tokens=zone.reference_sequence_length, epochs=EPOCHS)
        for size in sorted(rows - {0})
    ]


def _round_down(rows: float) -> int:
    """To 1, 2 or 5 and zeros."""
    if rows < 1:
        return 0
    power = 10 ** int(math.log10(rows))
    return max(step * power for step in (1, 2, 5) if step * power <= rows)


def _measure(zone: Zone, rates: dict[str, float], job: SizedJob) -> tuple[ResolvedSettings, Work]:
    settings = resolve_terms(
        adapter={},
        training={} if job.epochs is None else {"epochs": job.epochs},
        rows=job.rows,
        longest_row_tokens=job.row_tokens,
        sequence_length_limit=zone.max_sequence_length,
        model=get_model_shape(zone),
    )
    work = measure_equal_rows(
        zone=zone,
        rows=job.rows,
        row_tokens=job.row_tokens,
        adapter=settings.adapter,
        training=settings.training,
        rates=rates,
    )
    return settings, work
