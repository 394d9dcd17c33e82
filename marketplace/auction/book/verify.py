"""Replaying a zone's whole log from the database and comparing everything with it.

The replay starts from the zone's rules and trusts nothing else: every stored
outcome and hash is worked out again, solved prices with them, and so is every row that
follows from them: bids, payments, charges, jobs, reservations and snapshots.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from django.db import connection, transaction

from marketplace.auction.book import engine_cache as books
from marketplace.auction.book.decision_rows import build_bundle_columns, build_decision_columns
from marketplace.auction.book.reservations import read_first_cells
from marketplace.auction.models import (
    Bid,
    BidStatus,
    Bundle,
    LogEntry,
    MarketHead,
    Pricing,
    Reservation,
    Snapshot,
)
from marketplace.auction.royalties import ROYALTY
from marketplace.auction.witnesses.heads import list_signed_heads
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import last_slot_until
from marketplace.jobs.models import Job
from marketplace.payments.models import Hold, HoldStatus
from scheduler.auction import ChainEntry, DeadlineHint, Engine
from scheduler.auction.audit.solve_again import SolveAudit
from scheduler.auction.log import events
from scheduler.auction.log.event_json import event_from_json
from scheduler.auction.log.heads import has_valid_signature, signed_head_from_json
from scheduler.prompts.answers import answer_question, plan_waiting
from scheduler.types import Cell, Decision, NodeSpec, Task

#: Bids compared with their entries at a time.
CHUNK = 1000
#: A refusal's hint as its one text has it; other outcomes have none to look for.
_HINT = re.compile(
    r'^\{"admitted":false,.*"winning_deadline_slot":(?P<slot>null|-?[0-9]{1,16}),[^,]*$'
)
#: Problems named; one is enough to fail.
PROBLEMS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class PostedEntry:
    """Rates in the log, and the nodes on sale when they were posted."""

    position: int
    event: events.RatesPosted
    nodes: tuple[NodeSpec, ...]


@dataclass(slots=True)
class VerifyReport:
    """What a replay of one zone found."""

    zone: str
    entries: int = 0
    decisions: int = 0
    head_hash: str = ""
    #: Solves that were run again and came to the logged prices, and those that were not run.
    solved_again: int = 0
    taken_as_logged: int = 0
    problems: list[str] = field(default_factory=list)
    #: Jobs of the express lane with the cells that they sit in.
    express: dict[str, tuple[tuple[str, Cell], ...]] = field(
        default_factory=dict[str, tuple[tuple[str, Cell], ...]]
    )
    #: Posted rates, which ``pricing.daily_rates`` makes again.
    posted: list[PostedEntry] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems


def verify_zone(zone: Zone) -> VerifyReport:
    """Replay the zone's log and compare every decision, price, hash and row that follows.

    Sees the database at one moment, however long it takes: the market goes on.
    """
    alone = not connection.in_atomic_block
    with transaction.atomic():
        if alone:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        return _verify(zone)


def _verify(zone: Zone) -> VerifyReport:
    found = VerifyReport(zone=zone.name)
    first = books.find_first_snapshot(zone_id=zone.pk)
    head = MarketHead.objects.filter(zone=zone).first()
    if first is None or head is None:
        found.problems += _rows_without_log(zone)
        return found
    engine = Engine(books.restore_engine(first).rules, policies=books.load_policies())
    snapshots = {snapshot.position: snapshot for snapshot in Snapshot.objects.filter(zone=zone)}
    _snapshot_compare(engine, snapshots.pop(0), found)
    decided: list[ChainEntry] = []
    solved: int | None = None
    audit = SolveAudit(engine.position, wanted=_list_solved_positions(zone))
    for row in books.read_log_rows(LogEntry.objects.filter(zone=zone)):
        entry, problem = _replayed(engine, row, audit)
        if entry is None:
            found.problems.append(f"log position {row.position}: {problem}")
            return found
        found.entries += 1
        if isinstance(entry.event, events.PricesSolved):
            solved = entry.position
        if isinstance(entry.event, events.ExpressAnswered):
            _answer_compare(entry, found)
        if isinstance(entry.event, events.ExpressAnswered | events.ExpressPlanned):
            _moves_compare(entry, found)
        if isinstance(entry.event, events.BundleArrived):
            _bundle_compare(entry, found)
        if isinstance(entry.event, events.RatesPosted):
            found.posted.append(PostedEntry(entry.position, entry.event, engine.nodes))
        if isinstance(entry.event, events.BidArrived):
            decided.append(entry)
            if len(decided) == CHUNK:
                _decisions_compare(zone, decided, found)
                decided = []
        if entry.position in snapshots:
            _snapshot_compare(engine, snapshots.pop(entry.position), found)
        if len(found.problems) >= PROBLEMS_SHOWN:
            return found
    _decisions_compare(zone, decided, found)
    found.head_hash = engine.head_hash
    found.solved_again, found.taken_as_logged = audit.solved_again, audit.taken_as_logged
    if (head.position, head.head_hash) != (engine.position, engine.head_hash):
        found.problems.append(
            f"the head says position {head.position} and {head.head_hash}, "
            f"the log ends at {engine.position} with {engine.head_hash}"
        )
    found.problems += [f"the snapshot at {at} has no entry" for at in sorted(snapshots)]
    found.problems += _signed_heads_compare(zone)
    found.problems += _strays(zone, found)
    found.problems += _reservations_compare(zone, engine)
    found.problems += _job_plans_compare(zone, engine, found)
    found.problems += _pricing_compare(zone, engine, solved)
    return found


def _list_solved_positions(zone: Zone) -> Iterator[int]:
    """Positions at which the log's prices were solved."""
    solves = LogEntry.objects.filter(zone=zone, kind="PricesSolved").values_list("event", flat=True)
    for event in solves.iterator(chunk_size=CHUNK):
        inputs = json.loads(event)["inputs"]
        if isinstance(inputs.get("position"), int):
            yield inputs["position"]


