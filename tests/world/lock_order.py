"""The order in which rows are locked, seen at the statements; ``docs/how-to/locks.md`` states it.

A deadlock needs two transactions at unlucky moments; a lock out of its order shows in one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from django.db import connection
from psycopg.pq import TransactionStatus

from marketplace.common.locks import lock_number
from marketplace.payments.card_limits import CARD_REFUNDS

#: Tables whose rows several kinds of acts lock together, in their order.
ORDER = (
    "jobs_errand",
    "auction_markethead",
    "jobs_job",
    "auction_bid",
    "vendors_preparation",
    "payments_cardpayment",
    "payments_ledgeraccount",
    "payments_hold",
)

_LOCKED = re.compile(
    r"\bFOR (?:NO KEY )?UPDATE\b(?: OF (?P<of>[\w\", ]+?))?"
    r"(?P<free> SKIP LOCKED| NOWAIT)?(?=[\s);]|$)"
)
_FROM = re.compile(r'\bFROM\s+"?(?P<table>\w+)"?', re.IGNORECASE)
_UPDATED = re.compile(r'^\s*UPDATE\s+"?(?P<table>\w+)"?', re.IGNORECASE)
_ID = re.compile(r"\b[a-z]+[_-][0-9a-z]{20,}\b")
_NUMBER = re.compile(r"-?\b\d+\b")
_CARD_REFUNDS = lock_number(*CARD_REFUNDS)


class LockOutOfOrder(AssertionError):
    """A row is waited for that has to be locked before another that is held."""


@dataclass
class _Held:
    """What a transaction has locked so far."""

    tables: set[str] = field(default_factory=set)
    jobs: set[str] = field(default_factory=set)
    bids: set[str] = field(default_factory=set)
    #: Organisations of which it has read what the market may still bear.
    exposures: set[str] = field(default_factory=set)
    #: Nobody else sends money back to a card.
    sends_back: bool = False


@dataclass
class LockOrder:
    #: The bid of each job. The lane has many jobs, each before its own bid.
    bids_of_jobs: dict[str, str] = field(default_factory=dict)
    #: Organisations by the number of the lock of what is borne for them.
    exposures: dict[int, str] = field(default_factory=dict)
    _held: WeakKeyDictionary[psycopg.Connection[Any], _Held] = field(
        default_factory=WeakKeyDictionary
    )

    def note(self, conn: psycopg.Connection[Any], query: object, values: object) -> None:
        """Take note of a statement that is about to be sent.

        Raises
        ------
        LockOutOfOrder
        """
        text = query if isinstance(query, str) else str(query)
        if conn.info.transaction_status == TransactionStatus.IDLE:
            self._held[conn] = _Held()
        held = self._held.setdefault(conn, _Held())
        if "pg_advisory_xact_lock" in text:
            self._note_advisory(values, held)
        for table, waits in _find_locks(text):
            ids = set(_ID.findall(f"{text} {values!r}"))
            if waits:
                self._check(table, ids, held, text)
            held.tables.add(table)
            if table == "auction_bid":
                held.bids |= ids
            if table == "jobs_job":
                held.jobs |= ids

    def _note_advisory(self, values: object, held: _Held) -> None:
        for number in map(int, _NUMBER.findall(repr(values))):
            held.sends_back |= number == _CARD_REFUNDS
            organisation = self.exposures.get(number)
            if organisation is None or organisation in held.exposures:
                continue
            if held.sends_back:
                raise LockOutOfOrder(f"what is borne for {organisation} is locked after refunds")
            if organisation < max(held.exposures, default=""):
                raise LockOutOfOrder(f"what is borne for {organisation} is locked after others'")
            held.exposures.add(organisation)

    def _check(self, table: str, ids: set[str], held: _Held, text: str) -> None:
        if table == "jobs_slice" and " IN (" in text and "jobs_job" not in held.tables:
            # One alone may be written; several are waited for with others in hand.
            raise LockOutOfOrder(f"slices are locked without their jobs: {text[:200]}")
        if held.sends_back and table in ORDER and table not in held.tables:
            raise LockOutOfOrder(f"{table} is locked after refunds to cards: {text[:200]}")
        # A hold is not locked without its accounts.
        is_last = table == "payments_hold" or table in held.tables
        if held.exposures and table in ORDER and not is_last:
            raise LockOutOfOrder(f"{table} is locked after what is borne: {text[:200]}")
        if table not in ORDER or table in held.tables - {"jobs_job"}:
            return
        later = held.tables & set(ORDER[ORDER.index(table) + 1 :])
        if table == "jobs_job":
            later -= {"auction_bid"}
            early = [job for job in ids - held.jobs if self.bids_of_jobs.get(job) in held.bids]
            if early:
                raise LockOutOfOrder(f"{early} are locked after their bids: {text[:200]}")
        if later and table not in held.tables:
            raise LockOutOfOrder(f"{table} is locked after {', '.join(later)}: {text[:200]}")


@contextmanager
def watch_locks(order: LockOrder) -> Iterator[None]:
    """Note each statement of the block on this thread's connection.

    Raises
    ------
    LockOutOfOrder
    """

    def watch(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        order.note(connection.connection, sql, params)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(watch):
        yield


def _find_locks(text: str) -> list[tuple[str, bool]]:
    """Tables whose rows a statement locks, and whether it waits for them."""
    updated = _UPDATED.match(text)
    if updated:
        return [(updated["table"], True)]
    found = []
    for lock in _LOCKED.finditer(text):
        source = _FROM.search(text)
        named = lock["of"] or (source["table"] if source else "")
        tables = [name.strip().strip('"') for name in named.split(",")]
        found += [(name, lock["free"] is None) for name in tables if name]
    return found
