"""Canonical JSON of bids and decisions, written directly.

Nearly all entries of a log are a bid and its decision, and hashing them takes longer
than most searches when it goes through dictionaries. What is written here is, to the
last character, what ``log.encode_canonical`` writes of ``event_to_json`` and
``outcome_to_json``; what is not of the plain kind it was made for is left to those.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from json.encoder import encode_basestring_ascii
from typing import Any, NamedTuple, TypeVar

from scheduler.auction.log.events import BidArrived, Event
from scheduler.auction.log.outcomes import Outcome
from scheduler.types import Decision, PriceParts, Schedule, Task

T = TypeVar("T")

serialize_canonical = json.JSONEncoder(
    sort_keys=True,
    separators=(",", ":"),
    ensure_ascii=True,
    allow_nan=False,
    # Values made for the log hold no cycles, and looking for them takes time.
    check_circular=False,
).encode

_quoted = encode_basestring_ascii
_number = float.__repr__
_count = int.__repr__


class Texts(NamedTuple):
    """An event or an outcome as it is stored, and as the chain covers it."""

    stored: str
    #: With a commitment in place of the bid, and without what reveals it.
    chained: str


class _Unusual(Exception):
    """A value that the general encoder has to see to."""


def compute_commitment(*, bid: float, salt: str) -> str:
    """Give what stands for a bid in the chain: it can be opened, not guessed."""
    return hashlib.sha256(f"{salt}|{float(bid)!r}".encode()).hexdigest()


def commit_owner(owner: str, *, salt: str) -> str:
    """Give what stands for a bid's owner in the chain."""
    return hashlib.sha256(f"{salt}|owner|{owner}".encode()).hexdigest()


def commit_private(hidden: Mapping[str, Any], *, salt: str) -> str:
    """Give what stands in the chain for the parts of a decision that tell of its bid."""
    return commit_text(serialize_canonical(dict(hidden)), salt=salt)


def commit_text(text: str, *, salt: str) -> str:
    """Give the commitment to a canonical text."""
    return hashlib.sha256(f"{salt}|{text}".encode()).hexdigest()


def serialize_bid(event: Event) -> Texts | None:
    """Write the arrival of a bid; ``None`` if it is not one, or not of the plain kind."""
    return _plainly(_bid_texts, event) if isinstance(event, BidArrived) else None


def serialize_decision(event: Event, outcome: Outcome) -> Texts | None:
    """Write the decision of a bid; ``None`` if it is not one, or not of the plain kind."""
    if not isinstance(event, BidArrived) or not isinstance(outcome, Decision):
        return None
    return _plainly(partial(_decision_texts, salt=event.salt), outcome)


def _plainly(write: Callable[[T], Texts], value: T) -> Texts | None:
    try:
        return write(value)
    except (TypeError, AttributeError, _Unusual):
        return None


def _bid_texts(event: BidArrived) -> Texts:
    task, slot = event.task, event.slot
    if event.bundle:
        raise _Unusual
    for count in (slot, task.arrival_slot, task.deadline_slot):
        if type(count) is not int:
            raise _Unusual
    bid = float(task.bid)
    _check(bid)
    arrival = f'"task":{{"arrival_slot":{task.arrival_slot},'
    before, after = _rest_of(task)
    salt = _quoted(event.salt)
    sealed = compute_commitment(bid=bid, salt=event.salt)
    owner_text = hidden = ""
    if task.owner:
        owner_text = f'"owner":{_quoted(task.owner)},'
        hidden = f'"owner_commitment":"{commit_owner(task.owner, salt=event.salt)}",'
    return Texts(
        f'{{"salt":{salt},"slot":{slot},{arrival}"bid":{_number(bid)},{before}{owner_text}{after}',
        f'{{"slot":{slot},{arrival}"bid_commitment":"{sealed}",{before}{hidden}{after}',
    )


