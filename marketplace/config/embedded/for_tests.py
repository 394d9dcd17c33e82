"""Pytest plugin: a PostgreSQL and a Redis of the run's own, ready before Django loads.

Named with ``-p`` in pyproject.toml, since settings are read before any conftest.
With ``DATABASE_URL`` and ``REDIS_URL`` set, those servers are used instead.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

from marketplace.config.embedded.left_behind import left_behind_remove
from marketplace.config.embedded.services import (
    postgres_prepare,
    postgres_wait,
    redis_prepare,
    redis_wait,
)
from marketplace.config.embedded.stack import Stack

ROOT = Path(__file__).parents[3]
RUNS_DIR = ROOT / ".data" / "tests"

_stacks: list[Stack] = []


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests() -> Generator[None, object, object]:
    # A wrapper: pytest-django's own hook of this name reads the settings.
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None:
        _redis_database_of(worker)
    elif not (os.environ.get("DATABASE_URL") and os.environ.get("REDIS_URL")):
        _servers_start()
    return (yield)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    while _stacks:
        stack = _stacks.pop()
        stack.close()
        shutil.rmtree(stack.data_dir, ignore_errors=True)


def _servers_start() -> None:
    # Servers of runs that were killed died with them.
    left_behind_remove(RUNS_DIR, "*-*")
    data_dir = RUNS_DIR / f"run-{os.getpid()}"
    data_dir.mkdir(parents=True)
    postgres = postgres_prepare(data_dir=data_dir, durable=False)
    redis = redis_prepare(data_dir=data_dir)
    stack = Stack(data_dir=data_dir, programs=[postgres.program, redis.program])
    _stacks.append(stack)
    stack.__enter__()
    stack.start("postgres", "redis")
    postgres_wait(postgres)
    redis_wait(redis)
    os.environ.setdefault("DATABASE_URL", postgres.url)
    os.environ.setdefault("REDIS_URL", redis.url)


def _redis_database_of(worker: str) -> None:
    """Each xdist worker flushes a Redis database of its own."""
    base = os.environ["REDIS_URL"].rsplit("/", 1)[0]
    os.environ["REDIS_URL"] = f"{base}/{1 + int(worker.removeprefix('gw')) % 15}"
