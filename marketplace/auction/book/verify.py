"""Replaying a zone's log from the database and comparing everything with it.

The replay starts from the zone's rules and trusts nothing else: every stored
outcome and hash is worked out again, solved prices with them, and so is every row that
follows from them: bids, payments, charges, jobs, reservations and snapshots. Or it starts where
an earlier replay ended, from a state that the market's key signed (``log_checks``).
"""

from __future__ import annotations

import json
import re
from datetime import datetime

from django.db import connection, transaction

from marketplace.auction.book import engine_cache as books
from marketplace.auction.book.log_checks import VerifiedState
from marketplace.auction.book.log_segments import (
    find_marks,
    find_wrong_segments,
    read_log,
)
from marketplace.auction.book.row_checks import (
    compare_answer,
    compare_answers,
    compare_bundle,
    compare_job_plans,
    compare_moves,
    compare_pricing,
    compare_reservations,
    compare_signed_heads,
    compare_snapshot,
    find_rows_without_log,
    find_strays,
)
from marketplace.auction.book.verify_report import PROBLEMS_SHOWN, VerifyReport
from marketplace.auction.models import MarketHead, Snapshot
from marketplace.common.archive_files import ArchiveUnreadable
from marketplace.common.db.limits import allow_long_transaction
from marketplace.fleet.models import Zone
from scheduler.auction import ChainEntry, DeadlineHint, Engine, rules_to_json
from scheduler.auction.audit.faults import Fault, Faults
from scheduler.auction.audit.solve_again import SolveAudit
from scheduler.auction.log import events
from scheduler.auction.log.codec import event_from_json, event_to_json, outcome_to_json
from scheduler.public_log.canonical_json import parse_json, serialize_canonical
from scheduler.public_log.witness import DueBeat, read_beat

#: Bids compared with their entries at a time.
CHUNK = 1000
#: A refusal's hint as its one text has it; other outcomes have none to look for.
_HINT = re.compile(
    r'^\{"admitted":false,.*"winning_deadline_slot":(?P<slot>null|-?[0-9]{1,16}),[^,]*$'
)


def verify_zone(zone: Zone, *, since: VerifiedState | None = None) -> VerifyReport:
    """Replay the zone's log and compare every decision, price, hash and row that follows.

    With ``since``, entries up to there and rows of bids decided by then are taken as they were
    found; so are prices that were solved from such bids. Sees the database at one moment, however
    long it takes: the market goes on.
    """
    alone = not connection.in_atomic_block
    with transaction.atomic():
        if alone:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            # Between two fetches prices may be solved again, or the auction is compiled first.
            allow_long_transaction()
        return _verify(zone, since)


def _verify(zone: Zone, since: VerifiedState | None) -> VerifyReport:
    found = VerifyReport(zone=zone.name)
    try:
        _compare(zone, since, found)
    except ArchiveUnreadable as error:
        found.problems.append(str(error))
    return found


def _compare(zone: Zone, since: VerifiedState | None, found: VerifyReport) -> None:
    first = books.find_first_snapshot(zone_id=zone.pk)
    head = MarketHead.objects.filter(zone=zone).first()
    if first is None or head is None:
        found.problems += find_rows_without_log(zone)
        return
    engine = _begin(first, since, found)
    snapshots = {
        snapshot.position: snapshot
        for snapshot in Snapshot.objects.filter(zone=zone, position__gte=engine.position)
    }
    if engine.position in snapshots:
        compare_snapshot(engine, snapshots.pop(engine.position), found)
    found.problems += find_wrong_segments(zone.pk, after=engine.position)
    if not _replay(zone, engine, snapshots, found):
        return
    found.head_hash = engine.head_hash
    if (head.position, head.head_hash) != (engine.position, engine.head_hash):
        found.problems.append(
            f"the head says position {head.position} and {head.head_hash}, "
            f"the log ends at {engine.position} with {engine.head_hash}"
        )
    found.problems += [f"the snapshot at {at} has no entry" for at in sorted(snapshots)]
    found.problems += compare_signed_heads(zone, after=found.begins_at - 1)
    found.problems += find_strays(zone, found)
    found.problems += compare_reservations(zone, engine)
    found.problems += compare_job_plans(zone, engine, found)
    found.problems += compare_pricing(zone, engine, found.solved)
    if found.ok:
        found.state = engine.snapshot()


