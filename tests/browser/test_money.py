"""Cards in and payouts out, in the browser: with the stand-in's test cards, over real HTTP."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.visitor import Visitor
from tests.conftest import Market
from tests.waiting import until

pytestmark = pytest.mark.browser

RECEIVED = """
from marketplace.payments.models import CardPayment
print([(p.status, p.received_micros) for p in CardPayment.objects.filter(purpose="bid")])
"""
CHARGED = """
from marketplace.payments.models import Hold
print([("paid", h.charged_micros) for h in Hold.objects.filter(card_payment__isnull=False)])
"""
#: A provider's part of one price, earned long enough ago, and the gateway has the buyer's money.
EARN = """
from datetime import timedelta
from marketplace.accounts.models import Organisation, User
from marketplace.common import clock
from marketplace.payments import stripe_gateway as gateway
from marketplace.payments.earnings import CostSplit, Share, distribute_charge
from marketplace.payments.maturity import mature_earnings
from marketplace.payments.holds import HoldRequest, HoldSettlement, place_holds, settle_holds
from marketplace.payments.services import credit_demo_money
now = clock.now()
provider = User.objects.get(email="{provider}")
paid = Organisation.objects.filter(memberships__user=provider, provider__isnull=False).get()
buyer = Organisation.objects.exclude(pk=paid.pk).earliest("created_at")
credit_demo_money(
    organisation=buyer, amount_micros=30_000_000, reference="t", actor=provider, now=now
)
place_holds(wanted=[HoldRequest(buyer.pk, 25_000_000, "bid:bid_paid")], now=now)
settle_holds(settlements=[HoldSettlement("bid:bid_paid", 25_000_000)], now=now)
split = CostSplit(25_000_000, 0, (Share(paid.pk, 25_000_000),))
distribute_charge(hold_reference="bid:bid_paid", split=split, now=now - timedelta(days=8))
mature_earnings(now=now)
gateway.create_intent(
    gateway.IntentRequest(
        payment_id="pay_other", amount_cents=100_000, card_id="pm_card_visa",
        customer_id=gateway.create_customer(
            organisation_id=buyer.pk, name="Buyer", key="customer-1"
        ),
    ),
    key="other",
)
"""
START = """
from marketplace.common import clock
from marketplace.payments.payouts import start_due_payouts
print(start_due_payouts(now=clock.now()))
"""
#: A tenth of what a new payee earns stays for now.
PAYOUTS = """
from marketplace.payments.models import Payout
print([(p.status, p.amount_cents > 2_249) for p in Payout.objects.all()])
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

    owner.go("/bids/new?fresh")
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
    # The gateway takes 50 cents at least.
    captured = f"[('paid', {max(50, -(-micros // 10_000)) * 10_000})]"
    until(
        lambda: market.shell.run(RECEIVED) == captured,
        what="the clearing price is captured, to the cent",
        within_s=30,
    )
    owner.complaints = [said for said in owner.complaints if "402" not in said]


def test_a_provider_says_who_it_is_and_is_paid_with_a_statement(
    visitor: Visitor, market: Market
) -> None:
    visitor.sign_in(market.provider_email, market.password)
    page = visitor.page
    visitor.go("/nodes/payouts")
    page.get_by_role("link", name="Set up payouts").click()
    visitor.confirm(market.password)
    page.get_by_role("link", name="Set up payouts").click()
    page.get_by_role("button", name="Finish with test details").click()
    expect(page.get_by_text("Payouts go to the bank account")).to_be_visible()
    market.shell.run(EARN.format(provider=market.provider_email))
    market.shell.run(START)
    until(
        lambda: market.shell.run(PAYOUTS) == "[('paid', True)]",
        what="the payout is at the bank",
        within_s=60,
    )
    visitor.go("/nodes/payouts")
    expect(page.get_by_role("table")).to_contain_text("Paid")
    page.get_by_role("link", name=re.compile(r"^20\d\d-\d\d$")).first.click()
    expect(visitor.main()).to_contain_text("Earned")
    expect(page.get_by_role("table").first).to_contain_text("bid:bid_paid")
    expect(page.get_by_role("table").last).to_contain_text("At the end")


def test_an_invited_member_bids_within_a_cap(
    owner: Visitor, market: Market, support_tone: bytes, new_context: Any
) -> None:
    page = owner.page
    owner.go("/settings/members")
    page.get_by_label("Mail address").fill("noor@example.com")
    page.get_by_role("button", name="Send the invitation").click()
    owner.confirm(market.password, before=page.get_by_text("noor@example.com as member"))
    expect(owner.main()).to_contain_text("noor@example.com")
    noor = Visitor(new_context().new_page(), market.url)
    noor.go("/accounts/signup/")
    noor.page.get_by_label("Email").fill("noor@example.com")
    for field in noor.page.locator("input[type=password]").all():
        field.fill("a long enough phrase")
    noor.page.get_by_role("button", name="Make an account").click()
    noor.go(_find_invitation(market))
    noor.page.get_by_role("button", name="Accept").click()
    owner.go("/settings/caps")
    page.get_by_label("Who").select_option(label="noor@example.com")
    page.get_by_label("At most").fill("0.50")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("table")).to_contain_text("$0.50")
    noor.go("/bids/new?fresh")
    noor.upload("member.jsonl", support_tone)
    expect(noor.page.locator("#q-price")).to_contain_text("$")
    noor.page.locator("#id_price").fill("0.60")
    noor.tell_limit()
    noor.page.get_by_role("button", name="Place bid").first.click()
    expect(noor.main()).to_contain_text("A cap of yours is $0.50 a day")
    noor.page.locator("#id_price").fill("0.40")
    noor.page.get_by_role("button", name="Place bid").first.click()
    expect(noor.page).to_have_url(re.compile("/bids/bid_"))
    # The refused bid is a 403, which the browser reports.
    assert [said for said in noor.complaints if "403" not in said] == []


def _find_invitation(market: Market) -> str:
    """The address in the mail, which a market without a mail server prints."""
    logs = "".join(path.read_text() for path in (market.house.data_dir / "logs").glob("web*.log"))
    return re.findall(r"/invitations/[\w-]+", logs)[-1]
