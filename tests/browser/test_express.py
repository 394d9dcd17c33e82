"""A prompt within a minute: certified, tuned and paid for, in the running house."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.visitor import Visitor
from tests.conftest import Market
from tests.faults.steps import until

pytestmark = pytest.mark.browser

OPEN = """
from marketplace.accounts.models import Organisation
from marketplace.express.lanes import LaneTerms, set_lane
from marketplace.fleet.models import Zone
zone = Zone.objects.get(name={zone!r})
house = Organisation.objects.get(name="Harbour Analytics")
terms = LaneTerms(
    is_open={is_open}, least_seats=1, most_seats=1,
    seat_limit_micros=1_000_000, budget_micros_per_h=10**12,
    slo_max_s=min(90.0, zone.slot_s * zone.horizon_slots / 2),
)
set_lane(zone=zone, organisation=house, terms=terms)
"""
IDLE = """
from marketplace.common import clock
from marketplace.express.selectors import summarize_lanes
print(sum(one.idle for one in summarize_lanes(now=clock.now())))
"""
#: A prompt of the bank to begin with: numbers that no job tuned, which a lookup compares.
LEND = """
import hashlib
import numpy as np
from marketplace.auction.bidding.terms import AUTO_VIRTUAL_TOKENS
from marketplace.accounts.models import Organisation
from marketplace.common import clock
from marketplace.express.bank import name_base_model
from marketplace.express.models import BankPrompt
from marketplace.express.task_features import WIDTH
from marketplace.fleet.models import Zone
zone = Zone.objects.get(name={zone!r})
shape = (AUTO_VIRTUAL_TOKENS, zone.model_shape["hidden_size"])
values = np.random.default_rng(0).normal(0, 0.02, shape).astype("<f4").tobytes()
BankPrompt.objects.get_or_create(job_id="lent", defaults=dict(
    organisation=Organisation.objects.get(name="Harbour Analytics"), is_shared=True,
    base_model=name_base_model(zone), virtual_tokens=shape[0], width=shape[1], values=values,
    sha256=hashlib.sha256(values).hexdigest(), features=bytes(4 * WIDTH), created_at=clock.now(),
))
"""
SLO_WITHIN_S = 60


@pytest.mark.timeout(400)
def test_a_prompt_is_tuned_within_a_certified_minute(
    owner: Visitor, market: Market, support_tone: bytes
) -> None:
    page = owner.page
    few = b"".join(support_tone.splitlines(keepends=True)[:12])
    market.shell.run(OPEN.format(zone=market.zone, is_open=True))
    market.shell.run(LEND.format(zone=market.zone))
    try:
        until(lambda: market.shell.run(IDLE) == "1", what="a seat is idle", within_s=120)
        owner.go("/datasets")
        page.locator("#id_file").set_input_files(
            {"name": "few.jsonl", "mimeType": "application/jsonl", "buffer": few}
        )
        page.get_by_role("button", name="Upload and check").click()
        expect(page).to_have_url(re.compile(r"/datasets/(ds_|uploads/)"))
        slider = page.get_by_label("Done within, seconds")

        def is_offered() -> bool:
            owner.go("/express?epochs=1")
            return slider.is_visible()

        until(is_offered, what="the rows are read and priced", within_s=60)
        price = page.locator("#slo-price")
        slider.fill(slider.get_attribute("max") or "")
        cheapest = price.text_content()
        slider.fill(slider.get_attribute("min") or "")
        expect(price).not_to_have_text(cheapest or "")
        slider.fill(str(SLO_WITHIN_S))
        expect(page.locator("#slo-seconds")).to_have_text(re.compile(r"^[1-6]?\d s$"))
        page.get_by_role("button", name="Ask for it").click()

        expect(page).to_have_url(re.compile(r"/express/express_"))
        expect(page.get_by_text("Certified", exact=True)).to_be_visible()
        expect(page.get_by_text("Place in the log")).to_be_visible()
        answer = page.url
        page.get_by_role("link", name="Watch the job").click()
        expect(page.locator("#part-pill")).to_have_text("Done", timeout=240_000)
        page.goto(answer)
        expect(
            page.get_by_text(re.compile(r"after [\d.]+ s\s+of the \d+ s certified"))
        ).to_be_visible()
        # The lookup is noted a moment after the job has ended.
        expect(page.get_by_text(re.compile(r"[2-9] prompts compared in .* s: loss"))).to_be_visible(
            timeout=30_000
        )
        page.get_by_role("link", name="Receipt").click()
        expect(page).to_have_url(re.compile(r"/bids/bid_"))
        expect(page.get_by_role("heading", name=re.compile(r"You pay \$"))).to_be_visible()
    finally:
        market.shell.run(OPEN.format(zone=market.zone, is_open=False))