def _rest_of(task: Task) -> tuple[str, str]:
    """Give what is written of a task after its bid, before and after its owner."""
    if task.operational_costs is not None:
        raise _Unusual
    compute, memory = float(task.compute_demand), float(task.memory_demand)
    _check(compute + memory)
    rates: list[str] = []
    for name, rate in sorted(task.rates.items()):
        number = float(rate)
        _check(number)
        rates.append(f"{_quoted(name)}:{_number(number)}")
    vendors: list[str] = []
    for vendor in task.vendors:
        price = float(vendor.price)
        _check(price)
        load = f",{_count(vendor.load)}" if vendor.load else ""
        vendors.append(
            f"[{_quoted(vendor.id)},{_number(price)},{_count(vendor.delay_slots)}{load}]"
        )
    only = ',"verified_only":true' if task.verified_only else ""
    return (
        f'"compute_demand":{_number(compute)},"deadline_slot":{task.deadline_slot},'
        f'"id":{_quoted(task.id)},"memory_demand":{_number(memory)},"operational_costs":null,',
        f'"rates":{{{",".join(rates)}}},"vendors":[{",".join(vendors)}]{only}}},"type":"BidArrived"}}',
    )


def _decision_texts(decision: Decision, *, salt: str) -> Texts:
    """What reveals the bid is committed to."""
    begin, (task, schedule), later = _pieces_of(decision)
    raised = f'"raised":{_raised(decision.raised)},'
    surplus = f'"surplus":{_amount(decision.surplus)},'
    winning = f'"winning_price":{_amount(decision.winning_price)}}}'
    sealed = commit_text(f"{{{raised}{surplus}{later}}}", salt=salt)
    return Texts(
        f"{begin}{raised}{schedule}{surplus}{task}{later},{winning}",
        f'{begin}"private_commitment":"{sealed}",{schedule}{task}{winning}',
    )


def _pieces_of(decision: Decision) -> tuple[str, tuple[str, str], str]:
    """Give the texts that all versions are put together from."""
    if type(decision.admitted) is not bool:
        raise _Unusual
    notes = serialize_canonical(dict(decision.notes)) if decision.notes else "{}"
    refusal = "null" if decision.refusal is None else _quoted(decision.refusal.value)
    slot = decision.winning_deadline_slot
    begin = (
        f'{{"admitted":{"true" if decision.admitted else "false"},"notes":{notes},'
        f'"parts":{_parts(decision.parts)},"payment":{_amount(decision.payment)},'
    )
    schedule = f'"refusal":{refusal},"schedule":{_schedule(decision.schedule)},'
    task = f'"task_id":{_quoted(decision.task_id)},"type":"Decision",'
    later = (
        f'"winning_deadline_price":{_amount(decision.winning_deadline_price)},'
        f'"winning_deadline_slot":{"null" if slot is None else _count(slot)}'
    )
    return begin, (task, schedule), later


def _parts(parts: PriceParts | None) -> str:
    if parts is None:
        return "null"
    _check(parts.vendor + parts.operational + parts.compute + parts.memory + parts.rounding)
    return (
        f"[{_number(parts.vendor)},{_number(parts.operational)},{_number(parts.compute)},"
        f"{_number(parts.memory)},{_number(parts.rounding)}]"
    )


def _schedule(schedule: Schedule | None) -> str:
    if schedule is None:
        return "null"
    cells = ",".join([f"[{_count(c.slot)},{_quoted(c.node)}]" for c in schedule.cells])
    ready = "" if schedule.ready_slot is None else f'"ready_slot":{_count(schedule.ready_slot)},'
    return f'{{"cells":[{cells}],{ready}"vendor":{_count(schedule.vendor)}}}'


def _raised(raised: tuple[tuple[float, float], ...]) -> str:
    # Most cells of a schedule rise by the same, and numbers take long to write.
    known: dict[tuple[float, float], str] = {}
    texts: list[str] = []
    for pair in raised:
        text = known.get(pair)
        if text is None:
            compute, memory = pair
            _check(compute + memory)
            text = f"[{_number(compute)},{_number(memory)}]"
            # Zeros of either sign are equal and not written the same.
            if compute and memory:
                known[pair] = text
        texts.append(text)
    return f"[{','.join(texts)}]"


def _amount(value: float | None) -> str:
    if value is None:
        return "null"
    _check(value)
    return _number(value)


def _check(number: Any) -> None:
    """Leave what is not finite, or sums to what is not, to the encoder that refuses it."""
    if number - number != 0.0:
        raise _Unusual
