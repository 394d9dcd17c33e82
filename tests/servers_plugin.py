"""Pytest plugin: a PostgreSQL and a Redis of the run's own, ready before Django loads.

Named with ``-p`` in pyproject.toml, since settings are read before any conftest.
With ``DATABASE_URL`` and ``REDIS_URL`` set, those servers are used instead.
"""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

from marketplace.config.leftovers import remove_leftovers
from marketplace.embedded.servers import (
    prepare_postgres,
    prepare_redis,
    wait_for_postgres,
    wait_for_redis,
)
from marketplace.embedded.stack import Stack
from tests.migrated_cluster import copy_migrated_cluster

ROOT = Path(__file__).parents[1]
RUNS_DIR = ROOT / ".data" / "tests"

_stacks: list[Stack] = []

# Loading leaves no garbage that is worth the time; ``tests/conftest.py`` enables it again.
gc.disable()


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests() -> Generator[None, object, object]:
    # A wrapper: pytest-django's own hook of this name reads the settings.
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None:
        _use_redis_database(worker)
    elif not (os.environ.get("DATABASE_URL") and os.environ.get("REDIS_URL")):
        start_servers()
    return (yield)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    while _stacks:
        stack = _stacks.pop()
        stack.close()
        shutil.rmtree(stack.data_dir, ignore_errors=True)


def start_servers() -> None:
    """Start both, and name them in this process's environment."""
    # Servers of runs that were killed died with them.
    remove_leftovers(RUNS_DIR, "*-*")
    data_dir = RUNS_DIR / f"run-{os.getpid()}"
    copy_migrated_cluster(data_dir)
    postgres = prepare_postgres(data_dir=data_dir, durable=False)
    redis = prepare_redis(data_dir=data_dir)
    stack = Stack(data_dir=data_dir, programs=[postgres.program, redis.program])
    _stacks.append(stack)
    stack.__enter__()
    stack.start("postgres", "redis")
    wait_for_postgres(postgres)
    wait_for_redis(redis)
    if os.environ.setdefault("DATABASE_URL", postgres.owner_url) == postgres.owner_url:
        os.environ["TEST_DATABASE_TEMPLATE"] = "finetender"
    os.environ.setdefault("REDIS_URL", redis.url)


def _use_redis_database(worker: str) -> None:
    """Each xdist worker flushes a Redis database of its own."""
    base = os.environ["REDIS_URL"].rsplit("/", 1)[0]
    os.environ["REDIS_URL"] = f"{base}/{1 + int(worker.removeprefix('gw')) % 15}"
