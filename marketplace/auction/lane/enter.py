"""The one writer of a zone: applies events to its engine and records what follows.

Every change of a zone's book goes through ``enter_lane``: a transaction that holds the zone's
advisory lock from its first look at the log to its commit. Bids that were received are decided
before it. It first puts cells of jobs that ended on sale, then brings the engine up to date (the
slot, the fleet) and plans jobs again that lost cells. Then the caller applies events. At the end
everything is written at once: log entries, the head, rows derived from them. Either all of it is
committed or none, so a lane killed at any point has decided nothing, and the next one decides the
same bids.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

from django.db import OperationalError, connection, transaction

from marketplace.accounts.selectors import list_operator_organisations
from marketplace.auction.book import engine_cache as books
from marketplace.auction.lane.decisions import decide_received_bids
from marketplace.auction.lane.ended_jobs import list_ended_jobs, release_ended_jobs
from marketplace.auction.lane.first_rates import post_first_rates
from marketplace.auction.lane.lane import Lane
from marketplace.auction.lane.price_changes import follow_beat, sync_rules
from marketplace.auction.lane.replan import record_lost_cells, replan_jobs
from marketplace.auction.locks import lock_lane
from marketplace.common.events import publish_on_commit
from marketplace.fleet.models import ON_SALE, Node, NodeStatus, Zone
from marketplace.fleet.selectors import build_node_spec, slot_at
from scheduler import types as scheduler
from scheduler.auction.log import events

log = logging.getLogger(__name__)

#: Seconds in which a lane has its zone's engine, which it may have to build from a long log.
LOAD_WITHIN_S = 300
#: Seconds for what it does with it; a batch takes some tenths of one. A lane that stops here is
#: replaced by a standby within 15 s.
WORK_WITHIN_S = 12
#: Where more nodes than this join at once, as when a zone's log begins, that takes its time too.
NODES_AT_ONCE = 200


@contextmanager
def enter_lane(*, zone: Zone, now: datetime) -> Iterator[Lane]:
    """Be the zone's one writer until the block ends; waits for another to finish.

    Bids that were received and not decided come first, in a transaction of their own: nothing
    may happen to the zone between a receipt and its decision.

    Raises
    ------
    django.db.OperationalError
        Another lane held the zone for longer than the database's lock timeout.
    """
    while True:
        with open_lane(zone=zone, now=now) as lane:
            if not lane.book.engine.open_receipts:
                ended = list_ended_jobs(lane)
                if ended:
                    # A single one with very many rows may take longer than other work.
                    _end_transaction_after(LOAD_WITHIN_S)
                    release_ended_jobs(lane, ended)
                    _end_transaction_after(WORK_WITHIN_S)
                if lane.book.engine.beat is None:
                    # So that a new zone's first prices are solved for the nodes that it has.
                    _sync_fleet(lane)
                if lane.slot // lane.book.engine.rules.day_slots == lane.book.engine.today:
                    # So that the beat has them, and its prices are solved under them. Of another
                    # day they are once its beat has come: until then the log is in the day before.
                    sync_rules(lane)
                follow_beat(lane)
                sync_rules(lane)
                _sync_fleet(lane)
                post_first_rates(lane)
                record_lost_cells(lane)
                replan_jobs(lane)
                yield lane
                return
            decide_received_bids(lane)


@contextmanager
def open_lane(*, zone: Zone, now: datetime) -> Iterator[Lane]:
    """Be the zone's one writer, with its log as it is: nothing is brought up to date.

    Raises
    ------
    django.db.OperationalError
        As ``enter_lane``.
    """
    try:
        with transaction.atomic():
            _end_transaction_after(LOAD_WITHIN_S)
            head, fleet = lock_lane(zone_id=zone.pk)
            head = head or books.begin_log(zone=zone, now=now)
            lane = Lane(
                zone=zone,
                now=now,
                head=head,
                fleet=fleet,
                book=books.load_lane_book(head=head),
                slot=max(slot_at(zone, now), head.slot),
            )
            _end_transaction_after(WORK_WITHIN_S)
            yield lane
            write_lane(lane)
    except BaseException:
        # What was applied is not in the log; the next lane starts from what is.
        books.discard_lane_book(zone_id=zone.pk)
        raise


def _end_transaction_after(seconds: int) -> None:
    """Have the server end this transaction if it is still open by then.

    Within a caller's transaction it does nothing: that is not the lane's to end.

    A lane that hangs, or whose host is cut off, must not hold its zone: a standby goes on. A timer
    that runs is not set again by another value, so it is stopped first.
    """
    if len(connection.atomic_blocks) > 1:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT set_config('transaction_timeout', '0', true),"
            " set_config('transaction_timeout', %(within)s, true),"
            " set_config('idle_in_transaction_session_timeout', %(within)s, true)",
            {"within": f"{seconds}s"},
        )


def _sync_fleet(lane: Lane) -> None:
    """Tell the engine which nodes came, changed and went, if the fleet is not what it was."""
    seen = (lane.slot, lane.fleet)
    if seen == lane.book.fleet_seen:
        return
    known, own = lane.book.nodes, list_operator_organisations()
    sold = _sold_slots(lane)
    here = list(Node.objects.filter(zone=lane.zone).select_related("provider").order_by("pk"))
    if len(here) - len(known) > NODES_AT_ONCE:
        _end_transaction_after(LOAD_WITHIN_S)
    for node in here:
        before = known.get(node.pk)
        wanted = _wanted(lane, node, before, sold.get(node.pk, ()))
        if wanted is not None and node.provider.organisation_id in own:
            wanted = replace(wanted, is_own=True)
        if wanted is not None:
            wanted = replace(wanted, ask=min(wanted.ask, lane.book.engine.find_most_ask(wanted)))
        if wanted is not None and before is None:
            lane.apply(events.NodeJoined(node=wanted))
        elif wanted is not None and before != wanted:
            lane.apply(events.NodeChanged(node=wanted))
        elif wanted is None and before is not None:
            lane.apply(events.NodeLeft(node_id=node.pk, from_slot=lane.slot))
    lane.book.fleet_seen = seen


def _wanted(
    lane: Lane, node: Node, before: scheduler.NodeSpec | None, sold: Collection[int]
) -> scheduler.NodeSpec | None:
    """The node as the engine should have it; ``None`` when it serves nothing any more.

    A provider who drains a node or shortens its time still serves what was sold, and sells no
    other cell; only a node that is lost loses cells. One that shares its device has that in its
    hours alone: a cell that was sold outside them, as they were changed, is lost and planned again.
    """
    if node.status not in (*ON_SALE, NodeStatus.DRAINING):
        return None
    wanted = build_node_spec(lane.zone, node, slot=lane.slot)
    if node.status == NodeStatus.DRAINING:
        if before is None:
            return None
        # The same from slot to slot, so that draining is one event.
        ended = lane.slot if before.available_until is None else before.available_until
        wanted = replace(wanted, available_until=min(ended, lane.slot))
    if node.status == NodeStatus.RESTING and (wanted.available_from or 0) <= lane.slot:
        # Its hours have begun and it is not there: what is sold goes elsewhere, or waits for it.
        return None
    stays = node.shared_device_id is None or node.status == NodeStatus.DRAINING
    if stays and any(not _is_available(wanted, slot) for slot in sold):
        return replace(wanted, keeps_sold=True)
    if wanted.available_until is not None and wanted.available_until < lane.slot:
        return None
    return wanted


def _sold_slots(lane: Lane) -> dict[str, set[int]]:
    """Slots from the present one on in which tasks hold cells, by node."""
    slots: defaultdict[str, set[int]] = defaultdict(set)
    for held in lane.book.engine.reservations():
        if held.cell.slot >= lane.slot:
            slots[held.cell.node].add(held.cell.slot)
    return slots


def _is_available(node: scheduler.NodeSpec, slot: int) -> bool:
    begin, end = node.available_from, node.available_until
    return (begin is None or slot >= begin) and (end is None or slot <= end)


_HEAD_COLUMNS = ("position", "head_hash", "slot", "beat_position", "seq", "updated_at")


def write_lane(lane: Lane) -> None:
    """Write what was applied; the caller's own rows are written already.

    Raises
    ------
    LogBroken
        It does not begin where the log ends; nothing was written.
    """
    if not lane.entries:
        return
    head, engine = lane.head, lane.book.engine
    first = lane.entries[0]
    if (first.position, first.prev_hash) != (head.position + 1, head.head_hash):
        raise books.LogBroken(
            f"zone {lane.zone.name}: entry {first.position} does not follow {head.position}"
        )
    books.append_log(zone_id=lane.zone.pk, new=lane.entries, now=lane.now)
    head.position, head.head_hash = engine.position, engine.head_hash
    head.updated_at = lane.now
    head.seq += 1
    head.save(update_fields=[*_HEAD_COLUMNS])
    books.take_snapshot_if_late(book=lane.book, head=head, now=lane.now)
    publish_on_commit(
        stream=f"market.{lane.zone.name}",
        event={
            "type": "market.changed",
            "seq": head.seq,
            "position": head.position,
            "head_hash": head.head_hash,
            "slot": head.slot,
            "at": lane.now.isoformat(),
            **lane.news,
        },
    )


def is_lock_timeout(error: OperationalError) -> bool:
    """Whether a database error only says that another lane was at work for too long."""
    return getattr(error.__cause__, "sqlstate", None) == "55P03"
