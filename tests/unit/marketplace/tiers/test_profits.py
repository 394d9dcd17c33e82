"""Profit and loss by zone and month: each sum is one of postings, and nothing is left out."""

from __future__ import annotations

import csv
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client

from marketplace.auction.settlement import settle_finished
from marketplace.fleet.models import Zone
from marketplace.payments.invoices import issue_due_invoices
from marketplace.payments.models import AccountKind
from marketplace.payments.seals import seal_ledger
from marketplace.payments.selectors import get_house_balances
from marketplace.payments.services import record_rent
from marketplace.tiers.models import ProfitCursor, ProfitSum
from marketplace.tiers.profits import (
    NO_ZONE,
    ProfitReport,
    list_profit_months,
    load_profit_report,
    sum_profits,
    write_profit_csv,
)
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from tests.pages import read_amounts, read_download, read_text
from tests.unit.marketplace.auction.test_settlement import end_late, run, sold
from workers.protocol.reports import SliceEnd

pytestmark = pytest.mark.django_db

MONTH = f"{NOW:%Y-%m}"
NEXT = NOW + timedelta(days=40)
#: The house's own accounts; what it owes to others is on the rest.
OWN = (
    AccountKind.HOUSE_FEES,
    AccountKind.REVENUE,
    AccountKind.REFUNDS,
    AccountKind.SLA_CREDITS,
    AccountKind.GATEWAY_FEES,
    AccountKind.RENT,
    AccountKind.CHARGEBACKS,
    AccountKind.GRANTS,
)


def _sell(*zones: Zone, is_late: bool = False) -> list[int]:
    """Sell one job in each and settle it; their prices."""
    made = []
    for zone in zones:
        market.node(zone)
        made.append(sold(builders.organisation(usd="10"), zone, epochs=3, slots=3))
    run(made[0][1], zones[0], 101, 102, 103)
    now = market.slot_at(zones[0], 103)
    for (_, job), zone in zip(made, zones, strict=True):
        if is_late:
            now = end_late(job, zone)
        else:
            market.end_slice(job, status=SliceEnd.FINISHED, now=now)
    assert settle_finished(now=now) == len(zones)
    return [bid.payment_micros or 0 for bid, _ in made]


def _read(report: ProfitReport) -> dict[tuple[str, str], int]:
    return {
        (zone, line.text): amount
        for line in (*report.lines, report.total)
        for zone, amount in zip(report.zones, line.amounts_micros, strict=True)
        if amount
    }


@pytest.fixture
def zones(settings: Any) -> tuple[Zone, Zone]:
    settings.TAX_RATES, settings.SELLER_COUNTRY = {"DE": 19_000}, "DE"
    return market.zone(name="a-zone", settings={"fee_per_unit": 7.25}), market.zone(name="b-zone")


def test_every_line_is_the_sum_of_its_postings(zones: tuple[Zone, Zone]) -> None:
    first, second = _sell(*zones)
    record_rent(machine_id="machine-unknown", amount_micros=70_000, now=NOW)
    issue_due_invoices(now=NEXT, name_references=lambda names: {name: name for name in names})
    balances = get_house_balances()
    now, later = (_read(load_profit_report(month=month)) for month in (MONTH, f"{NEXT:%Y-%m}"))
    fee = now["a-zone", "House fees for work that was done"]
    rest = "Congestion, and what is for cards and tax in prices"
    # In a zone without congestion the price is asks, fee and tax.
    assert now["a-zone", rest] == first - 300_000 - fee
    assert now["b-zone", rest] == second - 300_000
    assert now["b-zone", "Profit"] == second - 300_000
    assert now[NO_ZONE, "Rent of machines"] == -70_000
    assert later == {
        (NO_ZONE, "Tax on invoices"): -balances["taxes"],
        (NO_ZONE, "Profit"): -balances["taxes"],
    }
    profits = sum(amount for (_, text), amount in now.items() if text == "Profit")
    assert profits - balances["taxes"] == sum(balances[kind] for kind in OWN)
    # What the two sales brought pays their tax and leaves the house its fee.
    assert first + second - 600_000 - balances["taxes"] >= fee > 0


def test_a_late_job_that_is_no_ones_fault_is_a_loss_of_its_zone(zones: tuple[Zone, Zone]) -> None:
    _sell(zones[0], is_late=True)
    found = _read(load_profit_report(month=MONTH))
    credits_micros = get_house_balances()[AccountKind.SLA_CREDITS]
    assert found.get(("a-zone", "Credits for missed deadlines"), 0) == credits_micros
    assert ("b-zone", "Profit") not in found


def test_page_and_csv_show_the_same_sums(zones: tuple[Zone, Zone], client: Client) -> None:
    _sell(zones[0])
    report = load_profit_report(month=MONTH)
    rows = list(csv.DictReader(write_profit_csv(report)))
    for zone in report.zones:
        amounts = [Decimal(row["usd"]) for row in rows if row["zone"] == zone]
        assert sum(amounts[:-1]) == amounts[-1]
    client.force_login(builders.operator())
    reply = client.get(f"/operator/money/profit/{MONTH}")
    assert "House fees for work that was done" in read_text(reply)
    # As they are read, each line adds up to its last column, and all lines to the last one.
    *lines, profit = read_amounts(reply)
    assert all(sum(zones) == total for *zones, total in (*lines, profit))
    assert [sum(column) for column in zip(*lines, strict=True)] == profit
    assert sum(profit) != 0
    sent = read_download(client.get(f"/operator/money/profit/{MONTH}/csv")).decode()
    assert sent == "".join(f"{line}\n" for line in write_profit_csv(report))
    assert "gained and lost nothing" in read_text(client.get("/operator/money/profit/2020-01"))
    assert client.get("/operator/money/profit/2020-13").status_code == 404


def test_what_is_summed_once_is_what_the_postings_say(zones: tuple[Zone, Zone]) -> None:
    _sell(*zones)
    record_rent(machine_id="machine-1", amount_micros=70_000, now=NOW)
    seal_ledger(now=NOW)
    assert (sum_profits(), sum_profits()) == (1, 0)
    # One month has sums and a seal beyond them, the other has entries that no seal covers.
    record_rent(machine_id="machine-2", amount_micros=5_000, now=NOW)
    seal_ledger(now=NOW)
    record_rent(machine_id="machine-3", amount_micros=3_000, now=NEXT)
    months = list_profit_months()
    assert months == [f"{NEXT:%Y-%m}", MONTH]
    found = [_read(load_profit_report(month=month)) for month in months]
    assert found[0] == {
        (NO_ZONE, "Rent of machines"): -3_000,
        (NO_ZONE, "Profit"): -3_000,
    }
    assert found[1][NO_ZONE, "Rent of machines"] == -75_000
    assert sum_profits() == 1
    again = [_read(load_profit_report(month=month)) for month in months]
    ProfitSum.objects.all().delete()
    ProfitCursor.objects.all().delete()
    # From all postings.
    assert again == found == [_read(load_profit_report(month=month)) for month in months]


def test_no_one_but_an_operator_sees_it(client: Client) -> None:
    client.force_login(builders.owner_of(builders.organisation()))
    assert client.get("/operator/money/profit").status_code in (302, 403, 404)
