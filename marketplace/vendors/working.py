"""What is done about a preparation, as durable work, up to its delivery.

A program prepares the data, or gets them ready for people and outside vendors; what those hand in
is checked. What follows from a delivery is the auction's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from django.core.files import File

from marketplace.common import clock
from marketplace.common.durable.kinds import Failure, HeldWork, WorkFailed
from marketplace.common.durable.services import extend_lease
from marketplace.common.errors import UserError
from marketplace.common.queue import enqueue
from marketplace.fleet.selectors import slot_starts_at
from marketplace.jobs.models import EventKind
from marketplace.jobs.services import add_job_event
from marketplace.vendors.acceptance import accept, judge_by_rule, mark_accepted
from marketplace.vendors.deliveries import DeliveredData, check_delivery, check_rows, copy_file
from marketplace.vendors.handed_files import Delivery, HandOver
from marketplace.vendors.handover import store_hand_over
from marketplace.vendors.kinds import get_work
from marketplace.vendors.locks import lock_preparation
from marketplace.vendors.models import (
    KNOWN_ANSWERS_FAIL,
    Preparation,
    PreparationStatus,
    RowOpinion,
)
from marketplace.vendors.opinions import draw_sample
from marketplace.vendors.plans import find_sold_plan
from marketplace.vendors.preparing import compare_in_process, finish_in_process
from marketplace.vendors.wishes import parse_wish

#: Deliveries of one vendor that may be refused before it loses the work.
REFUSALS_MAX = 5
#: A lease is extended no more often.
_EXTENDED_EVERY = timedelta(minutes=1)
_PROBLEM_CHARS = 500
#: What its owner may do about a delivery, by whether the rule refuses it.
_OWNERS_CHOICE = {
    True: "You may accept it all the same. Otherwise it counts as refused.",
    False: "You may refuse it, and an operator decides. Otherwise it counts as accepted.",
}


@dataclass(frozen=True, slots=True)
class MadeData:
    """What was made of a preparation's data."""

    outcome: Delivery | HandOver
    #: Of a delivery: what was read of it, with its files stored.
    rows: DeliveredData | None
    #: The folder of all other files, until these are stored.
    folder: ExitStack


def load_preparation(work: HeldWork) -> Preparation | None:
    """The preparation, while its vendor has the work and nothing newer is done about it."""
    mine = Preparation.objects.select_related("vendor", "source__zone", "job__zone")
    found = mine.filter(pk=work.key.partition(":")[0]).first()
    return found if found is not None and _is_current(found, work) else None


def _is_current(held: Preparation, work: HeldWork) -> bool:
    is_at_vendor = held.status == PreparationStatus.WORKING and not held.problem
    return is_at_vendor and held.work_key == work.key


def make_data(work: HeldWork, mine: Preparation) -> MadeData:
    """Have the vendor's kind do the work or get the data ready, or check what was handed in.

    Raises
    ------
    WorkFailed
        The vendor cannot do it, or what it handed in cannot be used.
    """
    keep = _build_keeper(work)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="preparation-")))
        raw = folder / "raw"
        copy_file(mine.source.file, raw)
        try:
            if mine.submitted_at is not None:
                made = _check_submission(mine, raw=raw, folder=folder, keep=keep)
            else:
                wish = parse_wish(mine.wish)
                made = get_work(mine.vendor).begin(mine, wish, raw=raw, folder=folder, on_step=keep)
            keep()
            rows = None
            if isinstance(made, Delivery):
                rows = check_delivery(mine, made, now=work.begun_at, on_step=keep)
                keep()
        except UserError as refusal:
            raise WorkFailed(refusal.message, is_final=True) from refusal
        return MadeData(made, rows, stack.pop_all())


def _build_keeper(work: HeldWork) -> Callable[[], None]:
    """Build what extends the lease after a step of the work."""
    extended_at = work.begun_at

    def keep() -> None:
        nonlocal extended_at
        now = clock.now()
        if now - extended_at >= _EXTENDED_EVERY:
            extend_lease(work, now=now)
            extended_at = now

    return keep


