"""Rent against earnings, by job: the lines add up to the ledger, to the micro-dollar."""

from __future__ import annotations

from decimal import Decimal

import pytest
from django.test import Client

from marketplace.auction.settlement import settle_finished
from marketplace.jobs.models import Job
from marketplace.payments.models import AccountKind, Earning
from marketplace.payments.selectors import get_house_balances
from marketplace.tiers.machines import end_machine, reconcile_machines, request_machine
from marketplace.tiers.models import Machine, ZoneTiers
from marketplace.tiers.rent import IDLE, UNSETTLED, load_rent_report, write_rent_csv
from tests import builders, market_builders
from tests.builders import NOW
from tests.job_builders import at
from tests.pages import read_download, read_text
from tests.unit.marketplace.tiers.backends import CHEAP, MemoryBackend
from tests.unit.marketplace.tiers.handoff import job_left, tick
from workers.protocol.reports import SliceEnd

pytestmark = pytest.mark.django_db

MONTH = f"{NOW:%Y-%m}"


def _give_all_back(*, seconds: float) -> None:
    for machine in Machine.objects.filter(ended_at=None):
        end_machine(machine=machine, reason="done", now=at(seconds))
    for _ in range(2):
        reconcile_machines(now=at(seconds))


def test_a_job_bears_the_rent_of_the_machines_that_did_its_work(
    job: Job, house: ZoneTiers, backend: MemoryBackend, client: Client
) -> None:
    job_left(job, backend)
    tick(43)
    market_builders.end_slice(job, status=SliceEnd.FINISHED, now=at(44))
    idle = request_machine(tiers=house, offer=CHEAP, reason="spare", now=at(45))
    tick(46)
    _give_all_back(seconds=400)
    unsettled = load_rent_report(month=MONTH)
    rent = sum(Machine.objects.values_list("cost_micros", flat=True))
    idle.refresh_from_db()
    assert {line.text: line.rent_micros for line in unsettled.lines} == {
        UNSETTLED: rent - idle.cost_micros,
        IDLE: idle.cost_micros,
    }
    assert settle_finished(now=at(401)) == 1
    report = load_rent_report(month=MONTH)
    earned = sum(
        Earning.objects.filter(organisation=house.provider.organisation).values_list(
            "amount_micros", flat=True
        )
    )
    assert earned > 0
    assert [
        (line.bid_id, line.text, line.rent_micros, line.earned_micros) for line in report.lines
    ] == [
        (job.bid_id, "a job", rent - idle.cost_micros, earned),
        ("", IDLE, idle.cost_micros, 0),
    ]
    assert (report.rent_micros, report.earned_micros) == (rent, earned)
    assert get_house_balances()[AccountKind.RENT] == -rent
    *lines, total = [line.split(",") for line in write_rent_csv(report)][1:]
    for column in (2, 3, 4):
        assert sum(Decimal(line[column]) for line in lines) == Decimal(total[column])
    assert Decimal(total[4]) == Decimal(earned - rent) / 1_000_000
    client.force_login(builders.operator())
    page = read_text(client.get(f"/operator/money/rent/{MONTH}"))
    assert "a job" in page
    assert IDLE in page
    csv = read_download(client.get(f"/operator/money/rent/{MONTH}/csv")).decode()
    assert csv.splitlines()[-1].startswith(",Total,")


def test_a_month_without_rent_is_empty_and_no_one_else_sees_it(client: Client) -> None:
    owner = builders.organisation()
    client.force_login(builders.owner_of(owner))
    assert client.get("/operator/money/rent").status_code in (302, 403, 404)
    client.force_login(builders.operator())
    assert "No rent was booked" in read_text(client.get("/operator/money/rent/2020-01"))
    for month in ("2020-13", "nonsense", "0000-01"):
        assert client.get(f"/operator/money/rent/{month}").status_code == 404
