"""The engine of a zone, kept in step with the zone's log.

Each process keeps one engine per zone. Before use it is compared with the log's
head in the same transaction: equal, it is used; behind, it retraces what it
missed; far behind, or anything else (another history, other rules) and it is rebuilt from the
latest snapshot and the entries after it. The engine is changed in place, so the
lane throws its copy away whenever its transaction did not commit.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from django.db.models import QuerySet

from marketplace.auction.models import LogEntry, MarketHead, Pricing, Snapshot
from marketplace.common.errors import MarketFault
from marketplace.fleet.models import Zone
from marketplace.fleet.policy_settings import (
    RULE_PARAMETERS,
    check_policy_settings,
    find_beats_per_slot,
    find_unit_fee,
)
from marketplace.fleet.selectors import build_node_spec, list_nodes_on_sale, slot_at
from marketplace.fleet.slots import count_slots_per_day
from marketplace.payments.price_shares import find_card_share, find_tax_share
from scheduler import types as scheduler
from scheduler.auction import ChainEntry, Engine, ZoneRules, rules_from_json, rules_to_json
from scheduler.auction.engine.price_policies import SELLING_POLICY
from scheduler.auction.log.codec import (
    event_from_json,
    event_to_json,
    outcome_from_json,
    outcome_to_json,
)
from scheduler.auction.log.events import NodeJoined
from scheduler.public_log.canonical_json import parse_json, serialize_canonical
from scheduler.public_log.entries import hash_entry

#: Entries between snapshots, which a worker takes.
SNAPSHOT_EVERY = 2000
#: Entries after which the lane takes one itself, and so about the most that a restart replays.
SNAPSHOT_AT_LATEST = 20_000
#: Rows fetched from the log at a time.
FETCH_ROWS = 2000


class LogBroken(MarketFault):
    """Replaying the log does not give what the log says; the zone must not be sold from."""


@dataclass(slots=True)
class Book:
    """A zone's engine and the lock that guards it in this process."""

    zone_id: str
    engine: Engine
    #: ``MarketHead.seq`` at the engine's position.
    seq: int = 0
    #: Slot and fleet rows the lane last compared with the engine; spares it the comparison.
    fleet_seen: object = None
    #: Policy and settings of the zone, and the engine's rules, that the lane last compared.
    rules_seen: object = None
    #: Position of the latest snapshot, once known.
    snapshot_position: int | None = None

    @property
    def nodes(self) -> dict[str, scheduler.NodeSpec]:
        return {node.id: node for node in self.engine.nodes}


#: Three sets of engines: the lane changes its own, readers share theirs, so that a
#: reader never sees what a transaction of the lane may still take back, and solves have one that
#: stops at the latest beat.
_lane_books: dict[str, Book] = {}
_read_books: dict[str, Book] = {}
_beat_books: dict[str, Book] = {}
_read_locks: dict[str, threading.Lock] = {}
_guard = threading.Lock()


#: Of jobs that their owners give back, the rent of cells that begin so many slots later, or sooner,
#: goes back only as they are sold again; see docs/adr/0024.
LATE_SLOTS = 4


def get_commitment_salt() -> str:
    """What keeps a bid from being guessed from its commitment in the published log."""
    return secrets.token_hex(16)


def build_first_rules(zone: Zone, *, now: datetime) -> ZoneRules:
    """What a log of the zone that begins now begins with; kept in the snapshot at position 0.

    Raises
    ------
    UserError
        ``invalid_policy_setting``
    """
    begun = ZoneRules(
        base_memory=zone.base_memory_gb,
        horizon_slots=zone.horizon_slots,
        first_slot=slot_at(zone, now),
        day_slots=count_slots_per_day(zone),
        beats_per_slot=find_beats_per_slot(zone),
        slot_s=zone.slot_s,
        epoch_s=round(zone.epoch_at.timestamp()),
        money_quantum=1.0,
    )
    return replace_zone_settings(begun, zone=zone)


def replace_zone_settings(rules: ZoneRules, *, zone: Zone) -> ZoneRules:
    """A log's rules with what sells now and the zone's present settings in place of its own.

    Raises
    ------
    UserError
        ``invalid_policy_setting``
    """
    check_policy_settings(zone.settings)
    own = {name: value for name, value in zone.settings.items() if name in RULE_PARAMETERS}
    rest = {name: value for name, value in zone.settings.items() if name not in own}
    changed = replace(
        rules,
        policy=SELLING_POLICY,
        settings=rest,
        refusal_hints=own.get("refusal_hints", True),
        posts_rates=own.get("posts_rates", False),
        fee_per_unit=find_unit_fee(zone),
        card_share=find_card_share(),
        tax_share=find_tax_share(),
        late_slots=LATE_SLOTS,
    )
    # Numbers as a restart reads them, so that both hash to the same.
    return rules_from_json(rules_to_json(changed))


