"""Paying by card on the pages: top-ups, the card of a bid, and webhooks over HTTP."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from django.test import Client

from marketplace.auction.bidding.card_bids import place_authorised_bids
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Bid
from marketplace.auction.pausing import pause_sold_job
from marketplace.auction.settlement import settle_finished
from marketplace.common import clock
from marketplace.jobs.models import Job
from marketplace.payments.card_payments import refresh_payment
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.models import (
    CardPayment,
    Hold,
    SavedCard,
    WebhookEvent,
)
from marketplace.payments.selectors import Wallet, get_wallet
from marketplace.payments.webhooks import receive_webhook
from marketplace.web.views import payments
from tests import builders
from tests.builders import NOW
from tests.durable_work import apply_events, make_calls
from tests.pages import read_page
from tests.stand_in import GatewayControl
from tests.unit.marketplace.web.conftest import Site

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def lane() -> Any:
    """Bids are decided while the page waits, by the zone's lane as ever."""

    def decide(*, bid: Bid) -> Bid:
        decide_pending_bids(zone=bid.zone, now=clock.now(), limit=10)
        bid.refresh_from_db()
        return bid

    with patch.object(payments, "wait_for_bid", decide):
        yield


def _start(site: Site, **changed: Any) -> CardPayment:
    form = {"usd": "20", "key": "one", "card": "new"} | changed
    reply = site.client.post("/wallet/top-up", form)
    payment = CardPayment.objects.latest("created_at")
    assert reply.headers["Location"] == f"/wallet/payments/{payment.pk}"
    return payment


def _confirm(cards: GatewayControl, page: Any, card: str = "pm_card_visa") -> Any:
    """What the page's script sends to the gateway."""
    secret = page.context["setup"]["client_secret"]
    return cards.confirm(secret.split("_secret_")[0], secret, card)


def test_without_a_gateway_the_wallet_takes_no_cards(site: Site, settings: Any) -> None:
    settings.STRIPE_SECRET_KEY = ""
    assert "Top up by card" not in read_page(site.client.get("/wallet"))
    assert "A card, for this bid" not in read_page(site.client.get("/bids/new"))


def test_a_top_up_ends_with_a_receipt_and_the_money_in_the_wallet(
    site: Site, cards: GatewayControl
) -> None:
    payment = _start(site, save="1")
    address = f"/wallet/payments/{payment.pk}"
    page = site.client.get(address)
    assert "Test money. No card is charged." in read_page(page)
    assert f"connect-src 'self' {cards.url}" in page.headers["Content-Security-Policy"]
    declined = _confirm(cards, page, "pm_card_chargeDeclined")
    assert declined["error"]["code"] == "card_declined"
    assert "Your card was declined." in read_page(site.client.get(address))
    _confirm(cards, page)
    for _ in range(2):
        text = read_page(site.client.get(address))
    assert "<dt>Paid</dt><dd>$20.00</dd>" in text
    assert "Visa 4242" in text
    assert get_wallet(organisation=site.organisation).available_micros == 120_000_000
    assert "Visa ending in 4242" in read_page(site.client.get("/wallet"))


def test_the_bank_of_a_card_asks_on_its_own_page(site: Site, cards: GatewayControl) -> None:
    payment = _start(site)
    page = site.client.get(f"/wallet/payments/{payment.pk}")
    _confirm(cards, page, "pm_card_authenticationRequired")
    asked = site.client.get(f"/wallet/payments/{payment.pk}")
    assert "Go to your bank" in read_page(asked)
    assert asked.context["action_url"].startswith(f"{cards.url}/confirm/pi_")


def test_while_the_gateway_is_down_the_page_says_so_and_loses_nothing(
    site: Site, cards: GatewayControl
) -> None:
    cards.control("fail", when="before", times=9)
    payment = _start(site)
    page = site.client.get(f"/wallet/payments/{payment.pk}")
    assert "The payment service does not answer" in read_page(page)
    assert page.headers["Refresh"] == "2"
    assert get_wallet(organisation=site.organisation).available_micros == 100_000_000


@pytest.mark.parametrize("pays_for", ["wallet", "bid"])
def test_an_answer_that_comes_while_the_page_is_made_does_not_end_it(
    site: Site, cards: GatewayControl, pays_for: str
) -> None:
    with patch.object(payments, "make_payment_intent"):
        payment = _start(site) if pays_for == "wallet" else _start_bid(site)

    def answer_late(*, payment: CardPayment, now: Any) -> Any:
        read = refresh_payment(payment=payment, now=now)
        make_calls(now=now)
        return read

    address = f"/wallet/payments/{payment.pk}"
    with patch.object(payments, "refresh_payment", answer_late):
        page = site.client.get(address)
    assert "This page goes on by itself." in read_page(page)
    assert page.headers["Refresh"] == "2"
    assert "Nothing is taken" not in read_page(page)
    assert site.client.get(address).context["wants_card"]


