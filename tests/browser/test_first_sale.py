"""The whole house from a chair: a data set goes in, an adapter comes out."""

from __future__ import annotations

import io
import json
import re
import zipfile

import pytest
from playwright.sync_api import expect

from tests.browser.visitor import Visitor

pytestmark = pytest.mark.browser

#: Milliseconds in which a small job is trained and its adapter stored.
JOB_WITHIN_MS = 240_000


def fill_bid(owner: Visitor, *, name: str, limit: str) -> None:
    owner.page.get_by_role("textbox", name="Name").fill(name)
    owner.page.locator("#id_price").fill(limit)


@pytest.mark.timeout(600)
def test_a_bid_placed_in_the_browser_becomes_an_adapter(
    owner: Visitor, support_tone: bytes
) -> None:
    page = owner.page
    owner.go("/bids/new?fresh")
    expect(page.get_by_role("heading", name="Prices need your data")).to_be_visible()

    owner.upload("tone.jsonl", support_tone)
    expect(page.get_by_text("120 rows ready")).to_be_visible()
    expect(page.locator("#q-price")).to_have_text(re.compile(r"^\$\d"))
    expect(page.get_by_role("slider", name="Deadline")).to_be_visible()

    fill_bid(owner, name="browser-tone", limit="5")
    expect(page.locator("#q-pill")).to_have_text("This bid wins")
    page.locator("#place").click()

    expect(page).to_have_url(re.compile(r"/bids/bid_"))
    decision = page.locator("#decision")
    expect(decision.get_by_text("Admitted")).to_be_visible(timeout=60_000)
    expect(decision.get_by_role("heading")).to_have_text(re.compile(r"^You pay \$\d"))
    page.get_by_role("link", name="Follow the job").click()

    expect(page.locator("h1")).to_have_text("browser-tone")
    chart = page.locator("#chart-loss")
    expect(chart).to_have_attribute("data-points", re.compile(r"^[1-9]"), timeout=JOB_WITHIN_MS)
    before = int(chart.get_attribute("data-points") or 0)
    page.wait_for_function(
        "points => Number(document.querySelector('#chart-loss').dataset.points) > points",
        arg=before,
        timeout=JOB_WITHIN_MS,
    )
    expect(page.locator("#part-pill")).to_have_text("Done", timeout=JOB_WITHIN_MS)
    expect(page.locator("#j-share")).to_have_text("100 %")

    with page.expect_download() as download:
        page.locator("#download-adapter").click()
    assert download.value.suggested_filename == "browser-tone-adapter.zip"
    with zipfile.ZipFile(io.BytesIO(download.value.path().read_bytes())) as adapter:
        config = json.loads(adapter.read("adapter_config.json"))
        assert config["peft_type"] == "LORA"
        assert adapter.getinfo("adapter_model.safetensors").file_size > 1000


def test_a_bid_below_the_price_is_refused_with_ways_to_win(
    owner: Visitor, support_tone: bytes
) -> None:
    page = owner.page
    owner.go("/bids/new?fresh")
    owner.upload("tone.jsonl", support_tone)
    expect(page.get_by_text("120 rows ready")).to_be_visible()
    fill_bid(owner, name="too-cheap", limit="0.000001")
    expect(page.locator("#q-pill")).to_have_text("This bid does not win")
    expect(page.locator("#place-why")).to_have_text("Your limit must be above the price.")
    owner.tell_limit()
    owner.place_too_low()

    decision = page.locator("#decision")
    expect(decision.get_by_text("Not admitted")).to_be_visible()
    expect(decision.get_by_role("heading", level=2)).to_have_text("The price was above your limit")
    expect(decision.get_by_text("Nothing was charged and the hold is released.")).to_be_visible()
    decision.get_by_role("link", name="Edit my limit").click()
    expect(page.get_by_role("textbox", name="Name")).to_have_value("too-cheap")
    expect(page.get_by_text("120 rows ready")).to_be_visible()


def test_a_limit_that_is_kept_here_is_never_sent_and_leaves_a_price_above_it(
    owner: Visitor, support_tone: bytes
) -> None:
    page = owner.page
    sent: list[bytes] = []
    page.on("request", lambda each: sent.append(each.url.encode() + (each.post_data_buffer or b"")))
    owner.go("/bids/new?fresh")
    owner.upload("tone.jsonl", support_tone)
    expect(page.get_by_text("120 rows ready")).to_be_visible()
    fill_bid(owner, name="kept-here", limit="0.000013")
    expect(page.locator("#q-pill")).to_have_text("This bid does not win")
    owner.place_too_low()

    decision = page.locator("#decision")
    expect(decision.get_by_text("Not admitted")).to_be_visible(timeout=30_000)
    expect(decision.get_by_role("heading", level=2)).to_have_text("You left the price")
    expect(decision.get_by_text("Nothing was held or charged.")).to_be_visible()
    assert any(b"take=false" in each for each in sent)
    assert not [each for each in sent if b"0.000013" in each]
    decision.get_by_role("link", name="Ask again").click()
    expect(page.get_by_role("textbox", name="Name")).to_have_value("kept-here")


def test_a_double_click_places_one_bid(owner: Visitor, support_tone: bytes) -> None:
    page = owner.page
    owner.go("/bids/new?fresh")
    owner.upload("tone.jsonl", support_tone)
    expect(page.get_by_text("120 rows ready")).to_be_visible()
    fill_bid(owner, name="clicked-twice", limit="0.000001")
    owner.place_too_low(clicks=2)
    expect(page.locator("#decision").get_by_text("Not admitted")).to_be_visible()
    owner.go("/jobs?find=clicked-twice")
    expect(page.get_by_role("link", name="clicked-twice")).to_have_count(1)


def test_lines_that_cannot_be_used_are_shown_before_any_money_moves(owner: Visitor) -> None:
    page = owner.page
    good = '{"prompt": "Say hello.", "completion": "Hello."}\n'
    owner.go("/bids/new?fresh")
    owner.upload("mixed.jsonl", (good * 20 + '{"prompt": "no end\n').encode())
    expect(page.get_by_text("20 rows can be used")).to_be_visible()
    expect(page.get_by_text("1 line cannot be used")).to_be_visible()
    expect(page.locator(".err .ln")).to_have_text("21")
    page.get_by_label("Leave it out").check()
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_text("20 rows ready")).to_be_visible()

    owner.go("/bids/new?fresh")
    owner.upload("binary.jsonl", bytes(range(256)) * 8)
    expect(page.get_by_text("This file cannot be used.")).to_be_visible()


def test_the_deadline_moves_by_keyboard_and_is_spoken(owner: Visitor, support_tone: bytes) -> None:
    page = owner.page
    owner.go("/bids/new?fresh")
    owner.upload("tone.jsonl", support_tone)
    handle = page.get_by_role("slider", name="Deadline")
    expect(handle).to_have_attribute("aria-valuetext", re.compile(r"price \$"))
    before = float(handle.get_attribute("aria-valuenow") or 0)
    handle.focus()
    handle.press("PageUp")
    expect(handle).not_to_have_attribute("aria-valuenow", str(before))
    assert float(handle.get_attribute("aria-valuenow") or 0) > before
    handle.press("Home")
    first = float(handle.get_attribute("aria-valuemin") or 0)
    expect(page.locator("#q-done")).to_contain_text("Done by")
    assert abs(float(handle.get_attribute("aria-valuenow") or 0) - first) <= 6
