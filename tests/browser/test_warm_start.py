"""A second job on nearly the same rows: quoted lower, trained warm, its saving on the receipt."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_first_sale import JOB_WITHIN_MS
from tests.browser.visitor import Visitor
from tests.conftest import Market

pytestmark = pytest.mark.browser


def near(rows: bytes) -> bytes:
    """The same rows but for a few words."""
    lines = [json.loads(line) for line in rows.splitlines()]
    changed = [json.dumps(row).replace("please", "kindly") for row in lines]
    return "\n".join(reversed(changed)).encode()


def bid(person: Visitor, *, name: str, rows: bytes) -> Page:
    page = person.page
    person.go("/bids/new")
    person.upload(f"{name}.jsonl", rows)
    expect(page.get_by_text("rows ready")).to_be_visible()
    page.get_by_label("Name").fill(name)
    page.locator("#id_price").fill("5")
    return page


def follow(page: Page) -> None:
    expect(page.locator("#q-pill")).to_have_text("This bid wins")
    page.locator("#place").click()
    page.get_by_role("link", name="Follow the job").click(timeout=60_000)
    expect(page.locator("#part-pill")).to_have_text("Done", timeout=JOB_WITHIN_MS)


@pytest.mark.timeout(900)
def test_a_job_on_nearly_the_same_rows_of_another_costs_less_and_pays_a_royalty(
    visitor: Visitor, market: Market, support_tone: bytes
) -> None:
    rows = support_tone[: support_tone.index(b"\n", len(support_tone) // 2)]
    visitor.sign_in(market.provider_email, market.password)
    visitor.go("/wallet")
    demo = visitor.page.get_by_role("button", name=re.compile("demo money"))
    if demo.count():
        demo.click()
    page = bid(visitor, name="given", rows=rows)
    follow(page)
    page.reload()
    page.get_by_role("button", name="Give it, for a royalty").click()
    expect(page.get_by_text("Jobs of others may begin with this adapter now.")).to_be_visible()

    page.context.clear_cookies()
    visitor.sign_in(market.owner_email, market.password)
    visitor.go("/datasets")
    page.get_by_label("My jobs may begin with adapters that others give").check()
    page.get_by_role("button", name="Store").click()
    bid(visitor, name="taken", rows=near(rows))
    expect(page.locator("#q-warm")).to_have_text(re.compile("less with a warm start from a given"))
    follow(page)
    expect(page.locator("#lineage")).to_contain_text("Began warm, with a given adapter")
    visitor.go(page.url.removeprefix(visitor.url) + "/receipt")
    expect(page.get_by_text("The warm start saved $")).to_be_visible()
    expect(page.get_by_text("Royalty", exact=True)).to_be_visible()
