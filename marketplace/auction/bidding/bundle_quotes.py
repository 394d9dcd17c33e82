"""What a bundle would cost, in all and job by job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from marketplace.auction.bidding.bundles import NewBundle, build_new_bid, check_ready, list_jobs
from marketplace.auction.bidding.measure import MeasuredJob, measure_job
from marketplace.auction.bidding.quotes import (
    QUOTE_LIFE,
    CurvePoint,
    build_curve,
    describe_quote_refusal,
)
from marketplace.auction.bidding.terms import check_deadline
from marketplace.auction.book import engine_cache as books
from marketplace.auction.task_values import build_task
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import last_slot_until, slot_at, slot_ends_at, slot_starts_at
from scheduler import types as scheduler


@dataclass(frozen=True, slots=True)
class QuotedJob:
    """One job of a bundle."""

    #: As in ``SweptJob``.
    label: str
    measured: MeasuredJob
    #: ``None`` when they do not all fit.
    price_micros: int | None
    finish_at: datetime | None


@dataclass(frozen=True, slots=True)
class SweepQuote:
    """What the jobs of a bundle cost together, at one position of the log; reserves nothing."""

    zone: Zone
    deadline_at: datetime
    jobs: tuple[QuotedJob, ...]
    #: A limit for all above it wins; ``None`` when they do not all fit before the deadline.
    price_micros: int | None
    finish_at: datetime | None
    #: Price of all by deadline.
    curve: tuple[CurvePoint, ...]
    refusal: scheduler.Refusal | None
    #: Why they do not fit and what to do; empty otherwise.
    refusal_text: str
    #: The log this holds for.
    position: int
    head_hash: str
    made_at: datetime
    expires_at: datetime


def make_bundle_quote(*, asked: NewBundle, now: datetime) -> SweepQuote:
    """The price of a bundle for its deadline, and by deadline; its limit is not looked at.

    Jobs that stand each for itself cost the same where all of them win.

    Raises
    ------
    UserError
        It could not be bid for as it stands.
    """
    zone = asked.zone
    check_deadline(asked.deadline_at, zone=zone, now=now)
    check_ready(asked.dataset)
    jobs = list_jobs(
        adapter=asked.adapter, training=asked.training, sweep=asked.sweep, model=asked.model
    )
    measured = [measure_job(build_new_bid(asked, job), now=now) for job in jobs]
    slot = slot_at(zone, now)
    tasks = _build_tasks(asked, measured, slot=slot)
    with books.read_book(zone=zone, now=now) as book:
        answer = book.engine.quote_bundle(tasks, slot=slot)
        head_hash = book.engine.head_hash
    curve = build_curve(zone, answer.curve)
    largest = max(measured, key=lambda job: job.work.memory_demand_gb)
    ends = [slot_ends_at(zone, schedule.finish_slot) for schedule in answer.schedules]
    return SweepQuote(
        zone=zone,
        deadline_at=asked.deadline_at,
        jobs=tuple(
            QuotedJob(
                label=job.label,
                measured=of,
                price_micros=int(answer.parts[place].total) if answer.parts else None,
                finish_at=ends[place] if ends else None,
            )
            for place, (job, of) in enumerate(zip(jobs, measured, strict=True))
        ),
        price_micros=None if answer.price is None else int(answer.price),
        finish_at=max(ends, default=None),
        curve=curve,
        refusal=answer.refusal,
        refusal_text=describe_quote_refusal(answer.refusal, zone, largest, curve),
        position=answer.position,
        head_hash=head_hash,
        made_at=now,
        expires_at=min(now + QUOTE_LIFE, slot_starts_at(zone, slot + 1)),
    )


def _build_tasks(
    asked: NewBundle, measured: Sequence[MeasuredJob], *, slot: int
) -> list[scheduler.Task]:
    """The jobs as they would be bid for in the present slot."""
    return [
        build_task(
            of.work,
            task_id=f"quote-{place}",
            arrival_slot=slot + 1,
            deadline_slot=last_slot_until(asked.zone, asked.deadline_at),
            verified_only=of.terms.verified_only,
        )
        for place, of in enumerate(measured)
    ]