def _replayed(
    engine: Engine, row: books.LogRow, audit: SolveAudit
) -> tuple[ChainEntry | None, str | None]:
    """What the engine answers to a row's event, or what is wrong with the row.

    The hash covers the event; of the outcome it leaves out what tells of a bid, so that is
    compared as text, of which there is only one for a value.
    """
    if row.position != engine.position + 1:
        return None, f"entry {engine.position + 1} is missing"
    if row.prev_hash != engine.head_hash:
        return None, "it does not build on the entry before it"
    event = event_from_json(json.loads(row.event))
    problem = audit.find_problem(engine, event)
    if problem is not None:
        return None, problem
    try:
        again, texts = engine.apply_serialized(event, hint=_find_hint(row.outcome))
    except ValueError as error:
        return None, f"it cannot have happened: {error}"
    outcome = texts.outcome
    if outcome != row.outcome:
        logged, found = json.loads(row.outcome), json.loads(outcome)
        names = sorted(name for name in found if logged.get(name) != found[name])
        return None, f"the replay gives another {', '.join(names) or 'outcome'}"
    if again.hash != row.hash:
        return None, "the hash is not that of the entry"
    audit.note_outcome(again.outcome)
    return again, None


def _find_hint(outcome: str) -> DeadlineHint | None:
    """Give what a row's text says of a later deadline, where to look for it and no more."""
    found = _HINT.search(outcome)
    if found is None:
        return None
    slot = found["slot"]
    return DeadlineHint(None if slot == "null" else int(slot))


def _snapshot_compare(engine: Engine, snapshot: Snapshot, found: VerifyReport) -> None:
    # Through JSON text: what is compared is what a restart would read.
    state = json.loads(json.dumps(engine.snapshot()))
    if snapshot.head_hash != engine.head_hash or json.loads(snapshot.state) != state:
        found.problems.append(f"the snapshot at {snapshot.position} is not the replay's state")


def _decisions_compare(zone: Zone, decided: list[ChainEntry], found: VerifyReport) -> None:
    """Compare what bids, wallets and jobs say with what was decided."""
    ids = [_task(entry).id for entry in decided]
    bids = Bid.objects.in_bulk(ids)
    read_first_cells(bids.values())
    jobs = dict(Job.objects.filter(bid_id__in=ids).values_list("bid_id", "price_micros"))
    holds = {
        hold.reference: hold
        for hold in Hold.objects.filter(reference__in=[bid.hold_reference for bid in bids.values()])
    }
    for entry in decided:
        found.decisions += 1
        task = _task(entry)
        bid = bids.get(task.id)
        if bid is None:
            found.problems.append(f"log position {entry.position}: bid {task.id} is gone")
            continue
        for problem in _bid_problems(zone, bid, entry, task):
            found.problems.append(f"{bid.pk} (position {entry.position}): {problem}")
        for problem in _money_problems(bid, holds.get(bid.hold_reference), jobs.get(bid.pk)):
            found.problems.append(f"{bid.pk} (position {entry.position}): {problem}")