@pytest.mark.parametrize("usd", ["0", "-5", "0.49", "1e9", "nan", "1.005", "", "1000000"])
def test_amounts_that_no_card_pays_are_refused_in_words(
    site: Site, cards: GatewayControl, usd: str
) -> None:
    reply = site.client.post("/wallet/top-up", {"usd": usd, "key": "one"}, follow=True)
    assert reply.redirect_chain == [("/wallet", 302)]
    assert not CardPayment.objects.exists()


def test_objects_of_another_organisation_are_not_there(
    site: Site, cards: GatewayControl, client: Client
) -> None:
    payment = _start(site, save="1")
    _confirm(cards, site.client.get(f"/wallet/payments/{payment.pk}"))
    site.client.get(f"/wallet/payments/{payment.pk}")
    card = SavedCard.objects.get()
    other = Client()
    other.force_login(builders.user())
    for method, address in (
        ("get", f"/wallet/payments/{payment.pk}"),
        ("post", f"/wallet/payments/{payment.pk}/give-up"),
        ("post", f"/wallet/payments/{payment.pk}/back"),
        ("post", f"/wallet/cards/{card.pk}/remove"),
    ):
        assert getattr(other, method)(address).status_code == 404, address
    reply = other.post("/wallet/top-up", {"usd": "5", "key": "two", "card": card.pk}, follow=True)
    assert "There is no such card" in read_page(reply)
    assert CardPayment.objects.count() == 1


def _start_bid(site: Site, **changed: Any) -> CardPayment:
    reply = site.client.post("/bids/new", site.bid_form(pay="card", **changed))
    payment = CardPayment.objects.get()
    assert reply.headers["Location"] == f"/wallet/payments/{payment.pk}"
    assert not Bid.objects.exists()
    return payment


def _bid_by_card(site: Site, cards: GatewayControl, **changed: Any) -> CardPayment:
    payment = _start_bid(site, **changed)
    _confirm(cards, site.client.get(f"/wallet/payments/{payment.pk}"))
    return payment


def test_a_bid_by_card_is_placed_once_authorised_and_captures_its_price(
    site: Site, cards: GatewayControl
) -> None:
    payment = _bid_by_card(site, cards)
    before = get_wallet(organisation=site.organisation)
    for _ in range(2):
        reply = site.client.get(f"/wallet/payments/{payment.pk}")
        bid = Bid.objects.get()
        assert reply.headers["Location"] == f"/bids/{bid.pk}"
    assert bid.status == "admitted"
    assert bid.payment_micros is not None
    make_calls(now=NOW)
    payment.refresh_from_db()
    assert payment.status == "paid"
    # The gateway takes 50 cents at least; what is beyond the price is the wallet's.
    assert payment.received_micros == max(bid.payment_micros, 500_000)
    after = get_wallet(organisation=site.organisation)
    rest = payment.received_micros - bid.payment_micros
    assert after.available_micros == before.available_micros + rest
    assert check_ledger().balanced


def test_a_refused_bid_by_card_takes_nothing(site: Site, cards: GatewayControl) -> None:
    payment = _bid_by_card(site, cards, price="0.50", epochs="10")
    site.client.get(f"/wallet/payments/{payment.pk}")
    assert Bid.objects.get().status == "refused"
    make_calls(now=NOW)
    payment.refresh_from_db()
    assert (payment.status, payment.received_cents) == ("cancelled", 0)


def test_a_bid_whose_page_nobody_came_back_to_is_placed_all_the_same(
    site: Site, cards: GatewayControl
) -> None:
    payment = _bid_by_card(site, cards)
    for body, signature in cards.take_webhooks():
        reply = Client().post(
            "/webhooks/stripe",
            body,
            content_type="application/json",
            headers={"stripe-signature": signature},
        )
        assert reply.status_code == 200
    apply_events(now=clock.now())
    payment.refresh_from_db()
    assert payment.status == "authorised"
    for _ in range(2):
        place_authorised_bids(now=clock.now())
    assert Bid.objects.get().status == "pending"
    assert Hold.objects.get().card_payment_id == payment.pk


def test_a_bid_that_cannot_be_placed_any_more_gives_its_amount_back(
    site: Site, cards: GatewayControl
) -> None:
    payment = _bid_by_card(site, cards)
    later = clock.now().replace(hour=23)
    refresh_payment(payment=payment, now=NOW)
    place_authorised_bids(now=later)
    payment.refresh_from_db()
    assert not Bid.objects.exists()
    assert payment.failure != ""
    make_calls(now=later)
    payment.refresh_from_db()
    assert payment.status == "cancelled"
    assert payment.failure in read_page(site.client.get(f"/wallet/payments/{payment.pk}"))


