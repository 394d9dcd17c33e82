"""What goes wrong in the world, at a statement that the generator chooses."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import psycopg
import pytest
import redis
import redis.asyncio.connection as async_redis
import redis.connection as sync_redis
from django.core.files.base import ContentFile, File
from django.core.files.storage import FileSystemStorage
from django.db import close_old_connections, connection

from marketplace.auction.book import engine_cache
from tests.world.lock_order import LockOrder


class ProcessDied(BaseException):
    """The process is gone: nothing of it runs any more, so no handler of errors catches this."""


class Fault(StrEnum):
    #: Before the statement, or the commit, reaches the database.
    DIE_BEFORE = "a process dies before a statement"
    #: The statement, or the commit, was carried out; its answer came to nobody.
    DIE_AFTER = "a process dies after a statement"
    #: The process lives on without its connection.
    CONNECTION_BREAKS = "the connection to the database breaks"
    REDIS_VANISHES = "Redis does not answer"
    #: Another process does a whole task between two statements of this one.
    ANOTHER_ACTS = "another process acts between two statements"
    #: A file is not opened, or half of it is written; whoever writes one next meets it.
    DISK_FULL = "the disk is full"
    #: The server refuses a statement, or the commit.
    DATABASE_FULL = "the database's disk is full"


#: What strikes where the bugs are put back: their seeds know no more.
FEWER_FAULTS = tuple(fault for fault in Fault if not fault.name.endswith("_FULL"))
#: As PostgreSQL says that it cannot extend a file.
_REFUSE = "DO $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$"


@dataclass
class Trouble:
    """The fault of the present step, if any: it strikes at the statement counted down to."""

    fault: Fault | None = None
    statements_left: int = 0
    #: The disk is full when so many more files were begun, at whatever step; 0: it has room.
    files_left: int = 0
    #: How often each fault struck.
    struck: dict[Fault, int] = field(default_factory=dict)
    #: What another process does between two statements.
    act: Callable[[], None] = lambda: None
    lock_order: LockOrder = field(default_factory=LockOrder)

    def strike(self, fault: Fault) -> None:
        self.fault = None
        self.struck[fault] = self.struck.get(fault, 0) + 1

    def pass_statement(self, conn: psycopg.Connection[Any], run: Callable[[], Any]) -> Any:
        fault = self.fault
        if fault is None or fault == Fault.REDIS_VANISHES:
            return run()
        self.statements_left -= 1
        if self.statements_left > 0:
            return run()
        self.strike(fault)
        if fault == Fault.ANOTHER_ACTS:
            self.act()
            return run()
        if fault == Fault.CONNECTION_BREAKS:
            conn.close()
            raise psycopg.OperationalError("the connection to the server was lost")
        if fault == Fault.DATABASE_FULL:
            # In a pipeline the error comes at its end.
            conn.execute(_REFUSE)
            return run()
        if fault == Fault.DIE_AFTER:
            run()
        raise ProcessDied

    def begin_file(self) -> bool:
        """Whether there is room for another file."""
        if self.files_left == 0:
            return True
        self.files_left -= 1
        if self.files_left > 0:
            return True
        self.struck[Fault.DISK_FULL] = self.struck.get(Fault.DISK_FULL, 0) + 1
        return False


@contextmanager
def meet_trouble() -> Iterator[Trouble]:
    """Let every statement, every commit and every message to Redis pass by the trouble."""
    trouble = Trouble()
    execute, many, commit = (
        psycopg.Cursor.execute,
        psycopg.Cursor.executemany,
        psycopg.Connection.commit,
    )

    def run_execute(cursor: psycopg.Cursor[Any], query: Any, *args: Any, **options: Any) -> Any:
        trouble.lock_order.note(cursor.connection, query, args)
        return trouble.pass_statement(
            cursor.connection, lambda: execute(cursor, query, *args, **options)
        )

    def run_many(cursor: psycopg.Cursor[Any], query: Any, *args: Any, **options: Any) -> Any:
        trouble.lock_order.note(cursor.connection, query, ())
        return trouble.pass_statement(
            cursor.connection, lambda: many(cursor, query, *args, **options)
        )

    def run_commit(conn: psycopg.Connection[Any]) -> None:
        trouble.pass_statement(conn, lambda: commit(conn))

    def refuse_if_gone() -> None:
        if trouble.fault == Fault.REDIS_VANISHES:
            trouble.struck[Fault.REDIS_VANISHES] = trouble.struck.get(Fault.REDIS_VANISHES, 0) + 1
            raise redis.ConnectionError("Redis is not there")

    save_file, open_temporary = FileSystemStorage._save, tempfile.TemporaryFile
    send, send_async = (
        sync_redis.AbstractConnection.send_packed_command,
        async_redis.AbstractConnection.send_packed_command,
    )

    def run_send(conn: Any, *args: Any, **options: Any) -> Any:
        refuse_if_gone()
        return send(conn, *args, **options)

    def save(storage: FileSystemStorage, name: str, content: File[bytes]) -> str:
        if trouble.begin_file():
            return save_file(storage, name, content)
        content.seek(0)
        save_file(storage, name, ContentFile(content.read()[: content.size // 2]))
        raise OSError(errno.ENOSPC, "No space left on device")

    def open_spool(*args: Any, **options: Any) -> Any:
        if trouble.begin_file():
            return open_temporary(*args, **options)
        raise OSError(errno.ENOSPC, "No space left on device")

    async def run_send_async(conn: Any, *args: Any, **options: Any) -> Any:
        refuse_if_gone()
        return await send_async(conn, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg.Cursor, "execute", run_execute)
        patch.setattr(psycopg.Cursor, "executemany", run_many)
        patch.setattr(psycopg.Connection, "commit", run_commit)
        patch.setattr(FileSystemStorage, "_save", save)
        patch.setattr(tempfile, "TemporaryFile", open_spool)
        patch.setattr(sync_redis.AbstractConnection, "send_packed_command", run_send)
        patch.setattr(async_redis.AbstractConnection, "send_packed_command", run_send_async)
        yield trouble


def bury_process() -> None:
    """Drop what a dead process had in memory; the next one begins without it."""
    connection.close()
    connection.run_on_commit = []
    connection.needs_rollback = False
    engine_cache._lane_books.clear()
    engine_cache._read_books.clear()


def leave_task() -> None:
    """Close a connection that broke, as Celery and Django do between two tasks."""
    close_old_connections()