def _answer_compare(entry: ChainEntry, found: VerifyReport) -> None:
    """Answer a question of the express lane again, and compare what follows from it."""
    event = entry.event
    assert isinstance(event, events.ExpressAnswered)
    here = f"{event.job_id} (position {entry.position})"
    try:
        again = answer_question(event.question)
    except (ValueError, KeyError, TypeError) as error:
        found.problems.append(f"{here}: its question cannot have been asked: {error}")
        return
    if again != event.answer:
        found.problems.append(f"{here}: the question has another answer")
    if not event.seats:
        return
    found.decisions += 1
    found.express[event.job_id] = event.seats
    tasks = {task_id for task_id, _ in event.seats}
    if Bid.objects.filter(pk__in=tasks, dataset__isnull=True).count() != len(tasks):
        found.problems.append(f"{here}: it sits in cells that the lane did not buy")
    bid = Bid.objects.filter(pk=event.job_id).first()
    if bid is None:
        found.problems.append(f"{here}: its bid is gone")
        return
    stored = (bid.position, bid.decision_hash, bid.payment_micros, bid.slo_s)
    logged = (entry.position, entry.hash, again["price_micros"], again["slo_s"])
    if stored != logged:
        found.problems.append(f"{here}: the bid says {stored}, the log has {logged}")
    hold = Hold.objects.filter(reference=bid.hold_reference).first()
    price = Job.objects.filter(bid_id=bid.pk).values_list("price_micros", flat=True).first()
    found.problems += [f"{here}: {problem}" for problem in _money_problems(bid, hold, price)]


def _moves_compare(entry: ChainEntry, found: VerifyReport) -> None:
    """Plan the express lane's waiting jobs again, and note where they sit now."""
    event = entry.event
    assert isinstance(event, events.ExpressAnswered | events.ExpressPlanned)
    here = f"the plan at position {entry.position}"
    if isinstance(event, events.ExpressPlanned):
        try:
            again = plan_waiting(event.question)
        except (ValueError, KeyError, TypeError) as error:
            found.problems.append(f"{here}: its question cannot have been asked: {error}")
            return
        if again != event.answer:
            found.problems.append(f"{here}: the question has another answer")
    for bid_id, seats in event.moved.items():
        if bid_id not in found.express:
            found.problems.append(f"{here}: {bid_id} is moved and was never certified")
        found.express[bid_id] = seats


def _bundle_compare(entry: ChainEntry, found: VerifyReport) -> None:
    """Compare what a bundle and its hold say with how it was decided; its bids have own entries."""
    event = entry.event
    assert isinstance(event, events.BundleArrived)
    here = f"{event.bundle_id} (position {entry.position})"
    bundle = Bundle.objects.filter(pk=event.bundle_id, all_or_none=True).first()
    if bundle is None:
        found.problems.append(f"{here}: the bundle is gone")
        return
    limit = sum(int(arrival.task.bid) for arrival in event.arrivals)
    for name, value in (build_bundle_columns(entry) | {"price_micros": limit}).items():
        stored = getattr(bundle, name)
        if stored != value:
            found.problems.append(f"{here}: {name} is {stored!r}, the log has {value!r}")
    hold = Hold.objects.filter(reference=bundle.hold_reference).first()
    if hold is None or hold.status != HoldStatus.RELEASED:
        found.problems.append(f"{here}: its hold is {'gone' if hold is None else hold.status}")


def _bid_problems(zone: Zone, bid: Bid, entry: ChainEntry, task: Task) -> Iterator[str]:
    assert isinstance(entry.outcome, Decision)
    expected = build_decision_columns(entry.outcome, zone=zone) | {
        "position": entry.position,
        "decision_hash": entry.hash,
        "zone_id": zone.pk,
        "cells": _list_cells(entry.outcome),
    }
    asked = {
        "price_micros": int(task.bid),
        "compute_demand": task.compute_demand,
        "memory_demand_gb": task.memory_demand,
        "rates": dict(task.rates),
        # The fee of a warm start's donor is no vendor's offer.
        "offers": [
            [v.id, int(v.price), v.delay_slots, v.load] for v in task.vendors if v.id != ROYALTY
        ],
        "royalty_micros": sum(int(v.price) for v in task.vendors if v.id == ROYALTY),
    }
    for name, value in (expected | asked).items():
        stored = getattr(bid, name)
        if stored != value:
            yield f"{name} is {_shown(stored)}, the log has {_shown(value)}"
    if last_slot_until(zone, bid.deadline_at) != task.deadline_slot:
        yield f"deadline_at is {_shown(bid.deadline_at)}, the log has slot {task.deadline_slot}"


def _list_cells(decision: Decision) -> list[list[object]] | None:
    if not decision.admitted or decision.schedule is None:
        return None
    return [[cell.slot, cell.node] for cell in decision.schedule.cells]


