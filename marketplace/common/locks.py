"""Postgres advisory locks: one writer for a thing that is not a row."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction


@contextmanager
def advisory_lock(namespace: str, key: str, *, wait: bool) -> Iterator[bool]:
    """Opens a transaction and holds the lock until the outermost one ends.

    Yields whether the lock was got: always true with ``wait``; without it, false when
    someone else holds it.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        yield _acquire(cursor, "xact_", lock_number(namespace, key), wait)


@contextmanager
def advisory_session_lock(namespace: str, key: str, *, wait: bool) -> Iterator[bool]:
    """Holds the lock on the connection, over many transactions, until the block ends.

    For a process that is the only one of its kind. Call outside any transaction: the lock
    must not be given back before the work it guards is committed.
    """
    number = lock_number(namespace, key)
    with connection.cursor() as cursor:
        held = _acquire(cursor, "", number, wait)
    try:
        yield held
    finally:
        # A connection that was lost has given its locks back already.
        if held and connection.connection is not None and not connection.connection.closed:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [number])


def lock_until_commit(namespace: str, key: str) -> None:
    """Wait for the lock and hold it until the transaction under way ends."""
    with connection.cursor() as cursor:
        _acquire(cursor, "xact_", lock_number(namespace, key), wait=True)


def lock_number(namespace: str, key: str) -> int:
    """The signed 64-bit number Postgres knows the lock by."""
    digest = hashlib.blake2b(f"{namespace}\0{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _acquire(cursor, variant: str, number: int, wait: bool) -> bool:
    if wait:
        cursor.execute(f"SELECT pg_advisory_{variant}lock(%s)", [number])
        return True
    cursor.execute(f"SELECT pg_try_advisory_{variant}lock(%s)", [number])
    return cursor.fetchone()[0]
