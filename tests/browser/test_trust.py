"""What a page owes people who do not take its word, its mouse or its connection for granted."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, WebSocketRoute, expect

from tests.browser.visitor import Visitor
from tests.conftest import Market

pytestmark = pytest.mark.browser

#: More stops than any page here has before its main button.
STOPS_MAX = 60
#: A cell of the house's zone is a few seconds long.
AGREE_AT_MOST = 20


def press_until_cancelled(page: Page) -> None:
    """Agree to what goes back, and again where a cell began before the press, for less is left."""
    pill, asked_again = page.locator("#part-pill"), page.get_by_role("alert")
    for _ in range(AGREE_AT_MOST):
        with page.expect_event("load"):
            page.get_by_role("button", name=re.compile("^Cancel and get ")).click()
        expect(pill.or_(asked_again).first).to_be_visible()
        if pill.is_visible():
            break
        expect(asked_again).to_contain_text("The job goes on.")
    expect(pill).to_have_text("Cancelled")


def refused_bid(owner: Visitor, support_tone: bytes, *, name: str) -> None:
    """A bid far below any price: decided at once, and no job is trained for it."""
    page = owner.page
    owner.go("/bids/new?fresh")
    owner.upload("tone.jsonl", support_tone)
    expect(page.get_by_text("120 rows ready")).to_be_visible()
    expect(page.locator("#q-price")).to_have_text(re.compile(r"^\$\d"))
    page.get_by_role("textbox", name="Name").fill(name)
    page.locator("#id_price").fill("0.000001")
    owner.tell_limit()
    owner.place_too_low()
    expect(page.locator("#decision")).to_contain_text("The price was above your limit")


def test_an_owner_checks_a_decision_in_the_browser(owner: Visitor, support_tone: bytes) -> None:
    refused_bid(owner, support_tone, name="checked")
    page = owner.page
    check = page.get_by_role("button", name="Check it here")
    verdict = page.locator("[data-proof-result] .verdict")
    check.click()
    expect(verdict).to_contain_text("Everything holds.")
    expect(page.locator(".checks li")).to_have_count(10)
    expect(page.locator(".checks li.ok")).to_have_count(10)
    expect(page.locator(".checks li").first).to_contain_text("$0.000001")

    page.locator("#proof-limit").fill("5")
    check.click()
    expect(verdict).to_contain_text("made with another limit than $5.00. Is that exactly what you")
    expect(page.locator("[data-proof-result]")).to_have_attribute("data-tone", "warn")
    expect(page.locator(".checks li.ok")).to_have_count(8)
    expect(page.locator(".checks li.bad b")).to_have_text(["The record holds another limit"])


def test_a_record_with_one_changed_figure_is_found_out(owner: Visitor, support_tone: bytes) -> None:
    refused_bid(owner, support_tone, name="forged")
    page = owner.page

    def forge(route: Route) -> None:
        true = route.fetch().text()
        forged, changes = re.subn(
            r'("compute_demand":\d+)(?=[^}]*"rates")', r"\g<1>9", true, count=1
        )
        assert changes == 1
        route.fulfill(body=forged, content_type="application/json")

    page.route("**/proof", forge)
    page.get_by_role("button", name="Check it here").click()
    expect(page.locator("[data-proof-result]")).to_have_attribute("data-tone", "bad")
    expect(page.locator(".checks li.bad").first).to_be_visible()


def fetch(page: Page, path: str) -> dict[str, Any]:
    """A file of the market as a stranger would keep it."""
    answer = page.request.get(path)
    assert answer.ok
    return {"name": path.rpartition("/")[2], "mimeType": "text/plain", "buffer": answer.body()}


def test_anybody_checks_a_record_and_a_transcript_and_finds_a_forged_one(
    owner: Visitor, market: Market, support_tone: bytes
) -> None:
    refused_bid(owner, support_tone, name="verified")
    page, url = owner.page, owner.url
    bid = page.locator("form[data-proof]").get_attribute("data-bid")
    record = fetch(page, f"{url}/bids/{bid}/proof")
    log = fetch(page, f"{url}/market/{market.zone}/transcript")
    heads = fetch(page, f"{url}/market/{market.zone}/heads")
    owner.go("/verify")
    verdict = page.locator("#verify-result .verdict")
    files = page.locator("#verify-file")
    files.set_input_files([record, log, heads])
    expect(verdict).to_contain_text("Everything holds.")
    expect(page.locator("#verify-result")).to_contain_text("The log is one unbroken chain")
    expect(page.locator("#verify-result")).to_contain_text("This market publishes the key")

    forged = log | {"buffer": log["buffer"].replace(b'"compute_demand":', b'"compute_demand":1', 1)}
    assert forged != log
    files.set_input_files([forged])
    expect(page.locator("#verify-result")).to_have_attribute("data-tone", "bad")
    files.set_input_files([{"name": "x.json", "mimeType": "text/plain", "buffer": b"{}"}])
    expect(verdict).to_contain_text("The file cannot be checked")


def focused(locator: Locator) -> bool:
    return bool(locator.evaluate("node => node === document.activeElement"))


def tab_to(page: Page, target: Locator) -> None:
    """Press Tab until the target has the focus, as somebody without a mouse does."""
    for _ in range(STOPS_MAX):
        page.keyboard.press("Tab")
        if focused(target):
            return
    raise AssertionError(f"{target} is not reached in {STOPS_MAX} stops")


def test_a_bid_is_placed_without_a_mouse(owner: Visitor, support_tone: bytes) -> None:
    page = owner.page
    owner.go("/bids/new?fresh")
    page.keyboard.press("Tab")
    assert focused(page.get_by_role("link", name="Skip to content"))
    page.keyboard.press("Enter")
    tab_to(page, page.locator("#id_file"))
    owner.upload("tone.jsonl", support_tone)
    expect(page.get_by_text("120 rows ready")).to_be_visible()
    expect(page.locator("#q-price")).to_have_text(re.compile(r"^\$\d"))

    page.keyboard.press("Control+Home")
    tab_to(page, page.get_by_role("textbox", name="Name"))
    page.keyboard.press("Control+a")
    page.keyboard.type("by keyboard")
    deadline = page.get_by_role("slider", name="Deadline")
    limit = page.get_by_role("slider", name="Most it is worth to you")
    tab_to(page, limit)
    before = deadline.get_attribute("aria-valuetext")
    tab_to(page, deadline)
    with page.expect_response(lambda reply: reply.request.method == "POST"):
        page.keyboard.press("PageUp")
    expect(deadline).not_to_have_attribute("aria-valuetext", before or "")
    expect(deadline).to_be_focused()
    tab_to(page, page.locator("#id_price"))
    page.keyboard.type("0.000001")
    place = page.locator("#place")
    expect(place).to_be_disabled()
    expect(place).to_have_accessible_description("Your limit must be above the price.")
    page.keyboard.press("Control+a")
    page.keyboard.type("5")
    expect(place).to_be_enabled()
    tab_to(page, place)
    page.keyboard.press("Enter")

    decision = page.locator("#decision")
    expect(decision).to_contain_text("Admitted")
    expect(decision).to_be_focused()
    tab_to(page, page.get_by_role("button", name="Check it here"))
    page.keyboard.press("Enter")
    expect(page.locator(".verdict")).to_contain_text("Everything holds.")
    page.get_by_role("link", name="Follow the job").click()
    page.get_by_role("link", name="Cancel…").click()
    press_until_cancelled(page)


def test_a_quote_is_renewed_while_somebody_types(owner: Visitor, support_tone: bytes) -> None:
    page = owner.page
    owner.go("/bids/new?fresh")
    owner.upload("tone.jsonl", support_tone)
    expect(page.locator("#q-price")).to_have_text(re.compile(r"^\$\d"))
    limit = page.locator("#id_price")
    limit.click()
    page.keyboard.type("4.")
    # Each quote ends with its slot; the next one comes although the field has the focus.
    for _ in range(2):
        with page.expect_response(lambda reply: reply.request.method == "POST"):
            pass
    page.keyboard.type("25")
    expect(limit).to_be_focused()
    expect(limit).to_have_value("4.25")
    expect(page.locator("#q-pill")).to_have_text("This bid wins")
    expect(page.locator("#q-news")).to_have_text(re.compile(r"This bid wins\.$"))


def test_a_lost_connection_is_said_quietly_and_mended(visitor: Visitor) -> None:
    page = visitor.page
    sockets: list[WebSocketRoute] = []
    broken = False

    def connect(socket: WebSocketRoute) -> None:
        if broken:
            socket.close()
        else:
            sockets.append(socket)
            socket.connect_to_server()

    page.route_web_socket(re.compile("/ws/"), connect)
    visitor.go("/")
    state = page.locator("[data-live-state]")
    expect(state).to_have_attribute("data-state", "live")
    assert len(sockets) == 1

    broken = True
    sockets[0].close()
    expect(state).to_have_attribute("data-state", "polling")
    expect(state).to_contain_text("reconnecting")
    broken = False
    expect(state).to_have_attribute("data-state", "live")
    assert len(sockets) == 2
