"""Every page, held against WCAG 2.2 AA by axe, in the light and in the dark."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from marketplace.embedded.demo.api_client import upload_dataset
from tests.browser.visitor import CONTEXT, Visitor
from tests.conftest import Market

pytestmark = pytest.mark.browser

AXE = Path(__file__).parents[2] / "frontend" / "web" / "node_modules" / "axe-core" / "axe.min.js"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]

#: What depends on whether the page is light or dark.
COLOUR_RULES = ["color-contrast", "link-in-text-block"]

PAGES = {
    "nobody": ("/", "/quote", "/verify", "/accounts/login/", "/accounts/signup/"),
    "owner": (
        "/",
        "/jobs",
        "/bids/new",
        "/wallet",
        "/wallet?view=double",
        "/datasets",
        "/settings/api-keys",
        "/train",
        "/adapters",
        "/notices",
        "/notices/settings",
        "/find?q=tone",
    ),
    "provider": ("/nodes", "/nodes/new", "/provide", "/provide/earnings?by=node"),
    "operator": ("/operator", "/operator/machines", "/operator/jobs?show=all", "/operator/zones"),
}
CASES = [(who, path) for who, paths in PAGES.items() for path in paths]
#: Of things that somebody sold or bought; the names are keys of ``sold``.
SOLD = (
    "/bids/new?dataset={dataset}",
    "/datasets/{dataset}",
    "/bids/{refused}",
    "/bids/{admitted}",
    "/jobs/{job}",
    "/jobs/{job}/events",
    "/jobs/{job}/logs",
    "/jobs/{job}/checkpoints",
    "/jobs/{job}/data",
    "/jobs/{job}/config",
    "/jobs/{job}/receipt",
    "/jobs/compare?job={job}",
    "/adapters/{job}",
)
WITHIN_S = 300.0
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


def place(market: Market, work: dict[str, Any], price: str) -> dict[str, Any]:
    """Place a bid and wait until it is decided."""
    key = {"Idempotency-Key": secrets.token_hex(16)}
    with market.api() as api:
        answer = api.post("/api/bids", json=work | {"price": price}, headers=key).json()
        bid_id = answer["bid"]["id"] if "bid" in answer else answer["id"]
        ends_at = time.monotonic() + WITHIN_S
        while (bid := api.get(f"/api/bids/{bid_id}").json())["status"] == "pending":
            assert time.monotonic() < ends_at
            time.sleep(0.2)
    return bid


@pytest.fixture(scope="module")
def sold(market: Market, support_tone: bytes) -> dict[str, str]:
    """A bid that was refused, one that won, and its job, done."""
    with market.api() as api:
        dataset = upload_dataset(api, market.zone, content=support_tone)["id"]
    work = {
        "zone": market.zone,
        "dataset_id": dataset,
        "name": "read-aloud",
        "training": {"epochs": 1},
        "deadline": (datetime.now(UTC) + timedelta(minutes=25)).isoformat(),
    }
    refused = place(market, work, "0.000001")
    admitted = place(market, work, "5")
    assert (refused["status"], admitted["status"]) == ("refused", "admitted")
    ends_at = time.monotonic() + WITHIN_S
    with market.api() as api:
        while (job := api.get(f"/api/jobs/{admitted['job_id']}").json())["status"] != "succeeded":
            assert time.monotonic() < ends_at, job
            time.sleep(0.5)
    return {
        "dataset": dataset,
        "refused": refused["id"],
        "admitted": admitted["id"],
        "job": job["id"],
    }


@pytest.fixture(scope="module")
def contexts(browser: Browser, market: Market) -> Iterator[dict[str, BrowserContext]]:
    """One signed-in browser a person, by who they are."""
    opened: dict[str, BrowserContext] = {}
    for who in PAGES:
        context = browser.new_context(**CONTEXT)
        email = getattr(market, f"{who}_email", None)
        if email is not None:
            page = context.new_page()
            Visitor(page, market.url).sign_in(email, market.password)
            page.close()
        opened[who] = context
    yield opened
    for context in opened.values():
        context.close()


def violations(visitor: Visitor, *, rules: Sequence[str] = ()) -> list[str]:
    """What axe finds wrong on the page as it stands: rule, element and why."""
    page = visitor.page
    page.evaluate(AXE.read_text())
    only = {"type": "rule", "values": rules} if rules else {"type": "tag", "values": TAGS}
    # Describing every element that passed takes longer than finding the others.
    options = {"runOnly": only, "resultTypes": ["violations"]}
    found: dict[str, Any] = page.evaluate("options => axe.run(document, options)", options)
    assert len(found["passes"]) > (0 if rules else 10)
    return [
        f"{rule['id']}: {' '.join(map(str, node['target']))}: {node['failureSummary']}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]


def found_on(context: BrowserContext, market: Market, path: str) -> list[str]:
    visitor = Visitor(context.new_page(), market.url)
    visitor.go(path)
    expect(visitor.page.locator("h1")).to_be_visible()
    light = visitor.page.evaluate(BACKGROUND)
    found = violations(visitor)
    visitor.page.emulate_media(color_scheme="dark")
    assert visitor.page.evaluate(BACKGROUND) != light
    found += violations(visitor, rules=COLOUR_RULES)
    visitor.page.close()
    return found


@pytest.mark.parametrize(("who", "path"), CASES)
def test_a_page_can_be_read_and_used_by_everybody(
    contexts: dict[str, BrowserContext], market: Market, who: str, path: str
) -> None:
    assert found_on(contexts[who], market, path) == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", SOLD)
def test_a_page_of_a_sale_can_be_read_and_used_by_everybody(
    contexts: dict[str, BrowserContext], market: Market, sold: dict[str, str], path: str
) -> None:
    assert found_on(contexts["owner"], market, path.format(**sold)) == []


def test_the_audit_finds_grey_on_grey(contexts: dict[str, BrowserContext], market: Market) -> None:
    visitor = Visitor(contexts["nobody"].new_page(), market.url)
    visitor.go("/accounts/login/")
    assert violations(visitor) == []
    visitor.page.evaluate("document.querySelector('h1').style.color = '#999'")
    visitor.page.evaluate("document.querySelector('h1').style.background = '#888'")
    assert [line.split(":")[0] for line in violations(visitor)] == ["color-contrast"]
    visitor.page.close()
