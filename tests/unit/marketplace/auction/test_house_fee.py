"""The house's fee on its way from a zone's setting to the account that it is earned in."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from marketplace.auction.book.verify import verify_zone
from marketplace.auction.models import Bid, LogEntry
from marketplace.auction.settlement import settle_finished
from marketplace.fleet.services import set_policy_settings
from marketplace.jobs.models import Job
from marketplace.jobs.services import cancel_job
from marketplace.payments.invoices import issue_due_invoices
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.selectors import get_earnings, get_house_balances, get_wallet
from marketplace.web.presenters.receipt import build_receipt
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from tests.unit.marketplace.auction.test_settlement import run, sold
from workers.protocol.reports import Fault, SliceEnd

pytestmark = pytest.mark.django_db

FEE_PER_UNIT = 7.25
ASKS = 300_000


@pytest.fixture
def zone():
    return market.zone(settings={"fee_per_unit": FEE_PER_UNIT})


@pytest.fixture
def owner():
    return builders.organisation(usd="10")


def settle(job: Job, bid: Bid, now: datetime) -> None:
    assert settle_finished(now=now) == 1
    bid.refresh_from_db()
    job.refresh_from_db()
    check = check_ledger()
    assert check.balanced, check


def find_fee(bid: Bid) -> float:
    fee = FEE_PER_UNIT * bid.compute_demand
    assert fee > 1
    return fee


def test_a_job_that_is_done_pays_its_node_the_ask_and_the_house_its_fee(zone, owner):
    node = market.node(zone)
    bid, job = sold(owner, zone, epochs=3)
    fee = find_fee(bid)
    assert bid.parts["fee"] == fee
    assert bid.payment_micros == ASKS + -(-fee // 1)
    run(job, zone, 101, 102, 103)
    now = market.slot_at(zone, 103)
    market.end_slice(job, status=SliceEnd.FINISHED, now=now)
    settle(job, bid, now)
    balances = get_house_balances()
    assert balances["house_fees"] == fee // 1
    assert balances["house_fees"] + balances["revenue"] == -(-fee // 1)
    assert get_earnings(organisation=node.provider.organisation).pending_micros == ASKS
    assert verify_zone(zone).problems == []


def test_work_that_was_not_done_gives_back_its_part_of_the_fee(zone, owner):
    node = market.node(zone)
    training = market.job_terms(epochs=3, early_stopping=1, eval_every_steps=4)["training"]
    bid, job = sold(owner, zone, training=training)
    fee = find_fee(bid) // 1
    run(job, zone, 101)
    now = market.slot_at(zone, 101)
    market.end_slice(
        job, status=SliceEnd.FINISHED, step=12, now=now, stopped_early=True, best_step=8
    )
    settle(job, bid, now)
    # A third of the steps were done; 98 % of what was paid for the others goes back.
    assert bid.refund_micros == int(ASKS + -(-find_fee(bid) // 1)) * 2 // 3 * 98 // 100
    assert get_house_balances()["house_fees"] == fee // 3
    assert get_earnings(organisation=node.provider.organisation).pending_micros == ASKS // 3
    assert get_wallet(organisation=owner).available_micros == 10_000_000 - bid.paid_micros


def test_a_job_that_is_cancelled_before_it_begins_pays_no_fee(zone, owner):
    market.node(zone)
    bid, job = sold(owner, zone, epochs=3)
    now = market.slot_at(zone, 100)
    cancel_job(job=job, cancelled_by=None, now=now)
    settle(job, bid, now)
    assert bid.refund_micros == bid.payment_micros * 98 // 100
    assert get_house_balances()["house_fees"] == 0


def test_a_job_that_the_house_fails_earns_it_nothing(zone, owner):
    market.node(zone)
    bid, job = sold(owner, zone, epochs=3)
    run(job, zone, 101)
    Job.objects.filter(pk=job.pk).update(system_faults=4)
    now = market.slot_at(zone, 101)
    market.end_slice(job, status=SliceEnd.FAILED, step=6, now=now, fault=Fault.SYSTEM)
    settle(job, bid, now)
    assert bid.refund_micros == bid.payment_micros
    assert get_house_balances()["house_fees"] == 0


def test_the_receipt_names_the_fee_and_who_got_it(zone, owner):
    market.node(zone)
    bid, job = sold(owner, zone, epochs=3)
    run(job, zone, 101, 102, 103)
    now = market.slot_at(zone, 103)
    market.end_slice(job, status=SliceEnd.FINISHED, now=now)
    settle(job, bid, now)
    receipt = build_receipt(bid, job=job)
    lines = {line.label: line.micros for line in receipt.lines}
    assert sum(lines.values()) == bid.payment_micros
    assert abs(lines["House fee"] - find_fee(bid)) < 1
    fees = [micros for who, what, micros in receipt.payees if what.startswith("its fee")]
    assert fees == [find_fee(bid) // 1]
    assert sum(micros for _, _, micros in receipt.payees) == bid.payment_micros


def test_a_new_fee_is_in_the_log_before_the_next_bid_and_not_for_sold_jobs(owner):
    zone = market.zone()
    market.node(zone)
    first, _ = sold(owner, zone, epochs=3)
    set_policy_settings(zone=zone, settings={"fee_per_unit": FEE_PER_UNIT}, now=NOW)
    zone.refresh_from_db()
    second, _ = sold(owner, zone, epochs=3)
    first.refresh_from_db()
    assert first.payment_micros == ASKS
    assert second.payment_micros == ASKS + -(-find_fee(second) // 1)
    changed = LogEntry.objects.get(zone=zone, kind="RulesChanged")
    assert f'"fee_per_unit":{FEE_PER_UNIT}' in changed.event
    assert verify_zone(zone).problems == []


def test_prices_hold_the_tax_and_the_card_payment_that_they_cost(owner, settings):
    settings.TAX_RATES, settings.SELLER_COUNTRY = {"DE": 19_000, "FR": 20_000}, "DE"
    settings.CARD_FEE_SHARE, settings.CARD_FEE_CENTS = 0.029, 30
    zone = market.zone()
    node = market.node(zone)
    bid, job = sold(owner, zone, epochs=3)
    # 300,000 for the node, 8.9 % for a card payment of $5, and a sixth of the price as tax.
    assert bid.payment_micros == 403_047
    assert (bid.parts["card"], bid.parts["tax"]) == (35_872, 67_175)
    run(job, zone, 101, 102, 103)
    now = market.slot_at(zone, 103)
    market.end_slice(job, status=SliceEnd.FINISHED, now=now)
    settle(job, bid, now)
    assert get_earnings(organisation=node.provider.organisation).pending_micros == ASKS
    next_month = now + timedelta(days=40)
    assert (
        issue_due_invoices(
            now=next_month, name_references=lambda names: {name: name for name in names}
        )
        == 1
    )
    balances = get_house_balances()
    assert balances["taxes"] == round(403_047 * 19 / 119)
    # What is left pays for the card, and for the buyer's lower rate.
    assert balances["revenue"] == 403_047 - ASKS - balances["taxes"]
    assert balances["revenue"] > 0.089 * 403_047
    assert verify_zone(zone).problems == []