def begin_log(*, zone: Zone, now: datetime) -> MarketHead:
    """Begin the log of a zone that has none. Call as the zone's lane."""
    engine = Engine(build_first_rules(zone, now=now))
    Snapshot.objects.create(
        zone=zone,
        position=engine.position,
        head_hash=engine.head_hash,
        state=json.dumps(engine.snapshot()),
        taken_at=now,
    )
    Pricing.objects.update_or_create(
        zone=zone,
        defaults={
            "policy": engine.rules.policy,
            "policy_since_at": now,
            "fee_per_unit": engine.rules.fee_per_unit,
        },
    )
    return MarketHead.objects.create(
        zone=zone,
        position=engine.position,
        head_hash=engine.head_hash,
        slot=slot_at(zone, now),
        updated_at=now,
    )


def load_lane_book(*, head: MarketHead) -> Book:
    """The lane's engine at the head. Call while holding the zone's lane lock."""
    book = _lane_books.get(head.zone_id)
    book = _in_step(book, head)
    _lane_books[head.zone_id] = book
    return book


def discard_lane_book(*, zone_id: str) -> None:
    """Forget an engine that may hold what was not committed."""
    _lane_books.pop(zone_id, None)


@contextmanager
def read_book(*, zone: Zone, now: datetime) -> Iterator[Book]:
    """A replica of the zone's engine, as new as the committed log.

    The caller must change nothing; other threads of this process wait until it is done. A
    zone without a log is shown as its lane will begin it.
    """
    with _guard:
        lock = _read_locks.setdefault(zone.pk, threading.Lock())
    with lock:
        head = MarketHead.objects.filter(zone=zone).first()
        if head is None:
            yield Book(zone_id=zone.pk, engine=_unbegun(zone, now=now))
            return
        book = _in_step(_read_books.pop(zone.pk, None), head)
        _read_books[zone.pk] = book
        yield book


def replicate_at_beat(*, head: MarketHead) -> Engine:
    """A replica of the zone's engine as the latest beat of the log left it; it has such a beat."""
    last = LogEntry.objects.only("hash").get(zone_id=head.zone_id, position=head.beat_position)
    then = MarketHead(
        zone_id=head.zone_id, position=head.beat_position, head_hash=last.hash, slot=head.slot
    )
    with _guard:
        lock = _read_locks.setdefault(head.zone_id, threading.Lock())
    with lock:
        book = _in_step(_beat_books.pop(head.zone_id, None), then)
        _beat_books[head.zone_id] = book
        return book.engine.replica()


def _unbegun(zone: Zone, *, now: datetime) -> Engine:
    """The engine of a zone that its lane has not entered yet, with the fleet it will find."""
    engine = Engine(build_first_rules(zone, now=now))
    for node in list_nodes_on_sale(zone):
        joining = build_node_spec(zone, node, slot=engine.rules.first_slot)
        if joining.available_until is None or joining.available_until >= engine.rules.first_slot:
            engine.transition(NodeJoined(node=joining))
    return engine


def _in_step(book: Book | None, head: MarketHead) -> Book:
    if book is not None and _same_history(book, head) and not _far_behind(book, head):
        _catch_up(book, head)
    else:
        book = _rebuild(head)
    if book.engine.head_hash != head.head_hash:
        raise LogBroken(
            f"zone {head.zone_id}: the log replays to {book.engine.head_hash} at "
            f"{book.engine.position}, not to {head.head_hash}; run manage.py auction_verify"
        )
    book.seq = head.seq
    return book


def _same_history(book: Book, head: MarketHead) -> bool:
    """Whether the engine's position is one the log went through with the same hash."""
    position, head_hash = book.engine.position, book.engine.head_hash
    if position == head.position:
        return head_hash == head.head_hash
    if position > head.position:
        return False
    return LogEntry.objects.filter(
        zone_id=head.zone_id, position=position + 1, prev_hash=head_hash
    ).exists()


def _far_behind(book: Book, head: MarketHead) -> bool:
    """Whether a snapshot spares the engine a good part of what it missed."""
    if head.position - book.engine.position <= SNAPSHOT_EVERY:
        return False
    return (
        book.engine.position + SNAPSHOT_EVERY
        <= find_latest_snapshot_position(head.zone_id)
        <= head.position
    )


