"""Cards in and payouts out, in the browser: with the stand-in's test cards, over real HTTP."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.visitor import Visitor
from tests.conftest import Market
from tests.waiting import until

pytestmark = pytest.mark.browser

RECEIVED = """
from marketplace.payments.gateway_models import CardPayment
print([(p.status, p.received_micros) for p in CardPayment.objects.filter(purpose="bid")])
"""
CHARGED = """
from marketplace.payments.models import Hold
print([("paid", h.charged_micros) for h in Hold.objects.filter(card_payment__isnull=False)])
"""
EARN = """
from datetime import timedelta
from django.conf import settings
from marketplace.accounts.models import User
from marketplace.common import clock
from marketplace.payments.earnings import mature_earnings
from marketplace.payments.payouts import start_due_payouts
settings.PAYOUT_THRESHOLD_MICROS = 10_000
later = clock.now() + timedelta(days=30)
mature_earnings(now=later)
print(start_due_payouts(now=clock.now()))
"""


def test_a_card_fills_the_wallet_and_pays_for_a_bid(
    owner: Visitor, market: Market, support_tone: bytes
) -> None:
    page = owner.page
    owner.go("/wallet")
    page.get_by_label("Amount", exact=True).fill("20")
    page.get_by_role("button", name="Continue").click()
    expect(page).to_have_url(re.compile("/wallet/payments/pay_"))
    page.get_by_label("Has no funds").check()
    # The declined card is a 402 of the gateway, which the browser reports.
    page.get_by_role("button", name="Pay $20.00").click()
    expect(page.get_by_role("alert")).to_contain_text("insufficient funds")
    page.get_by_label("Asks for confirmation").check()
    page.get_by_role("button", name="Pay $20.00").click()
    page.get_by_role("button", name="Confirm").click()
    expect(page.locator("#main")).to_contain_text("Paid$20.00")

    owner.go("/bids/new")
    owner.upload("card.jsonl", support_tone)
    expect(page.locator("#q-price")).to_contain_text("$")
    page.get_by_label("A card, for this bid").check()
    page.locator("#id_price").fill("2")
    page.get_by_role("button", name="Place bid").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Authorise $2.00")
    page.get_by_role("button", name="Authorise $2.00").click()
    expect(page).to_have_url(re.compile("/bids/bid_"))

    charged = market.shell.run(CHARGED)
    micros = int(re.findall(r"\d+", charged)[0])
    captured = f"[('paid', {-(-micros // 10_000) * 10_000})]"
    until(
        lambda: market.shell.run(RECEIVED) == captured,
        what="the clearing price is captured, to the cent",
        within_s=30,
    )
    owner.complaints = [said for said in owner.complaints if "402" not in said]
