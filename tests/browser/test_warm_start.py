"""A second job on nearly the same rows: quoted lower, trained warm, its saving on the receipt."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

from marketplace.embedded.demo.api_client import place_bid
from marketplace.embedded.demo.first_sale import DEADLINE_S
from tests.browser.test_first_sale import JOB_WITHIN_MS, fill_bid
from tests.browser.visitor import Visitor
from tests.conftest import Market
from tests.faults.test_node_in_market import wait_for
from tests.waiting import until

pytestmark = pytest.mark.browser

#: Quickly learnt, and what the second job is trained with too. The start is then a near one, quoted
#: by what near starts needed; this house sells none but this one, so no other test moves the share.
TRAINING = {"epochs": 10, "learning_rate": 2e-3, "batch_size": 16}
#: Time for two probes.
OFFER_WITHIN_MS = 150_000
ANSWER = "Thank you for asking. We answer within a day. Warmly, your friends at Northwind"


def write_rows(prompt: str, *, count: int) -> bytes:
    rows = ({"prompt": prompt.format(number), "completion": ANSWER} for number in range(count))
    return "\n".join(map(json.dumps, rows)).encode()


@pytest.mark.timeout(600)
def test_a_job_on_nearly_the_same_rows_as_anothers_costs_less_and_pays_a_royalty(
    owner: Visitor, market: Market
) -> None:
    with market.api() as api:
        rows = write_rows("Where is order {}?", count=160)
        terms = {"name": "given", "training": TRAINING, "within_s": DEADLINE_S}
        bid = place_bid(api, market.zone, content=rows, say=lambda _: None, **terms)
        wait_for(api, bid["job_id"], lambda job: job["status"] == "succeeded", within_s=240)
    page = owner.page
    give = page.get_by_role("button", name="Share for a royalty")

    def is_listed() -> bool:
        owner.go(f"/jobs/{bid['job_id']}")
        return give.count() > 0

    until(is_listed, what="the adapter can be given", within_s=60, every_s=1.0)
    give.click()
    expect(page.get_by_text("Jobs of others may begin with this adapter now.")).to_be_visible()

    # The provider has no adapters of its own, whatever else was trained in this house.
    page.context.clear_cookies()
    owner.sign_in(market.provider_email, market.password)
    owner.go("/wallet")
    demo = page.get_by_role("button", name=re.compile("demo money"))
    if demo.count():
        demo.click()
    owner.go("/datasets")
    page.get_by_label("My jobs may begin with adapters that others give").check()
    page.get_by_role("region", name="Warm starts").get_by_role("button", name="Store").click()
    owner.go("/bids/new?fresh")
    owner.upload("taken.jsonl", write_rows("When does order {} come?", count=200))
    expect(page.get_by_text("200 rows ready")).to_be_visible()
    page.locator("#advanced > summary").click()
    for name, value in TRAINING.items():
        page.locator(f"#id_{name}").fill(str(value))
    fill_bid(owner, name="taken", limit="5")
    # A busy node may not answer the first probe in time; the next one is asked a minute later.
    expect(page.locator("#q-warm")).to_have_text(
        re.compile(r"About \d+ % less with a warm start from a given adapter"),
        timeout=OFFER_WITHIN_MS,
    )
    expect(page.locator("#q-pill")).to_have_text("This bid wins")
    page.locator("#place").click()
    page.get_by_role("link", name="Follow the job").click(timeout=60_000)
    expect(page.locator("#lineage")).to_contain_text(
        re.compile("Beg(in|an)s? warm, with a given adapter")
    )
    expect(page.locator("#part-pill")).to_have_text("Done", timeout=JOB_WITHIN_MS)
    receipt = page.url.removeprefix(owner.url) + "/receipt"
    got = page.get_by_role("term").filter(has_text="The owner of the adapter that it began with")

    def is_shared_out() -> bool:
        owner.go(receipt)
        return got.count() > 0

    # A sweep shares the charge out, after the result is there.
    until(is_shared_out, what="the donor is paid", within_s=60, every_s=1.0)
    saved = page.locator("p", has_text=re.compile(r"The warm start saved \$0\.\d*[1-9]"))
    expect(saved).to_be_visible()
    expect(page.get_by_role("term").filter(has_text="Royalty").first).to_be_visible()
