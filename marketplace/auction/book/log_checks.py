"""Where the last check of a zone's log ended: the next one begins there, and costs what came since.

A check that found all to agree leaves the state that its replay came to, signed by the market's
key. Who can write to the database and has no key can neither move it nor change what is in it: the
next check then begins at the log's first entry again. Entries and rows from before it are not read
again; ``auction_verify`` reads them unless it is told ``--since-last``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from marketplace.auction.book.verify_report import VerifyReport
from marketplace.auction.models import LogCheck
from marketplace.auction.witnesses.keys import SigningKey
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Job
from scheduler.public_log.canonical_json import serialize_canonical
from scheduler.public_log.heads import is_signed
from scheduler.types import Cell

#: Part of the signed text, so that no signature made for something else is one of a check.
FORMAT = "finetender-log-check-1"


@dataclass(frozen=True, slots=True)
class VerifiedState:
    """What a check of a log goes on from."""

    #: The engine's, at the entry that was verified last.
    state: Mapping[str, Any]
    #: Jobs of the express lane with the cells that they sit in.
    express: Mapping[str, tuple[tuple[str, Cell], ...]]
    #: Position of the last solve.
    solved: int | None
    #: Entries that are wrong and that the log names so, each as a sentence.
    known_faults: tuple[str, ...]


def find_verified_state(*, zone: Zone, key: SigningKey) -> VerifiedState | None:
    """What the last check came to; ``None`` where there is none that this very key signed.

    A key in the database proves nothing: who wrote the state could have written the key.
    """
    row = LogCheck.objects.filter(zone=zone).first()
    if row is None or row.public_key != key.public_key:
        return None
    if not is_signed(_build_text(row), key=row.public_key, signature=row.signature):
        return None
    carried = json.loads(row.carried)
    return VerifiedState(
        state=json.loads(row.state),
        express={
            bid_id: tuple((task_id, Cell(slot, node)) for task_id, slot, node in seats)
            for bid_id, seats in carried["express"].items()
        },
        solved=carried["solved"],
        known_faults=tuple(carried["known_faults"]),
    )


def store_verified_state(
    *, zone: Zone, found: VerifyReport, key: SigningKey, now: datetime
) -> LogCheck:
    """Leave what a check came to, in which all agrees, for the next one."""
    assert found.state is not None
    first_slot = found.state["first_slot"]
    active = Job.objects.filter(zone=zone, status__in=Job.ACTIVE, bid_id__in=found.express)
    waiting = set(active.values_list("bid_id", flat=True))
    row = LogCheck(
        zone=zone,
        position=found.begins_at + found.entries,
        head_hash=found.head_hash,
        state=json.dumps(found.state),
        carried=json.dumps(
            {
                # Others are moved no more.
                "express": {
                    bid_id: [[task_id, cell.slot, cell.node] for task_id, cell in seats]
                    for bid_id, seats in found.express.items()
                    if bid_id in waiting or any(cell.slot >= first_slot for _, cell in seats)
                },
                "solved": found.solved,
                "known_faults": found.faults,
            }
        ),
        checked_at=now,
        public_key=key.public_key,
    )
    row.signature = key.sign(_build_text(row)).hex()
    columns = [field.name for field in LogCheck._meta.concrete_fields if not field.primary_key]
    LogCheck.objects.bulk_create(
        [row], update_conflicts=True, unique_fields=["zone"], update_fields=columns
    )
    return row


def _build_text(row: LogCheck) -> bytes:
    """What the signature covers."""
    value = {
        "format": FORMAT,
        "zone": row.zone_id,
        "position": row.position,
        "head_hash": row.head_hash,
        "state": hashlib.sha256(row.state.encode()).hexdigest(),
        "carried": hashlib.sha256(row.carried.encode()).hexdigest(),
        "checked_at": row.checked_at.isoformat(),
        "public_key": row.public_key,
    }
    return serialize_canonical(value).encode()
