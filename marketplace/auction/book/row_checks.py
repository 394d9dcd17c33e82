"""Rows compared with the log that they follow from: bids, money, jobs, snapshots, signed heads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta

from marketplace.auction.book.decision_rows import build_bundle_columns, build_decision_columns
from marketplace.auction.book.log_segments import find_marks
from marketplace.auction.book.reservations import read_first_cells
from marketplace.auction.book.verify_report import PROBLEMS_SHOWN, VerifyReport
from marketplace.auction.models import (
    Bid,
    BidStatus,
    Bundle,
    LogEntry,
    PriceOffer,
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
from scheduler.auction import ChainEntry, Engine
from scheduler.auction.log import events
from scheduler.auction.log.outcomes import ToldPrice
from scheduler.prompts.answers import answer_question, plan_waiting
from scheduler.public_log.heads import has_valid_signature, signed_head_from_json
from scheduler.public_log.witness import BEAT_WITHIN_S
from scheduler.types import Cell, Decision, Task


def compare_snapshot(engine: Engine, snapshot: Snapshot, found: VerifyReport) -> None:
    # Through JSON text: what is compared is what a restart would read.
    state = json.loads(json.dumps(engine.snapshot()))
    if snapshot.head_hash != engine.head_hash or json.loads(snapshot.state) != state:
        found.problems.append(f"the snapshot at {snapshot.position} is not the replay's state")


def compare_answers(zone: Zone, answered: list[ChainEntry], found: VerifyReport) -> None:
    """Compare with the log what is stored of bids that were decided or told their price."""
    told = [entry for entry in answered if isinstance(entry.event, events.BidPriced)]
    decided = [entry for entry in answered if isinstance(entry.event, events.BidArrived)]
    _compare_decisions(zone, decided, found)
    _compare_told_prices(told, found)


def _compare_decisions(zone: Zone, decided: list[ChainEntry], found: VerifyReport) -> None:
    """Compare what bids, wallets and jobs say with what was decided."""
    ids = [_find_task(entry).id for entry in decided]
    bids = Bid.objects.in_bulk(ids)
    read_first_cells(bids.values())
    jobs = dict(Job.objects.filter(bid_id__in=ids).values_list("bid_id", "price_micros"))
    holds = {
        hold.reference: hold
        for hold in Hold.objects.filter(reference__in=[bid.hold_reference for bid in bids.values()])
    }
    for entry in decided:
        found.decisions += 1
        task = _find_task(entry)
        bid = bids.get(task.id)
        if bid is None:
            found.problems.append(f"log position {entry.position}: bid {task.id} is gone")
            continue
        for problem in _find_bid_problems(zone, bid, entry, task):
            found.problems.append(f"{bid.pk} (position {entry.position}): {problem}")
        for problem in _find_money_problems(bid, holds.get(bid.hold_reference), jobs.get(bid.pk)):
            found.problems.append(f"{bid.pk} (position {entry.position}): {problem}")


def _compare_told_prices(told: list[ChainEntry], found: VerifyReport) -> None:
    """Compare what bids were told with the prices in the log."""
    rows = PriceOffer.objects.in_bulk([_find_task(entry).id for entry in told])
    for entry in told:
        assert isinstance(entry.outcome, ToldPrice)
        price, offer = entry.outcome.price, rows.get(_find_task(entry).id)
        logged = (None if price is None else int(price), entry.position)
        stored = None if offer is None else (offer.price_micros, offer.position)
        if stored != logged:
            found.problems.append(
                f"{entry.outcome.task_id} (position {entry.position}): price and position told are "
                f"{stored}, the log has {logged}"
            )


def compare_answer(entry: ChainEntry, found: VerifyReport) -> None:
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
    if bid.verified_only and Bid.objects.filter(pk__in=tasks, verified_only=False).exists():
        found.problems.append(f"{here}: it asks for verified nodes, and its seats do not")
    stored = (bid.position, bid.decision_hash, bid.payment_micros, bid.slo_s)
    logged = (entry.position, entry.hash, again["price_micros"], again["slo_s"])
    if stored != logged:
        found.problems.append(f"{here}: the bid says {stored}, the log has {logged}")
    hold = Hold.objects.filter(reference=bid.hold_reference).first()
    price = Job.objects.filter(bid_id=bid.pk).values_list("price_micros", flat=True).first()
    found.problems += [f"{here}: {problem}" for problem in _find_money_problems(bid, hold, price)]


def compare_moves(entry: ChainEntry, found: VerifyReport) -> None:
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


def compare_bundle(entry: ChainEntry, found: VerifyReport) -> None:
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


def _find_bid_problems(zone: Zone, bid: Bid, entry: ChainEntry, task: Task) -> Iterator[str]:
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
        "verified_only": task.verified_only,
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
            yield f"{name} is {_show(stored)}, the log has {_show(value)}"
    if last_slot_until(zone, bid.deadline_at) != task.deadline_slot:
        yield f"deadline_at is {_show(bid.deadline_at)}, the log has slot {task.deadline_slot}"


def _list_cells(decision: Decision) -> list[list[object]] | None:
    if not decision.admitted or decision.schedule is None:
        return None
    return [[cell.slot, cell.node] for cell in decision.schedule.cells]


def _find_money_problems(bid: Bid, hold: Hold | None, job_price: int | None) -> Iterator[str]:
    if hold is None:
        # The money of a bundle that all win or all lose is held for all of it.
        if not (bid.is_joint or not bid.has_amount) or bid.status == BidStatus.ADMITTED:
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


def compare_signed_heads(zone: Zone, *, after: int) -> list[str]:
    """Heads that were signed and given away, and are not heads of the log as it is now.

    Those up to the position ``after`` are passed over; -1 for none of them. Call when the log was
    found whole: its hashes are compared as they are stored.
    """
    problems: list[str] = []
    first = Snapshot.objects.get(zone=zone, position=0).head_hash
    while page := list_signed_heads(zone=zone, after=after):
        heads = [signed_head_from_json(json.loads(text)) for text in page]
        positions = {signed.head.position for signed in heads}
        rows = find_marks(zone.pk, positions)
        hashes = {0: first} | {position: hash_ for position, (hash_, _) in rows.items()}
        for signed in heads:
            position = signed.head.position
            found = hashes.get(position, "no entry")
            if not has_valid_signature(signed):
                problems.append(f"the head at {position} is not signed by the key it names")
            begun = datetime.fromisoformat(signed.signed_at) + timedelta(seconds=BEAT_WITHIN_S)
            recorded_at = rows[position][1] if position in rows else begun
            if recorded_at > begun:
                problems.append(
                    f"the head at {position} was signed at {signed.signed_at}, and its entry "
                    f"was recorded at {recorded_at.isoformat()}"
                )
            if found != signed.head.hash:
                problems.append(
                    f"the head signed at {position} is {signed.head.hash}, the log has {found}"
                )
        after = heads[-1].head.position
    return problems[:PROBLEMS_SHOWN]


def find_strays(zone: Zone, found: VerifyReport) -> list[str]:
    """Decided bids that the log does not know, of those decided since the replay began."""
    stored = Bid.objects.filter(zone=zone, position__gt=found.begins_at).count()
    if stored == found.decisions:
        return []
    return [f"{stored} bids are marked as decided, the log has {found.decisions} decisions"]


def find_rows_without_log(zone: Zone) -> list[str]:
    if Bid.objects.filter(zone=zone, position__isnull=False).exists():
        return ["bids are marked as decided and there is no log"]
    if LogEntry.objects.filter(zone=zone).exists():
        return ["there is a log without its first snapshot or its head"]
    return []


def compare_reservations(zone: Zone, engine: Engine) -> list[str]:
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


def compare_job_plans(zone: Zone, engine: Engine, found: VerifyReport) -> list[str]:
    """Cells still to come in which a job is to run on a node on sale, and that it does not hold.

    A job of the express lane may run in the cells of its seat, which are no other's.

    Cells on the market's machines that are not on sale are no business of the auction.
    """
    first, on_sale = engine.horizon.first_slot, {node.id for node in engine.nodes}
    held = {(hold.task_id, hold.cell.slot, hold.cell.node) for hold in engine.reservations()}
    held |= {
        (bid_id, cell.slot, cell.node)
        for bid_id, seats in found.express.items()
        for task_id, cell in seats
        if (task_id, cell.slot, cell.node) in held
    }
    active = Job.objects.filter(zone=zone, status__in=Job.ACTIVE, needs_replan=False)
    jobs = list(active.values_list("bid_id", "cells"))
    planned = {
        (bid_id, slot, node)
        for bid_id, cells in jobs
        for slot, node in cells
        if slot > first and node in on_sale
    }
    problems = [f"cell {cell} is planned and not held" for cell in sorted(planned - held)]
    problems += find_shared_seats({bid_id for bid_id, _ in jobs}, found, first_slot=first)
    return problems[:PROBLEMS_SHOWN]


def find_shared_seats(active: set[str], found: VerifyReport, *, first_slot: int) -> list[str]:
    """Seats that two active jobs of the express lane have in one slot to come."""
    taken: dict[tuple[str, Cell], str] = {}
    problems: list[str] = []
    for bid_id in sorted(active & found.express.keys()):
        for seat in found.express[bid_id]:
            other = taken.setdefault(seat, bid_id)
            if other != bid_id and seat[1].slot > first_slot:
                problems.append(f"{bid_id} and {other} sit on one seat in slot {seat[1].slot}")
    return problems


def compare_pricing(zone: Zone, engine: Engine, solved: int | None) -> list[str]:
    """What the operator is shown of policy and prices."""
    pricing = Pricing.objects.filter(zone=zone).first()
    if pricing is None:
        return ["nothing says which policy is in force"]
    shown, found = (pricing.policy, pricing.applied_position), (engine.rules.policy, solved)
    if shown == found:
        return []
    return [f"policy and position of the last solve are shown as {shown}, the log has {found}"]


def _find_task(entry: ChainEntry) -> Task:
    assert isinstance(entry.event, events.BidArrived | events.BidPriced)
    return entry.event.task


def _show(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
