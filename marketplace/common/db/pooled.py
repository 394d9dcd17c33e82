"""Connections that the web server's threads share, and what follows when their server restarts."""

from __future__ import annotations

from typing import Any

import psycopg

#: Seconds that a request waits for a connection.
WAIT_S = 10


class PooledConnection(psycopg.Connection[Any]):
    """A connection of a pool; where one was closed by the server, so were all.

    The pool looks at one idle connection after the other before it hands one out, with a backoff
    that doubles. After a restart of the server some dead ones took a request's whole time.
    """

    def execute(self, *args: Any, **options: Any) -> psycopg.Cursor[Any]:
        """Run the pool's own look at a connection; Django runs its statements by cursors."""
        try:
            return super().execute(*args, **options)
        except psycopg.OperationalError:
            pool = getattr(self, "_pool", None)
            if pool is not None and self.closed:
                pool.drain()
            raise


#: As ``psycopg_pool`` takes them; the most connections are a setting.
POOL_OPTIONS: dict[str, Any] = {
    "min_size": 0,
    "timeout": WAIT_S,
    "connection_class": PooledConnection,
}
