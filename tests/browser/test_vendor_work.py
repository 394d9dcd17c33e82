"""People prepare an owner's rows with the keyboard, and the job gets what they hand in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.visitor import Visitor
from tests.conftest import Market
from tests.waiting import until

pytestmark = pytest.mark.browser

#: The team of the demo's provider; far too much room, so that the bid's window is no matter.
LIST = """
from marketplace.accounts.models import User
from marketplace.common import clock
from marketplace.fleet.models import Zone
from marketplace.vendors.listing import VendorTerms, approve_vendor, list_vendor
from marketplace.vendors.models import VendorKind
from marketplace.vendors.quoting import QuoteFunction
zone, user = Zone.objects.get(name={zone!r}), User.objects.get(email={provider!r})
terms = VendorTerms(
    name="Careful hands", kind=VendorKind.HUMAN, skills=["labelling"],
    quotes=QuoteFunction(1_000, 0, 0, base_s=zone.slot_s * zone.horizon_slots // 2,
                         s_per_1000_rows=0),
    rows_per_slot={{zone: 1000}},
    late_percent=20,
)
made = list_vendor(
    organisation=user.organisations.get(personal_for=None), listed_by=user, terms=terms,
    now=clock.now(),
)
approve_vendor(vendor=made, approved_by=None, now=clock.now())
"""
SCRIPT = "<img src=x onerror=alert(1)>"


def chat(asked: str, said: str) -> str:
    turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
    return json.dumps({"messages": turns})


ROWS = [
    chat("When do you open?", "At nine."),
    chat("Where are you?", f"Here. {SCRIPT}"),
    chat("What does it cost?", "Ten dolars.")[:-1] + ",}",
    "this is no row",
]


def sell(market: Market) -> str:
    """A job whose rows people prepare; its id."""
    with market.api() as api:
        file = {"file": ("rows.jsonl", "\n".join(ROWS).encode(), "application/jsonl")}
        stored = api.post("/api/datasets", files=file, data={"faulty_lines": "leave_out"}).json()
        zones = api.get("/api/zones").json()["data"]
        zone = next(one for one in zones if one["name"] == market.zone)
        body: dict[str, Any] = {
            "zone": market.zone,
            "dataset_id": stored["id"],
            "name": "by hand",
            "price": "5",
            "deadline": zone["latest_deadline"],
            "training": {"epochs": 1},
            "preparation": {"kinds": ["human"], "instructions": "Mend the spelling."},
        }
        answer = api.post("/api/bids", json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()["job_id"]


@pytest.mark.timeout(300)
def test_rows_are_prepared_by_keyboard_and_handed_in(visitor: Visitor, market: Market) -> None:
    market.shell.run(LIST.format(zone=market.zone, provider=market.provider_email))
    job = sell(market)
    page = visitor.page
    visitor.sign_in(market.provider_email, market.password)
    link = page.get_by_role("link", name="Open", exact=True)

    def is_ready() -> bool:
        visitor.go("/vendor")
        return link.count() > 0

    until(is_ready, what="the rows are ready", within_s=60, every_s=1.0)

    def press(key: str) -> None:
        # The keys' help is shown once the page listens to them.
        expect(page.locator("[data-keys-help]")).to_be_visible()
        page.keyboard.press(key)

    link.first.click()
    expect(page.get_by_role("heading", name="4 rows to prepare")).to_be_visible()
    expect(page.get_by_text("Mend the spelling.")).to_be_visible()
    # Its script runs before the page is loaded, and not before its words are there.
    page.wait_for_load_state()
    page.keyboard.press("n")
    expect(page.get_by_role("heading", name="Row 1 of 4")).to_be_visible()
    press("a")
    expect(page.get_by_role("heading", name="Row 2 of 4")).to_be_visible()
    # Markup of a row is text, in the raw row and in the editor.
    expect(page.get_by_label("Message 2", exact=True)).to_have_value(f"Here. {SCRIPT}")
    assert page.locator("main img").count() == 0
    press("d")
    expect(page.get_by_role("heading", name="Row 3 of 4")).to_be_visible()
    press("u")
    expect(page.get_by_role("heading", name="Row 2 of 4")).to_be_visible()
    press("a")
    expect(page.get_by_role("heading", name="Row 3 of 4")).to_be_visible()
    press("e")
    expect(page.get_by_label("Message 2", exact=True)).to_be_focused()
    page.get_by_label("Message 2", exact=True).fill("Ten dollars.")
    press("Control+Enter")
    expect(page.get_by_role("heading", name="Row 4 of 4")).to_be_visible()
    press("d")
    expect(page.get_by_text("100 %")).to_be_visible()
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Hand in").click()
    expect(page.get_by_text("Handed in. The rows are being checked.")).to_be_visible()

    def is_accepted() -> bool:
        with market.api() as api:
            made = api.get(f"/api/jobs/{job}/preparation").json()
            return made["status"] == "accepted"

    until(is_accepted, what="the rows are accepted", within_s=60, every_s=1.0)
    with market.api() as api:
        made = api.get(f"/api/jobs/{job}/preparation").json()
        assert (made["rows_in"], made["comparison"]["changed"]) == (4, 1)
        assert [one["kind"] for one in made["accesses"]] == ["rows"]
        api.post(f"/api/jobs/{job}/cancel")