def _money_problems(bid: Bid, hold: Hold | None, job_price: int | None) -> Iterator[str]:
    if hold is None:
        # The money of a bundle that all win or all lose is held for all of it.
        if not bid.is_joint or bid.status == BidStatus.ADMITTED:
            yield "its hold is gone"
        return
    if bid.status == BidStatus.ADMITTED:
        if hold.status != HoldStatus.CHARGED or hold.charged_micros != bid.payment_micros:
            yield f"{hold.charged_micros} was charged, the payment is {bid.payment_micros}"
        # Cells bought for the express lane's jobs to come have none of their own.
        if bid.dataset_id is not None and job_price != bid.payment_micros:
            yield f"the job's price is {job_price}, the payment is {bid.payment_micros}"
    elif hold.status != HoldStatus.RELEASED:
        yield f"it was refused and its hold is {hold.status}"


def _signed_heads_compare(zone: Zone) -> list[str]:
    """Heads that were signed and given away, and are not heads of the log as it is now.

    Call when the log was found whole: its hashes are compared as they are stored.
    """
    problems: list[str] = []
    first = Snapshot.objects.get(zone=zone, position=0).head_hash
    after = -1
    while page := list_signed_heads(zone=zone, after=after):
        heads = [signed_head_from_json(json.loads(text)) for text in page]
        positions = {signed.head.position for signed in heads}
        rows = LogEntry.objects.filter(zone=zone, position__in=positions)
        hashes = {0: first, **dict(rows.values_list("position", "hash"))}
        for signed in heads:
            position = signed.head.position
            found = hashes.get(position, "no entry")
            if not has_valid_signature(signed):
                problems.append(f"the head at {position} is not signed by the key it names")
            if found != signed.head.hash:
                problems.append(
                    f"the head signed at {position} is {signed.head.hash}, the log has {found}"
                )
        after = heads[-1].head.position
    return problems[:PROBLEMS_SHOWN]


def _strays(zone: Zone, found: VerifyReport) -> list[str]:
    """Decided bids that the log does not know."""
    stored = Bid.objects.filter(zone=zone, position__isnull=False).count()
    if stored == found.decisions:
        return []
    return [f"{stored} bids are marked as decided, the log has {found.decisions} decisions"]


def _rows_without_log(zone: Zone) -> list[str]:
    if Bid.objects.filter(zone=zone, position__isnull=False).exists():
        return ["bids are marked as decided and there is no log"]
    if LogEntry.objects.filter(zone=zone).exists():
        return ["there is a log without its first snapshot or its head"]
    return []


def _reservations_compare(zone: Zone, engine: Engine) -> list[str]:
    """Cells on sale at the log's end: the rows that hold them and the engine's own."""
    first = engine.horizon.first_slot
    rows = set(
        Reservation.objects.filter(
            zone=zone, released_at__isnull=True, slot__gte=first
        ).values_list("bid_id", "slot", "node_id")
    )
    held = {(hold.task_id, hold.cell.slot, hold.cell.node) for hold in engine.reservations()}
    return [
        f"cell {cell} is {'held in the rows only' if cell in rows else 'missing from the rows'}"
        for cell in sorted(rows ^ held)[:PROBLEMS_SHOWN]
    ]


def _job_plans_compare(zone: Zone, engine: Engine, found: VerifyReport) -> list[str]:
    """Cells still to come in which a job is to run on a node on sale, and that it does not hold.

    A job of the express lane may run in the cells of its seat.

    Cells on the house's machines that are not on sale are no business of the auction.
    """
    first, on_sale = engine.horizon.first_slot, {node.id for node in engine.nodes}
    held = {(hold.task_id, hold.cell.slot, hold.cell.node) for hold in engine.reservations()}
    held |= {
        (bid_id, cell.slot, cell.node)
        for bid_id, seats in found.express.items()
        for task_id, cell in seats
        if (task_id, cell.slot, cell.node) in held
    }
    jobs = Job.objects.filter(zone=zone, status__in=Job.ACTIVE, needs_replan=False)
    planned = {
        (bid_id, slot, node)
        for bid_id, cells in jobs.values_list("bid_id", "cells")
        for slot, node in cells
        if slot > first and node in on_sale
    }
    return [f"cell {cell} is planned and not held" for cell in sorted(planned - held)][
        :PROBLEMS_SHOWN
    ]


def _pricing_compare(zone: Zone, engine: Engine, solved: int | None) -> list[str]:
    """What the operator is shown of policy and prices."""
    pricing = Pricing.objects.filter(zone=zone).first()
    if pricing is None:
        return ["nothing says which policy is in force"]
    shown, found = (pricing.policy, pricing.applied_position), (engine.rules.policy, solved)
    if shown == found:
        return []
    return [f"policy and position of the last solve are shown as {shown}, the log has {found}"]


def _task(entry: ChainEntry) -> Task:
    assert isinstance(entry.event, events.BidArrived)
    return entry.event.task


def _shown(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
