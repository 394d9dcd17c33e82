"""Which numbers an event may carry.

Events come from outside. A number that is not finite, or so large that sums overflow, would spoil
every later price. A negative ask or price would make a provider pay; such an event is refused
before anything is changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from scheduler.auction.log.events import (
    BidArrived,
    BidPriced,
    BidsReceived,
    BundleArrived,
    CellsReleased,
    DayOpened,
    DayPromised,
    ErratumNoted,
    Event,
    ExpressAnswered,
    ExpressPlanned,
    LogRestored,
    NodeChanged,
    NodeJoined,
    NodeLeft,
    PlansMoved,
    PreparationEnded,
    PricesSolved,
    RatesPosted,
    ReceiptsVoided,
    RulesChanged,
    SlotAdvanced,
    TaskReplanned,
    VendorChanged,
)
from scheduler.public_log.canonical_json import read_hex, serialize_canonical
from scheduler.types import NodeSpec, Task

#: Most that an amount of money or a price may be, in any unit.
MOST_MONEY = 1e30
#: Slots count no further than floats count exactly.
MOST_SLOT = 2**53
#: Most units of work that a vendor does in a slot.
MOST_LOAD = 2**31
#: Of what an erratum says.
ERRATUM_CHARS = 500


def check_event(event: Event) -> None:
    """Refuse an event that carries a number no price can be made of.

    Raises
    ------
    ValueError
        The message names the number.
    """
    match event:
        case BidArrived(task=task, slot=slot):
            _slots("slot", slot)
            _task_check(task)
        case BidPriced():
            _check_priced(event)
        case BundleArrived():
            _check_bundle(event)
        case TaskReplanned(task=task, slot=slot, tolerance=tolerance):
            _slots("slot", slot)
            _task_check(task)
            _numbers("tolerance", () if tolerance is None else (tolerance,), 0.0, MOST_MONEY)
        case PlansMoved(moves=moves, slot=slot):
            _slots("slot", slot)
            for move in moves:
                _slots(f"window of task {move.task_id}", move.deadline_slot)
                demands = (move.compute_demand, move.memory_demand)
                _numbers(f"demand of task {move.task_id}", demands, 0.0, math.inf)
                _numbers(f"rates of task {move.task_id}", move.rates.values(), -math.inf, math.inf)
        case NodeJoined(node=node) | NodeChanged(node=node):
            _node_check(node)
        case PricesSolved():
            _slots("first_slot", event.first_slot)
            for name, prices in (
                ("compute_price", event.compute_price),
                ("memory_price", event.memory_price),
            ):
                for node_id, row in prices.items():
                    _numbers(f"{name} of node {node_id}", row, -math.inf, MOST_MONEY)
            for gpu_type, rates in event.usual_rates.items():
                _numbers(f"usual_rates of {gpu_type}", rates, -math.inf, math.inf)
            _text("inputs", event.inputs)
            for gpu_type, worth in event.sample_worth.items():
                _numbers(f"sample_worth of {gpu_type}", worth, 0.0, MOST_MONEY)
        case VendorChanged(vendor=vendor):
            _loads(f"capacity of vendor {vendor.id}", vendor.capacity)
        case SlotAdvanced(slot=slot, part=part):
            _slots("slot and part", slot, part)
        case NodeLeft(from_slot=slot) | PreparationEnded(slot=slot):
            _slots("slot", slot)
        case RatesPosted():
            _check_rates(event)
        case RulesChanged(rules=rules):
            _text("settings", rules.settings)
        case ExpressAnswered() | ExpressPlanned():
            _text("question", event.question)
            _text("answer", event.answer)
        case ErratumNoted():
            _check_erratum(event)
        case LogRestored():
            _check_restore(event)
        case CellsReleased():
            _check_release(event)
        case DayPromised() | DayOpened():
            _check_day(event)
        case BidsReceived() | ReceiptsVoided():
            pass


def _check_priced(event: BidPriced) -> None:
    _slots("slot and beat", event.slot, event.beat.slot, event.beat.part)
    _task_check(event.task)
    if event.task.bid:
        raise ValueError(f"task {event.task.id} is priced: it has no bid")


def _check_day(event: DayPromised | DayOpened) -> None:
    _slots("day", event.day)
    if isinstance(event, DayOpened):
        _text("secret", {"secret": event.secret})
        # In another form it would be another value of the day.
        _hex("witness_signature", event.witness_signature, 64, may_lack=True)
        return
    _text("zone", {"zone": event.zone})
    _hex("commitment", event.commitment, 32)
    _hex("keys", event.market_key, 32, may_lack=True)
    _hex("keys", event.witness_key, 32, may_lack=True)


def _check_erratum(event: ErratumNoted) -> None:
    _slots("entry", event.entry)
    # Verifiers print it, also those of strangers.
    for text in (event.problem, event.rule, *event.off_by):
        if len(text) > ERRATUM_CHARS or not text.isprintable():
            raise ValueError(
                f"what is wrong with entry {event.entry} is one line of {ERRATUM_CHARS} "
                "characters at most, and without control characters"
            )
    _numbers(f"how far entry {event.entry} is off", event.off_by.values(), 0.0, MOST_MONEY)


def _check_restore(event: LogRestored) -> None:
    begin, end = map(datetime.fromisoformat, (event.backed_up_at, event.restored_at))
    if begin.utcoffset() is None or end.utcoffset() is None or end < begin:
        raise ValueError("a restore follows its backup, both with their offset from UTC")


def _check_release(event: CellsReleased) -> None:
    rest, of = event.rest, f"of task {event.task_id}"
    _numbers(f"what was paid for the rest {of}", (event.paid,), 0.0, MOST_MONEY)
    _numbers(f"operational cost begun {of}", (event.begun_asks,), 0.0, float(event.paid))
    _numbers(f"refund promised {of}", (event.promised,), 0.0, MOST_MONEY)
    # With a rest it follows from the cells.
    most = 1.0 if rest is None else 0.0
    _numbers(f"share of the price paid {of}", (event.paid_share,), 0.0, most)
    if rest is not None:
        _task_check(rest)
        if event.slot is not None and not 0 <= event.slot < rest.arrival_slot:
            raise ValueError(f"the rest {of} could begin before it was given back")
        _numbers(f"work begun {of}", (event.begun,), 0.0, rest.compute_demand)


def _check_bundle(event: BundleArrived) -> None:
    for arrival in event.arrivals:
        check_event(arrival)
    if len(event.arrivals) < 2:
        raise ValueError(f"bundle {event.bundle_id} has fewer than two bids")
    if any(arrival.bundle != event.bundle_id for arrival in event.arrivals):
        raise ValueError(f"bundle {event.bundle_id} has a bid that does not name it")
    if len({(of.slot, of.task.deadline_slot) for of in event.arrivals}) > 1:
        raise ValueError(f"the bids of bundle {event.bundle_id} have several slots or deadlines")


def _check_rates(event: RatesPosted) -> None:
    _slots("first_slot", event.first_slot, event.block_slots, event.day_slots)
    if not 0 < event.block_slots <= event.day_slots:
        raise ValueError(f"a block of {event.block_slots} slots is none of {event.day_slots}")
    blocks = -(-event.day_slots // event.block_slots)
    for node_id, rate in event.rates.items():
        of = f"of node {node_id}"
        _numbers(f"ask and floor {of}", (rate.ask, rate.floor), 0.0, MOST_MONEY)
        _numbers(f"rates {of}", rate.by_block, 0.0, MOST_MONEY)
        if len(rate.by_block) != blocks or min(rate.by_block) < rate.floor:
            raise ValueError(f"rates {of} are not {blocks}, or lie below its floor")
    _text("inputs", event.inputs)


def _task_check(task: Task) -> None:
    if _plain(task):
        return
    of = f"of task {task.id}"
    _slots(f"window {of}", task.arrival_slot, task.deadline_slot)
    _numbers(f"bid {of}", (task.bid,), -MOST_MONEY, MOST_MONEY)
    _numbers(f"demand {of}", (task.compute_demand, task.memory_demand), 0.0, math.inf)
    _numbers(f"rates {of}", task.rates.values(), -math.inf, math.inf)
    for vendor in task.vendors:
        _numbers(f"price of vendor {vendor.id} {of}", (vendor.price,), 0.0, MOST_MONEY)
        _slots(f"delay of vendor {vendor.id} {of}", vendor.delay_slots)
        _loads(f"load of vendor {vendor.id} {of}", vendor.load)
    for node_id, row in (task.operational_costs or {}).items():
        _numbers(f"operational_costs on node {node_id} {of}", row, 0.0, MOST_MONEY)


def _plain(task: Task) -> bool:
    """Tell at a glance that a task is fine, as nearly all are; False: look closely."""
    try:
        for slot in (task.arrival_slot, task.deadline_slot):
            if not -MOST_SLOT <= slot <= MOST_SLOT:
                return False
        for rate in task.rates.values():
            if not -math.inf < rate < math.inf:
                return False
        for vendor in task.vendors:
            if not 0.0 <= vendor.price <= MOST_MONEY:
                return False
            if not -MOST_SLOT <= vendor.delay_slots <= MOST_SLOT:
                return False
            if not 0 <= vendor.load <= MOST_LOAD:
                return False
        return (
            -MOST_MONEY <= task.bid <= MOST_MONEY
            and 0.0 <= task.compute_demand < math.inf
            and 0.0 <= task.memory_demand < math.inf
            and task.operational_costs is None
        )
    except TypeError:
        return False


def _node_check(node: NodeSpec) -> None:
    of = f"of node {node.id}"
    _numbers(f"ask {of}", (node.ask,), 0.0, MOST_MONEY)
    _numbers(f"capacity {of}", (node.compute_capacity, node.memory_capacity), 0.0, math.inf)
    for slot in (node.available_from, node.available_until):
        if slot is not None:
            _slots(f"availability {of}", slot)


def _numbers(name: str, values: Iterable[float], least: float, most: float) -> None:
    for value in values:
        number = float(value)
        # Written so that NaN fails.
        if not (least <= number <= most and abs(number) < math.inf):
            raise ValueError(f"{name} is {value}: it must be finite and in [{least:g}, {most:g}]")


def _slots(name: str, *slots: int) -> None:
    for slot in slots:
        if not -MOST_SLOT <= slot <= MOST_SLOT:
            raise ValueError(f"{name} is {slot}: slots are within {MOST_SLOT} of zero")


def _loads(name: str, units: int) -> None:
    if not 0 <= units <= MOST_LOAD:
        raise ValueError(f"{name} is {units}: it must be in [0, {MOST_LOAD}]")


def _hex(name: str, text: str, length: int, *, may_lack: bool = False) -> None:
    if may_lack and text == "":
        return
    try:
        read_hex(text, length=length)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is not the hex of {length} bytes in small letters") from error


def _text(name: str, values: Mapping[str, Any]) -> None:
    """Refuse what the log could not hash once the event has changed the market."""
    try:
        serialize_canonical(values).encode()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} cannot be written as JSON: {error}") from error
