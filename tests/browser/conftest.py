"""Browser tests drive Debian's Chromium against a whole running house."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.visitor import CONTEXT, LAUNCH, Visitor
from tests.conftest import Market


@pytest.fixture(scope="session")
def base_url() -> None:
    """Visitors know where the house is; the plugin's own fixture warns under this pytest."""


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    return browser_type_launch_args | LAUNCH


@pytest.fixture(scope="session")
def browser_context_args(browser_context_args: dict[str, Any]) -> dict[str, Any]:
    return browser_context_args | CONTEXT


@pytest.fixture
def visitor(page: Page, market: Market) -> Iterator[Visitor]:
    """Somebody who has not signed in; the browser must have had nothing to complain of."""
    person = Visitor(page, market.url)
    yield person
    assert person.complaints == []


@pytest.fixture(scope="session")
def owner_context(browser: Browser, market: Market) -> dict[str, Any]:
    """A browser's settings and the cookies of the job owner, who has signed in once."""
    context = browser.new_context(**CONTEXT)
    Visitor(context.new_page(), market.url).sign_in(market.owner_email, market.password)
    cookies = context.storage_state()
    context.close()
    return CONTEXT | {"storage_state": cookies}


@pytest.fixture
def owner(visitor: Visitor, owner_context: dict[str, Any]) -> Visitor:
    visitor.page.context.add_cookies(owner_context["storage_state"]["cookies"])
    return visitor


@pytest.fixture(scope="session")
def support_tone() -> bytes:
    """The demo's data set, cut to what trains in well under a minute."""
    path = Path(__file__).parents[2] / "workers" / "models" / "datasets" / "support_tone.jsonl"
    return b"".join(path.read_bytes().splitlines(keepends=True)[:120])
