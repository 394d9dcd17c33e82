"""Servers for a command from outside: those of the market on this machine, running or not."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from marketplace.embedded.house import ENVIRONMENT, ROOT, start_servers
from marketplace.embedded.servers import prepare_postgres, prepare_redis
from marketplace.embedded.stack import Stack, StackInUse, hold_directory

#: Where ``make demo`` and ``make run`` keep everything.
DATA_DIR = ROOT / ".data" / "demo"
#: Commands that ask no database for anything.
WITHOUT_SERVERS = frozenset(
    {"", "help", "version", "collectstatic", "makemigrations", "findstatic"}
)


@contextmanager
def find_servers(arguments: Sequence[str]) -> Iterator[None]:
    """Let a command find the embedded servers where the environment names none.

    A market that runs is asked as it is. Otherwise its servers are started for as long as the
    command takes. Where there never was an embedded market, nothing happens.
    """
    command = next((word for word in arguments if not word.startswith("-")), "")
    data_dir = Path(os.environ.get("DATA_DIR") or DATA_DIR)
    named = os.environ.get("DATABASE_URL") or os.environ.get("REDIS_URL")
    known = {} if named or command in WITHOUT_SERVERS else _known_environment(data_dir)
    if not known.keys() >= {"DATABASE_URL", "REDIS_URL"}:
        yield
        return
    with ExitStack() as running:
        try:
            running.enter_context(hold_directory(data_dir))
        except StackInUse:
            pass
        else:
            known |= running.enter_context(_servers_alone(data_dir))
        for name, value in known.items():
            os.environ.setdefault(name, value)
        yield


def _known_environment(data_dir: Path) -> dict[str, str]:
    path = data_dir / ENVIRONMENT
    return json.loads(path.read_text()) if path.exists() else {}


@contextmanager
def _servers_alone(data_dir: Path) -> Iterator[dict[str, str]]:
    """PostgreSQL and Redis without the market; their addresses."""
    postgres = prepare_postgres(data_dir=data_dir, durable=True)
    redis = prepare_redis(data_dir=data_dir)
    with Stack(data_dir=data_dir, programs=[postgres.program, redis.program]) as stack:
        start_servers(stack, postgres, redis)
        yield {
            "DATABASE_URL": postgres.url,
            "DATABASE_OWNER_URL": postgres.owner_url,
            "REDIS_URL": redis.url,
        }