def _begin(first: Snapshot, since: VerifiedState | None, found: VerifyReport) -> Engine:
    """The engine that the replay begins with: from the zone's rules, or where one ended."""
    if since is None:
        return Engine(books.restore_engine(first).rules)
    engine = Engine.restore(since.state)
    found.begins_at, found.known_before = engine.position, since.known_faults
    found.express, found.solved = dict(since.express), since.solved
    head = find_marks(first.zone_id, [engine.position]).get(engine.position)
    if engine.position and (head is None or head[0] != engine.head_hash):
        found.problems.append(
            f"log position {engine.position}: it is not the entry that was verified before"
        )
    return engine


def _replay(
    zone: Zone, engine: Engine, snapshots: dict[int, Snapshot], found: VerifyReport
) -> bool:
    """Replay what comes after the engine's state; whether it went to the log's end."""
    answered: list[ChainEntry] = []
    audit = SolveAudit(engine.position)
    faults = Faults()
    beat: DueBeat | None = None
    for row in read_log(zone.pk, first=engine.position + 1):
        entry, problem = _replay_row(engine, row, audit, faults)
        if entry is None:
            _report_unnamed(faults, found)
            found.problems.append(f"log position {row.position}: {problem}")
            return False
        found.entries += 1
        beat = _check_moment(row.recorded_at, entry, engine, beat, found)
        if isinstance(entry.event, events.PricesSolved):
            found.solved = entry.position
        if isinstance(entry.event, events.ExpressAnswered):
            compare_answer(entry, found)
        if isinstance(entry.event, events.ExpressAnswered | events.ExpressPlanned):
            compare_moves(entry, found)
        if isinstance(entry.event, events.BundleArrived):
            compare_bundle(entry, found)
        if isinstance(entry.event, events.BidArrived | events.BidPriced):
            answered.append(entry)
            if len(answered) == CHUNK:
                compare_answers(zone, answered, found)
                answered = []
        if entry.position in snapshots:
            compare_snapshot(engine, snapshots.pop(entry.position), found)
        if len(found.problems) >= PROBLEMS_SHOWN:
            return False
    compare_answers(zone, answered, found)
    _report_unnamed(faults, found)
    found.known_faults = faults.list_known()
    found.solved_again, found.taken_as_logged = audit.solved_again, audit.taken_as_logged
    found.beats_missed, found.unwitnessed = audit.beats_missed, audit.unwitnessed
    return True


def _check_moment(
    at: datetime, entry: ChainEntry, engine: Engine, beat: DueBeat | None, found: VerifyReport
) -> DueBeat | None:
    """Hold an entry's moment against the beats; give the latest beat."""
    if beat is not None and beat.is_overdue(at, position=entry.position):
        found.beats_late += 1
    if not isinstance(entry.event, events.SlotAdvanced):
        return beat
    said, rules = event_to_json(entry.event), rules_to_json(engine.rules)
    come = read_beat(said, rules, position=entry.position)
    if come is not None and come.is_early(at):
        found.problems.append(
            f"the beat at {come.position} came before its time: it was recorded at {at.isoformat()}"
        )
    return come


def _report_unnamed(faults: Faults, found: VerifyReport) -> None:
    found.unnamed = faults.find_unnamed()
    if found.unnamed is not None:
        found.problems.append(f"log position {found.unnamed.position}: {found.unnamed.problem}")


def _replay_row(
    engine: Engine, row: books.LogRow, audit: SolveAudit, faults: Faults
) -> tuple[ChainEntry | None, str | None]:
    """What the engine answers to a row's event, or what is wrong with the row.

    The hash covers the event; of the outcome it leaves out what reveals a bid, so that is
    compared as text, of which there is only one for a value.
    """
    if row.position != engine.position + 1:
        return None, f"entry {engine.position + 1} is missing"
    if row.prev_hash != engine.head_hash:
        return None, "it does not build on the entry before it"
    event = event_from_json(parse_json(row.event))
    fault = audit.find_problem(engine, event, position=engine.position)
    if fault is not None:
        at = engine.position, engine.head_hash
        faults.note(Fault(row.position, fault.rule, *at, fault.off_by))
    faults.read(event, position=row.position)
    try:
        again = engine.apply(event, hint=_find_hint(row.outcome))
    except ValueError as error:
        return None, f"it cannot have happened: {error}"
    outcome = serialize_canonical(outcome_to_json(again.outcome))
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