def _check_submission(
    mine: Preparation, *, raw: Path, folder: Path, keep: Callable[[], None]
) -> Delivery:
    """Check what people or an outside vendor handed in, and finish it.

    What fails the rule may be put right and handed in again, what fails known answers once. The
    last time, and where the owner looks at it anyway, it goes to the owner.
    """
    wish = parse_wish(mine.wish)
    handed_in = folder / "submission"
    copy_file(mine.submission, handed_in)
    check_rows(mine, handed_in, on_step=keep)
    keep()
    comparison = compare_in_process(raw, delivered=handed_in, wish=wish)
    keep()
    plan = find_sold_plan(wish, dataset=mine.source)
    objection = judge_by_rule(comparison, wish, plan=plan)
    chances = 2 if objection == KNOWN_ANSWERS_FAIL else REFUSALS_MAX
    if objection and not wish.review_s and len(mine.refusals) + 1 < chances:
        raise UserError("invalid_delivery", objection)
    out = folder / "out"
    summary = finish_in_process(handed_in, folder=out, wish=wish)["summary"]
    keep()
    changes = folder / "changes.jsonl"
    work = get_work(mine.vendor)
    work.write_changes(mine, changes)
    return Delivery(
        training=out / "train.jsonl",
        held_out=out / "validation.jsonl" if summary["rows_held_out"] else None,
        changes=changes,
        origins=out / "origins.jsonl",
        report=summary | {"rows_in": comparison["rows_in"]},
        comparison=comparison,
        objection=objection,
        opinions=draw_sample(mine, rows=work.iter_rows(mine), delivered=handed_in),
    )


def store_data(work: HeldWork, mine: Preparation, made: MadeData, *, now: datetime) -> None:
    """Let the vendor at its data, or take its delivery, which is accepted by rule or not yet.

    Its owner decides where they asked for a time to look at it, and where the rule objects. What
    comes too late, or for a job that ended before anything was handed in, is not stored.
    """
    with made.folder:
        held = lock_preparation(mine.pk)
        if not _is_current(held, work):
            discard_data(made)
        elif isinstance(made.outcome, HandOver):
            store_hand_over(held, made.outcome, now=now)
            # Together: nobody else would tell a vendor of data that are there.
            get_work(held.vendor).announce(held, now=now)
        elif made.rows is not None and (held.job.is_active or held.submitted_at is not None):
            _store_delivery(held, made.rows, made.outcome, now=now)
        else:
            discard_data(made)


def _store_delivery(
    held: Preparation, data: DeliveredData, delivery: Delivery, *, now: datetime
) -> None:
    zone = held.job.zone
    training = data.training.save(zone)
    held_out = None if data.held_out is None else data.held_out.save(zone)
    held.prepared, held.held_out = training, held_out
    held.rows_in = delivery.report.get("rows_in", held.rows_bound)
    held.rows_out, held.rows_held_out = training.rows, held_out.rows if held_out else 0
    held.report, held.status, held.delivered_at = delivery.report, PreparationStatus.DELIVERED, now
    held.comparison, held.objection = delivery.comparison, delivery.objection[:_PROBLEM_CHARS]
    is_reviewed = held.vendor.facts.is_reviewed and parse_wish(held.wish).review_s > 0
    if is_reviewed or held.objection:
        until = slot_starts_at(zone, held.ready_slot)
        # One that came too late for its owner to decide is disputed for its price, as any that
        # the rule accepts.
        held.accept_by = until if until > now or held.is_refused_by_rule else None
    if held.objection:
        add_job_event(
            job=held.job,
            kind=EventKind.DISPUTED,
            message=f"The rule does not accept what {held.vendor.name} delivered: {held.objection} "
            + _OWNERS_CHOICE[held.is_refused_by_rule],
            now=now,
        )
    for file, path in ((held.changes, delivery.changes), (held.origins, delivery.origins)):
        if path is not None and path.is_file():
            with path.open("rb") as content:
                file.save(f"{held.pk}-{file.field.name}.jsonl", File(content), save=False)
    held.save()
    RowOpinion.objects.bulk_create(delivery.opinions)
    if held.accept_by is None:
        # Who ends the job while work that was handed in is checked has had it done.
        if held.job.is_active:
            accept(preparation=held, now=now)
        else:
            mark_accepted(held, now=now)


def discard_data(made: MadeData) -> None:
    """Delete the files of what is not stored."""
    if made.rows is not None:
        made.rows.delete_files()
    made.folder.close()


def fail_preparation(work: HeldWork, failure: Failure, *, now: datetime) -> None:
    """Give work back to a vendor whose delivery cannot be used, or find the next vendor.

    After a fault of ours nothing changes: what was handed in stays, and so does its vendor. Once
    nothing more is tried, the work waits for an operator who has it tried again.
    """
    held = lock_preparation(work.key.partition(":")[0])
    is_ours = not isinstance(failure.error, WorkFailed)
    if is_ours or failure.retry_at is not None or not _is_current(held, work):
        return
    if held.submitted_at is not None:
        held.refusals = [*held.refusals, {"at": now.isoformat(), "reason": failure.reason}]
        held.submitted_at = None
        if len(held.refusals) >= REFUSALS_MAX:
            held.problem = f"The vendor's deliveries could not be used. {failure.reason}"
    else:
        held.problem = failure.reason
    held.problem = held.problem[:_PROBLEM_CHARS]
    held.save()
    if held.problem:
        enqueue("auction.preparations_conclude")
