"""What a provider does on its node's page, and an operator on a job's and a zone's."""

from __future__ import annotations

import re
import secrets

from playwright.sync_api import expect

from tests.browser.visitor import Visitor
from tests.conftest import Market


def open_node(visitor: Visitor, market: Market) -> None:
    visitor.sign_in(market.provider_email, market.password)
    expect(visitor.page).to_have_url(f"{market.url}/provide")
    visitor.page.get_by_role("link", name="local-cpu", exact=True).first.click()
    expect(visitor.page.get_by_role("heading", name="local-cpu", level=1)).to_be_visible()


def test_a_provider_comes_home_and_sets_an_ask_on_the_nodes_page(
    visitor: Visitor, market: Market
) -> None:
    open_node(visitor, market)
    page = visitor.page
    before = page.get_by_label("Ask a slot").input_value()
    page.get_by_label("Ask a slot").fill("0.0123")
    page.get_by_role("button", name="Set the ask").click()
    expect(page.locator("#toasts")).to_contain_text("asks $0.0123 from the next sale on")
    expect(page.get_by_label("Ask a slot")).to_have_value("0.0123")
    page.get_by_label("Ask a slot").fill("cheap")
    page.get_by_role("button", name="Set the ask").click()
    expect(page.locator("#toasts")).to_contain_text("is not an amount")
    page.get_by_label("Ask a slot").fill(before)
    page.get_by_role("button", name="Set the ask").click()
    expect(page.get_by_label("Ask a slot")).to_have_value(before)


def test_a_node_is_drained_and_put_back_and_its_hours_are_the_visitors(
    visitor: Visitor, market: Market
) -> None:
    open_node(visitor, market)
    page = visitor.page
    page.get_by_role("button", name="Drain").click()
    expect(page.get_by_role("button", name="Take away")).to_be_visible()
    visitor.go("/provide")
    expect(page.locator(".needs")).to_contain_text("local-cpu is drained")
    page.locator(".needs").get_by_role("link", name="Open node").click()
    page.get_by_role("button", name="Put it back on sale").click()
    expect(page.locator("#toasts")).to_contain_text("is back on sale")
    page.get_by_text("Change hours or plan maintenance").click()
    page.get_by_label("Sold from").fill("00:00")
    page.get_by_label("until").first.fill("23:59")
    page.get_by_role("button", name="Set the hours").click()
    # The browser is in Amsterdam.
    expect(page.locator("#hours")).to_contain_text(re.compile("Times in CES?T"))
    page.get_by_text("In words").click()
    expect(page.locator("#hours")).to_contain_text("00:00 to 23:59")
    page.get_by_text("Change hours or plan maintenance").click()
    page.get_by_label("Sold from").fill("")
    page.get_by_label("until").first.fill("")
    page.get_by_role("button", name="Set the hours").click()
    page.get_by_text("In words").click()
    expect(page.locator("#hours")).to_contain_text("00:00 to 24:00")


def test_a_zones_setting_is_changed_with_its_difference_and_undone(
    visitor: Visitor, market: Market
) -> None:
    visitor.sign_in(market.operator_email, market.password)
    expect(visitor.page).to_have_url(f"{market.url}/operator")
    visitor.go("/operator/zones")
    page = visitor.page
    page.locator("td a.nm").first.click()
    before = page.get_by_label("House fee").input_value()
    page.get_by_label("House fee").fill("0.125")
    page.get_by_role("button", name="See the difference").click()
    expect(page.get_by_role("heading", name="This would change")).to_be_visible()
    reason = f"Power costs more {secrets.token_hex(3)}"
    page.get_by_label("Reason").fill(reason)
    page.get_by_role("button", name="Set", exact=True).click()
    row = page.get_by_role("row", name=re.compile(reason)).first
    expect(row).to_contain_text("0.125")
    row.get_by_role("button", name="Undo").click()
    expect(page.locator("#toasts")).to_contain_text("again as they were before")
    expect(page.get_by_label("House fee")).to_have_value(before)


def test_an_operator_opens_a_job_and_the_look_is_on_record(
    visitor: Visitor, market: Market
) -> None:
    visitor.sign_in(market.operator_email, market.password)
    visitor.go("/operator/jobs?show=all")
    page = visitor.page
    link = page.locator("td a.nm").first
    if link.count() == 0:
        expect(visitor.main()).to_contain_text("No job is in this state now.")
        return
    link.click()
    expect(page.get_by_role("heading", name="Leases")).to_be_visible()
    expect(page.get_by_role("heading", name="What you may do")).to_be_visible()
    page.get_by_role("link", name="Audit log").first.click()
    expect(visitor.main()).to_contain_text("Any job")
