"""Every page, as the people who use it see it."""

from __future__ import annotations

import re
import secrets
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.visitor import CONTEXT, Visitor
from tests.conftest import Market

pytestmark = pytest.mark.browser

OWNER_PAGES = (
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
    "/find?q=a",
    "/verify",
)


def test_the_market_is_open_to_everybody_and_stays_live(visitor: Visitor) -> None:
    visitor.go("/")
    page = visitor.page
    expect(page.locator("h1")).to_contain_text("Fine-tune by your deadline")
    expect(page.locator("[data-heat] [data-cell]").first).to_be_visible()
    assert re.fullmatch(r"[0-9a-f]{8}…[0-9a-f]{5}", page.locator("#part-head").inner_text())
    expect(page.locator("#part-head")).to_be_visible()
    expect(page.locator("[data-live-state]")).to_have_attribute("data-state", "live")


def test_the_heat_map_is_walked_by_keyboard(visitor: Visitor) -> None:
    visitor.go("/")
    page = visitor.page
    page.locator("[data-cell][tabindex='0']").focus()
    tip = page.locator("[data-tip]")
    expect(tip).to_contain_text("a slot")
    said = tip.inner_text()
    page.keyboard.press("ArrowRight")
    expect(tip).not_to_have_text(said)
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()


def test_the_palette_finds_a_page_with_the_keyboard_alone(owner: Visitor) -> None:
    owner.go("/jobs")
    page = owner.page
    page.keyboard.press("Control+k")
    words = page.get_by_role("combobox", name="Find jobs")
    expect(words).to_be_focused()
    words.fill("api keys")
    expect(page.get_by_role("option", name="API keys").first).to_have_attribute(
        "aria-selected", "true"
    )
    page.keyboard.press("Escape")
    expect(words).to_be_hidden()
    page.keyboard.press("Control+k")
    expect(page.get_by_role("option", name="API keys").first).to_be_visible()
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{owner.url}/settings/api-keys")


def test_a_page_that_needs_a_person_asks_who_it_is(visitor: Visitor) -> None:
    visitor.go("/wallet")
    expect(visitor.page).to_have_url(re.compile(r"/accounts/login/\?next=/wallet"))


@pytest.mark.parametrize("path", OWNER_PAGES)
def test_no_page_scrolls_sideways_on_a_phone(
    browser: Browser, market: Market, owner_context: dict[str, Any], path: str
) -> None:
    context = browser.new_context(**owner_context | {"viewport": {"width": 390, "height": 844}})
    phone = Visitor(context.new_page(), market.url)
    phone.go(path)
    width = phone.page.evaluate("document.documentElement.scrollWidth")
    context.close()
    assert width <= 390
    assert phone.complaints == []


def test_pages_are_readable_and_the_bid_form_works_without_script(
    browser: Browser, market: Market, support_tone: bytes
) -> None:
    context = browser.new_context(**CONTEXT | {"java_script_enabled": False})
    plain = Visitor(context.new_page(), market.url)
    plain.sign_in(market.owner_email, market.password)
    page = plain.page
    plain.go("/bids/new")
    plain.upload("plain.jsonl", support_tone)
    page.get_by_role("button", name="Check the data").click()
    ready, again = (
        page.get_by_text("120 rows ready"),
        page.get_by_role("button", name="Look again"),
    )
    expect(ready.or_(again).first).to_be_visible()
    while again.is_visible():
        # Nothing asks again by itself here.
        again.click()
        expect(ready.or_(again).first).to_be_visible()
    expect(ready).to_be_visible()
    expect(page.locator("#q-price")).to_have_text(re.compile(r"^\s*\$\d"))
    expect(page.locator("[data-curve-table] tbody tr").first).to_be_visible()
    page.locator("#id_price").fill("0.000001")
    page.locator("#place").click()
    expect(page.locator("#decision")).to_contain_text("Not admitted")
    context.close()


def test_the_theme_is_kept_from_page_to_page(owner: Visitor) -> None:
    page = owner.page
    owner.go("/jobs")
    page.locator(".side").get_by_role("button", name="Switch theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    owner.go("/wallet")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 16)"


def test_an_api_key_is_shown_once_and_can_be_revoked(owner: Visitor, market: Market) -> None:
    page = owner.page
    owner.go("/settings/api-keys")
    name = f"key {secrets.token_hex(4)}"
    page.get_by_role("textbox", name="Name").fill(name)
    page.get_by_role("button", name="Create key").click()
    owner.confirm(market.password, before=page.locator("#secret"))
    secret = page.locator("#secret").inner_text()
    assert secret.startswith("ft_")
    owner.go("/settings/api-keys")
    expect(page.locator("body")).not_to_contain_text(secret)
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("row", name=re.compile(name)).get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("row", name=re.compile(name))).to_contain_text("Revoked")


def test_a_provider_sees_its_node_and_gets_a_join_command(visitor: Visitor, market: Market) -> None:
    visitor.sign_in(market.provider_email, market.password)
    visitor.go("/nodes")
    page = visitor.page
    expect(page.get_by_role("heading", name="local-cpu")).to_be_visible()
    expect(page.locator("[data-heat] [data-cell]").first).to_be_visible()
    page.get_by_role("link", name="Add a node").first.click()
    page.get_by_label("Ask for one whole slot").fill("0.10")
    page.get_by_role("button", name="Make the join command").click()
    line = rf"FINETENDER_JOIN_TOKEN=\S+ \S*finetender-node join --url {market.url} --run"
    expect(visitor.main()).to_contain_text(re.compile(line))
    expect(visitor.main()).to_contain_text("0 of 1 on sale")


def test_the_operator_sees_what_is_out_of_order_and_heads(visitor: Visitor, market: Market) -> None:
    visitor.sign_in(market.operator_email, market.password)
    visitor.go("/operator")
    page = visitor.page
    expect(page.get_by_text("Out of order")).to_be_visible()
    expect(page.locator(".hashbox").first).to_have_text(re.compile(r"^[0-9a-f]{64}$"))


def test_the_operators_page_is_closed_to_others(visitor: Visitor, market: Market) -> None:
    visitor.sign_in(market.owner_email, market.password)
    reply = visitor.page.goto(f"{market.url}/operator")
    assert reply is not None
    assert reply.status == 403
    expect(visitor.page.locator("h1")).to_have_text("Not yours to see")
    visitor.complaints.clear()


def test_signing_up_opens_a_workspace(visitor: Visitor) -> None:
    visitor.go("/accounts/signup/")
    page = visitor.page
    page.get_by_label("Email").fill(f"{secrets.token_hex(6)}@example.com")
    for number, field in enumerate(page.locator("input[type=password]").all()):
        assert number < 2
        field.fill("a long enough phrase")
    page.get_by_role("button", name="Make an account").click()
    visitor.go("/jobs")
    expect(page.get_by_role("heading", name="No jobs yet")).to_be_visible()
