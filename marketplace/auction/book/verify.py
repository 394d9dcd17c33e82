"""Replaying a zone's whole log from the database and comparing everything with it.

The replay starts from the zone's rules and trusts nothing else: every stored
outcome and hash is worked out again, solved prices with them, and so is every row that
follows from them: bids, payments, charges, jobs, reservations and snapshots.
"""

from __future__ import annotations

import json
import re

from django.db import connection, transaction

from marketplace.auction.book import engine_cache as books
from marketplace.auction.book.row_checks import (
    compare_answer,
    compare_bundle,
    compare_decisions,
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
from marketplace.auction.models import LogEntry, MarketHead, Snapshot
from marketplace.common.db.limits import allow_long_transaction
from marketplace.fleet.models import Zone
from scheduler.auction import ChainEntry, DeadlineHint, Engine
from scheduler.auction.audit.faults import Fault, Faults
from scheduler.auction.audit.solve_again import SolveAudit
from scheduler.auction.log import events
from scheduler.auction.log.canonical_json import parse_json, serialize_canonical
from scheduler.auction.log.codec import event_from_json, outcome_to_json

#: Bids compared with their entries at a time.
CHUNK = 1000
#: A refusal's hint as its one text has it; other outcomes have none to look for.
_HINT = re.compile(
    r'^\{"admitted":false,.*"winning_deadline_slot":(?P<slot>null|-?[0-9]{1,16}),[^,]*$'
)


def verify_zone(zone: Zone) -> VerifyReport:
    """Replay the zone's log and compare every decision, price, hash and row that follows.

    Sees the database at one moment, however long it takes: the market goes on.
    """
    alone = not connection.in_atomic_block
    with transaction.atomic():
        if alone:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            # Between two fetches prices may be solved again, or the auction is compiled first.
            allow_long_transaction()
        return _verify(zone)


def _verify(zone: Zone) -> VerifyReport:
    found = VerifyReport(zone=zone.name)
    first = books.find_first_snapshot(zone_id=zone.pk)
    head = MarketHead.objects.filter(zone=zone).first()
    if first is None or head is None:
        found.problems += find_rows_without_log(zone)
        return found
    engine = Engine(books.restore_engine(first).rules)
    snapshots = {snapshot.position: snapshot for snapshot in Snapshot.objects.filter(zone=zone)}
    compare_snapshot(engine, snapshots.pop(0), found)
    decided: list[ChainEntry] = []
    solved: int | None = None
    audit = SolveAudit(engine.position)
    faults = Faults()
    for row in books.read_log_rows(LogEntry.objects.filter(zone=zone)):
        entry, problem = _replay_row(engine, row, audit, faults)
        if entry is None:
            _report_unnamed(faults, found)
            found.problems.append(f"log position {row.position}: {problem}")
            return found
        found.entries += 1
        if isinstance(entry.event, events.PricesSolved):
            solved = entry.position
        if isinstance(entry.event, events.ExpressAnswered):
            compare_answer(entry, found)
        if isinstance(entry.event, events.ExpressAnswered | events.ExpressPlanned):
            compare_moves(entry, found)
        if isinstance(entry.event, events.BundleArrived):
            compare_bundle(entry, found)
        if isinstance(entry.event, events.BidArrived):
            decided.append(entry)
            if len(decided) == CHUNK:
                compare_decisions(zone, decided, found)
                decided = []
        if entry.position in snapshots:
            compare_snapshot(engine, snapshots.pop(entry.position), found)
        if len(found.problems) >= PROBLEMS_SHOWN:
            return found
    compare_decisions(zone, decided, found)
    _report_unnamed(faults, found)
    found.known_faults = faults.list_known()
    found.head_hash = engine.head_hash
    found.solved_again, found.taken_as_logged = audit.solved_again, audit.taken_as_logged
    found.beats_missed, found.unwitnessed = audit.beats_missed, audit.unwitnessed
    if (head.position, head.head_hash) != (engine.position, engine.head_hash):
        found.problems.append(
            f"the head says position {head.position} and {head.head_hash}, "
            f"the log ends at {engine.position} with {engine.head_hash}"
        )
    found.problems += [f"the snapshot at {at} has no entry" for at in sorted(snapshots)]
    found.problems += compare_signed_heads(zone)
    found.problems += find_strays(zone, found)
    found.problems += compare_reservations(zone, engine)
    found.problems += compare_job_plans(zone, engine, found)
    found.problems += compare_pricing(zone, engine, solved)
    return found


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
    audit.note_outcome(event, again.outcome, entry_hash=row.hash)
    return again, None


def _find_hint(outcome: str) -> DeadlineHint | None:
    """Give what a row's text says of a later deadline, where to look for it and no more."""
    found = _HINT.search(outcome)
    if found is None:
        return None
    slot = found["slot"]
    return DeadlineHint(None if slot == "null" else int(slot))
