"""What every test may ask for; the servers come from the ``-p`` plugin of pyproject.toml."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.conf import settings as django_settings
from django.test import TransactionTestCase
from hypothesis import HealthCheck, settings

from marketplace.embedded.house import House, house
from tests.answer_check import UNFIT
from tests.attacks import ATTACKS
from tests.demo_market import open_market
from tests.emptying import delete_all_rows
from tests.market_shell import MarketShell
from tests.migrated_cluster import copy_migrated_cluster
from tests.programs_here import run_programs_apart, run_programs_here
from tests.servers_plugin import RUNS_DIR
from workers.node.join import save_facts
from workers.protocol.node_facts import NodeFacts

ROOT = Path(__file__).parents[1]

# How long an example takes is a matter for benchmarks: on a busy machine it says nothing.
# The same examples every time, so that a change is not refused for what it did not do; new
# ones are looked for by ``make test-nightly``.
settings.register_profile(
    "same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("new", settings.get_profile("same"), derandomize=False)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "same")
settings.load_profile(PROFILE)
#: Of a property's examples, the share that ``make test`` tries; at night all are tried.
EXAMPLES_SHARE = 1.0 if PROFILE == "new" else 0.25
#: Where Hypothesis keeps the settings of a test.
USED_SETTINGS = "_hypothesis_internal_use_settings"


#: As in ``marketplace.config.garbage_collection``, but all is looked through more often: some tests
#: leave large arrays in cycles.
GC_THRESHOLDS = (10_000, 10, 50)


def _compare_answers() -> None:
    """Have every answer of the API compared with its OpenAPI document, see ``answer_check``."""
    for name in ("MIDDLEWARE", "API_MIDDLEWARE"):
        # Last, so that it sees what views answer.
        names = [*getattr(django_settings, name), "tests.answer_check.AnswerCheckMiddleware"]
        setattr(django_settings, name, names)


# Not in a hook: a conftest below that makes the application may be imported before any runs.
_compare_answers()


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: a fifth of the time went into looking for garbage in them.

    Call once all of them are loaded.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()


ATTACKING = {ROOT / path for paths in ATTACKS.values() for path in paths}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what ``make test-attacks`` runs, before ``-m`` chooses."""
    if item.path in ATTACKING:
        item.add_marker(pytest.mark.attacks)


#: Of a test that is longer than ``make test`` allows.
NIGHTLY_TIMEOUT_S = 3600


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Browser tests come last: Playwright leaves an event loop running, and Django refuses to query
    the database from a thread that has one. What runs at night may take an hour.
    """
    for item in items:
        _try_fewer_examples(item)
        if item.get_closest_marker("nightly") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(NIGHTLY_TIMEOUT_S))
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)


def count_examples(most: int) -> int:
    """How many of a property's examples are tried; a property within a test asks for itself."""
    return max(1, round(EXAMPLES_SHARE * most))


def _try_fewer_examples(item: pytest.Item) -> None:
    """Have a property try its share of the examples that its own settings ask for, once."""
    test = getattr(item, "function", None)
    asked = getattr(test, USED_SETTINGS, None)
    if asked is None or EXAMPLES_SHARE == 1.0 or hasattr(test, "tries_share"):
        return
    setattr(test, USED_SETTINGS, settings(asked, max_examples=count_examples(asked.max_examples)))
    test.tries_share = True  # type: ignore[union-attr]


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """The test database; every other session on it ends before it is dropped."""
    yield
    from django.db import connection

    from marketplace.auction.bidding.wait import listener

    listener.close()
    # Threads that served requests keep their connections, and PostgreSQL drops no database in use.
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


@pytest.fixture(scope="session", autouse=True)
def quick_flush() -> Iterator[None]:
    """After a test that committed, rows are deleted instead of tables truncated."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", lambda _: delete_all_rows())
        yield


@pytest.fixture(scope="session", autouse=True)
def programs_run_here() -> Iterator[None]:
    """What reads a file of others does so in this process."""
    with pytest.MonkeyPatch.context() as patch:
        run_programs_here(patch)
        yield


@pytest.fixture(autouse=True)
def answers_are_as_described() -> Iterator[None]:
    yield
    unfit, UNFIT[:] = list(UNFIT), []
    assert unfit == []


@pytest.fixture
def programs_run_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads a file of others does so in a process of its own, as in a market."""
    run_programs_apart(monkeypatch)


@dataclass(frozen=True, slots=True)
class Market:
    """A whole running house with one CPU node, and how to sign in to it."""

    house: House
    shell: MarketShell
    api_key: str
    password: str
    zone: str
    owner_email: str
    provider_email: str
    operator_email: str

    @property
    def url(self) -> str:
        return self.house.url

    @property
    def install_dir(self) -> Path:
        """What the market serves to machines that install the node."""
        return self.house.data_dir / "install"

    def api(self) -> httpx.Client:
        """The job owner's program, with its key."""
        authorization = {"Authorization": f"Bearer {self.api_key}"}
        return httpx.Client(base_url=self.url, headers=authorization, timeout=60)


@pytest.fixture(scope="session")
def known_facts() -> NodeFacts | None:
    """What is known of this machine before its node joins; ``None`` has it run the self-test."""
    return None


@pytest.fixture(scope="session")
def market(known_facts: NodeFacts | None) -> Iterator[Market]:
    """The real thing: every process of the house, servers of its own, one node online.

    Shared by all tests of the session; a test that kills a process leaves the
    house whole again before it ends.
    """
    data_dir = RUNS_DIR / f"house-{os.getpid()}"
    copy_migrated_cluster(data_dir)
    try:
        with house(
            data_dir=data_dir,
            durable=False,
            own_servers=True,
            extra_environment={"NODE_INSTALL_DIR": str(data_dir / "install")},
        ) as running:
            if known_facts is not None:
                save_facts(data_dir / "measured.json", known_facts)
            seeded = open_market(running, say=lambda _: None)
            yield Market(
                house=running,
                shell=MarketShell(running),
                api_key=seeded["api_key"],
                password=seeded["password"],
                zone=seeded["zone"],
                owner_email=seeded["people"]["owner"],
                provider_email=seeded["people"]["provider"],
                operator_email=seeded["people"]["operator"],
            )
    finally:
        if not os.environ.get("KEEP_LOGS"):
            shutil.rmtree(data_dir, ignore_errors=True)