def _resume_by_card(site: Site, cards: GatewayControl, job: Job, **changed: Any) -> CardPayment:
    page = site.client.get(f"/jobs/{job.pk}/resume")
    assert "A card, for this bid" in read_page(page)
    form = page.context["form"].data | {"do": "place", "pay": "card", "card": "new"} | changed
    reply = site.client.post(f"/jobs/{job.pk}/resume", form)
    address = reply.headers["Location"]
    _confirm(cards, site.client.get(address))
    return CardPayment.objects.get(pk=address.removeprefix("/wallet/payments/"))


@pytest.fixture
def paused(site: Site) -> Job:
    site.client.post("/bids/new", site.bid_form())
    job = Job.objects.get()
    pause_sold_job(job=job, paused_by=None, now=NOW)
    settle_finished(now=NOW)
    job.refresh_from_db()
    return job


def test_a_card_pays_for_the_rest_of_a_paused_job(
    site: Site, cards: GatewayControl, paused: Job
) -> None:
    payment = _resume_by_card(site, cards, paused)
    assert Bid.objects.count() == 1
    before = get_wallet(organisation=site.organisation)
    for _ in range(2):
        reply = site.client.get(f"/wallet/payments/{payment.pk}")
        rest = Bid.objects.get(resumed_job_id=paused.pk)
        assert reply.headers["Location"] == f"/bids/{rest.pk}"
    assert rest.status == "admitted"
    assert Hold.objects.get(reference=rest.hold_reference).card_payment_id == payment.pk
    assert Job.objects.get(bid_id=rest.pk).terms.resumes is not None
    make_calls(now=NOW)
    payment.refresh_from_db()
    assert payment.status == "paid"
    after = get_wallet(organisation=site.organisation)
    change = payment.received_micros - (rest.payment_micros or 0)
    assert after.available_micros == before.available_micros + change
    assert check_ledger().balanced


def test_of_two_cards_for_one_rest_the_second_gets_its_amount_back(
    site: Site, cards: GatewayControl, paused: Job
) -> None:
    first, second = (_resume_by_card(site, cards, paused, key=key) for key in ("a", "b"))
    for payment in (first, second):
        site.client.get(f"/wallet/payments/{payment.pk}")
    rest = Bid.objects.get(resumed_job_id=paused.pk)
    assert Hold.objects.get(reference=rest.hold_reference).card_payment_id == first.pk
    make_calls(now=NOW)
    second.refresh_from_db()
    assert (second.status, second.received_cents) == ("cancelled", 0)
    assert second.failure.startswith(f"Another bid of yours goes on with {paused.pk}.")
    assert check_ledger().balanced


def test_below_the_least_of_card_networks_the_page_offers_the_wallet(
    site: Site, cards: GatewayControl
) -> None:
    reply = site.client.post("/bids/new", site.bid_form(pay="card", price="0.49"))
    assert "Cards pay $0.50 or more. Use the wallet for less." in read_page(reply)
    assert not CardPayment.objects.exists()


def test_the_same_form_by_card_and_by_wallet_is_one_bid(site: Site, cards: GatewayControl) -> None:
    payment = _bid_by_card(site, cards)
    with patch.object(payments, "wait_for_bid", lambda *, bid: bid):
        site.client.post("/bids/new", site.bid_form())
    site.client.get(f"/wallet/payments/{payment.pk}")
    assert Bid.objects.count() == Hold.objects.count() == 1
    assert Hold.objects.get().card_payment_id is None
    make_calls(now=NOW)
    payment.refresh_from_db()
    assert payment.status == "cancelled"


def test_forged_and_oversized_webhooks_are_refused_without_a_trace(cards: GatewayControl) -> None:
    client = Client(enforce_csrf_checks=True)
    for signature in ("", "t=1,v1=00"):
        reply = client.post(
            "/webhooks/stripe",
            b'{"id": "evt_1", "type": "payment_intent.succeeded"}',
            content_type="application/json",
            headers={"stripe-signature": signature},
        )
        assert (reply.status_code, reply.content) == (400, b"invalid_signature")
    big = client.post("/webhooks/stripe", b"x" * 600_000, content_type="application/json")
    assert big.status_code == 413
    assert not WebhookEvent.objects.exists()


def test_a_frozen_organisation_sees_why(site: Site, cards: GatewayControl) -> None:
    payment = _start(site)
    page = site.client.get(f"/wallet/payments/{payment.pk}")
    _confirm(cards, page, "pm_card_createDispute")
    site.client.get(f"/wallet/payments/{payment.pk}")
    for body, signature in cards.take_webhooks():
        receive_webhook(body=body.encode(), signature=signature, now=clock.now())
    apply_events(now=clock.now())
    for address in ("/wallet", "/bids/new"):
        assert "A card payment of $20.00 is contested" in read_page(site.client.get(address))
    reply = site.client.post("/bids/new", site.bid_form())
    assert "New bids are refused" in read_page(reply)
    assert get_wallet(organisation=site.organisation) == Wallet(120_000_000, 0)