def _rebuild(head: MarketHead) -> Book:
    snapshot = (
        Snapshot.objects.filter(zone_id=head.zone_id, position__lte=head.position)
        .order_by("-position")
        .first()
    )
    if snapshot is None:
        raise LogBroken(f"zone {head.zone_id} has a log and no snapshot at position 0")
    book = Book(zone_id=head.zone_id, engine=restore_engine(snapshot))
    _catch_up(book, head)
    return book


def _catch_up(book: Book, head: MarketHead) -> None:
    """Retrace what the log has beyond the engine's position.

    Each entry's hash is worked out from what the row says and the chain so far, and what was
    decided is taken as it stands. Whether it was decided rightly is ``auction_verify``'s to say.
    """
    engine = book.engine
    if engine.position == head.position:
        return
    later = LogEntry.objects.filter(
        zone_id=head.zone_id, position__gt=engine.position, position__lte=head.position
    )
    for row in read_log_rows(later):
        event, outcome = parse_json(row.event), parse_json(row.outcome)
        found = hash_entry(
            position=engine.position + 1, event=event, outcome=outcome, prev_hash=engine.head_hash
        )
        if (row.position, row.hash) != (engine.position + 1, found):
            raise LogBroken(
                f"zone {head.zone_id}: entry {engine.position + 1} hashes to {found}, the log has "
                f"{row.hash} at {row.position}; run manage.py auction_verify"
            )
        try:
            engine.retrace(event_from_json(event), outcome_from_json(outcome), entry_hash=row.hash)
        except (KeyError, TypeError, ValueError) as error:
            raise LogBroken(
                f"zone {head.zone_id}: entry {row.position} cannot have happened: {error}; "
                "run manage.py auction_verify"
            ) from error


def find_first_snapshot(*, zone_id: str) -> Snapshot | None:
    """The state the zone's log begins with; ``None`` before it has begun."""
    return Snapshot.objects.filter(zone_id=zone_id, position=0).first()


def restore_engine(snapshot: Snapshot) -> Engine:
    return Engine.restore(json.loads(snapshot.state))


class LogRow(NamedTuple):
    """An entry of the log as it is stored."""

    position: int
    event: str
    outcome: str
    prev_hash: str
    hash: str
    recorded_at: datetime


def read_log_rows(log: QuerySet[LogEntry]) -> Iterator[LogRow]:
    """The log's rows in order, fetched some at a time and without an object of the ORM for each."""
    columns = log.order_by("position").values_list(*LogRow._fields)
    return map(LogRow._make, columns.iterator(chunk_size=FETCH_ROWS))


def build_entries(rows: Iterable[LogRow]) -> Iterator[ChainEntry]:
    """The log's rows as the engine's entries."""
    for row in rows:
        yield ChainEntry(
            position=row.position,
            event=event_from_json(parse_json(row.event)),
            outcome=outcome_from_json(parse_json(row.outcome)),
            prev_hash=row.prev_hash,
            hash=row.hash,
        )


def append_log(*, zone_id: str, new: Iterable[ChainEntry], now: datetime) -> None:
    """Write entries the engine just made; call as the zone's lane, in its transaction."""
    LogEntry.objects.bulk_create(
        LogEntry(
            zone_id=zone_id,
            position=entry.position,
            kind=type(entry.event).__name__,
            event=serialize_canonical(event_to_json(entry.event)),
            outcome=serialize_canonical(outcome_to_json(entry.outcome)),
            prev_hash=entry.prev_hash,
            hash=entry.hash,
            recorded_at=now,
        )
        for entry in new
    )


def take_snapshot_if_late(*, book: Book, head: MarketHead, now: datetime) -> bool:
    """Keep the engine's state where the worker that should have done so did not."""
    position = book.engine.position
    if book.snapshot_position is None or position - book.snapshot_position >= SNAPSHOT_AT_LATEST:
        book.snapshot_position = find_latest_snapshot_position(head.zone_id)
    if position - book.snapshot_position < SNAPSHOT_AT_LATEST:
        return False
    book.snapshot_position = position
    Snapshot.objects.create(
        zone_id=head.zone_id,
        position=position,
        head_hash=book.engine.head_hash,
        state=json.dumps(book.engine.snapshot()),
        taken_at=now,
    )
    return True


def find_latest_snapshot_position(zone_id: str) -> int:
    """Position of the zone's latest snapshot; 0, where the log begins, if there is no later."""
    taken = Snapshot.objects.filter(zone_id=zone_id).order_by("-position")
    return taken.values_list("position", flat=True).first() or 0
