"""Earnings by line, node, job and day, payouts and statements: each organisation's own."""

from __future__ import annotations

from datetime import timedelta

import pytest
import time_machine
from django.test import Client

from marketplace.accounts.models import AuditEntry, Scope
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import WorkShare
from marketplace.jobs.models import Job
from marketplace.payments import payout_overview, payouts
from marketplace.payments.freezes import freeze_organisation
from marketplace.payments.models import Earning, PayoutAccount
from marketplace.payments.stripe_client import GatewayFault
from marketplace.web.forms import DEFAULT_SCOPES
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from tests.pages import read_download
from tests.unit.marketplace.api.client import Api, assert_problem, finish

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def now():
    with time_machine.travel(NOW, tick=False) as travel:
        yield travel


@pytest.fixture
def provider():
    return builders.provider_organisation()


@pytest.fixture
def api(provider):
    return Api(provider)


def earn(provider, reference, *, micros, days_ago=0.0):
    at = NOW - timedelta(days=days_ago)
    return Earning.objects.create(
        organisation=provider,
        kind="provider",
        reference=reference,
        amount_micros=micros,
        accrued_at=at,
        payable_at=at,
    )


def test_work_is_listed_by_node_and_job_in_pages():
    zone = market.zone()
    node = market.node(zone)
    api = Api(node.provider.organisation)
    jobs = []
    for _ in range(2):
        bid = market.bid(builders.organisation(usd="10"), zone, price_micros=4_321_000)
        decide_pending_bids(zone=zone, now=NOW)
        job = Job.objects.get(bid_id=bid.pk)
        finish(job.pk)
        jobs.append(job)
    first = api.get("/api/earnings/work?limit=1").json()
    [row] = first["data"]
    assert first["has_more"]
    share = WorkShare.objects.latest("pk")
    assert row == {
        "cursor": share.pk,
        "node_id": node.pk,
        "node": node.name,
        "job_id": jobs[1].pk,
        "settled_at": row["settled_at"],
        "steps": share.steps,
        "units": share.units,
        "earned": f"{share.earned_micros / 1e6:.6f}",
        "paid": f"{share.paid_micros / 1e6:.6f}",
    }
    rest = api.get(f"/api/earnings/work?after={row['cursor']}").json()
    assert [each["job_id"] for each in rest["data"]] == [jobs[0].pk]
    assert not rest["has_more"]
    for query, count in (
        (f"node_id={node.pk}", 2),
        (f"job_id={jobs[0].pk}", 1),
        ("node_id=node_x", 0),
        ("job_id=", 0),
    ):
        assert len(api.get(f"/api/earnings/work?{query}").json()["data"]) == count, query
    whole = api.get("/api/earnings/work").content.decode()
    assert "4.321" not in whole
    assert "bid_" not in whole
    assert Api(builders.organisation()).get("/api/earnings/work").json()["data"] == []
    assert_problem(api.get("/api/earnings/work?after=x"), 400, "invalid_cursor")


def test_days_are_whole_and_come_in_pages_without_a_gap(api, provider):
    earn(provider, "one", micros=3)
    earn(provider, "two", micros=4, days_ago=9.1 / 24)
    earn(provider, "three", micros=5, days_ago=3)
    other = builders.provider_organisation()
    earn(other, "four", micros=1_000_000)
    page = api.get("/api/earnings/days?limit=2").json()
    assert page == {
        "data": [
            {"day": "2026-03-02", "amount": "0.000003", "lines": 1},
            {"day": "2026-03-01", "amount": "0.000004", "lines": 1},
        ],
        "has_more": True,
    }
    page = api.get("/api/earnings/days?limit=2&after=2026-03-01").json()
    assert page == {
        "data": [
            {"day": "2026-02-28", "amount": "0.000000", "lines": 0},
            {"day": "2026-02-27", "amount": "0.000005", "lines": 1},
        ],
        "has_more": False,
    }
    for day in ("", "yesterday", "10000-01-01"):
        answer = api.get(f"/api/earnings/days?after={day}")
        assert_problem(answer, 400, "invalid_cursor")
    # Before there was a market nothing was earned.
    first = api.get("/api/earnings/days?limit=1&after=0001-01-01").json()
    assert first == {
        "data": [{"day": "2019-12-31", "amount": "0.000000", "lines": 0}],
        "has_more": False,
    }
    assert len(api.get("/api/earnings/days?after=9999-12-31&limit=1").json()["data"]) == 1


def test_a_months_statement_is_what_was_earned_and_paid_in_it(api, provider):
    earn(provider, "one", micros=3)
    earn(provider, "two", micros=4, days_ago=2)
    shown = api.get("/api/payouts/statements/2026-03").json()
    assert (shown["month"], shown["earned"], shown["paid"]) == ("2026-03", "0.000003", "0.000000")
    assert [line["amount"] for line in shown["earnings"]] == ["0.000003"]
    assert (shown["payouts"], shown["accounts"]) == ([], [])
    csv = read_download(api.get("/api/payouts/statements/2026-02/csv")).decode().splitlines()
    assert len(csv) == 2
    assert ",two,0.000004," in csv[1]
    assert api.get("/api/payouts").json() == {"data": [], "has_more": False}
    for path in ("2026-13", "now", "now/csv"):
        assert_problem(api.get(f"/api/payouts/statements/{path}"), 404, "unknown_month")
    stranger = Api(builders.organisation())
    assert stranger.get("/api/payouts/statements/2026-03").json()["earnings"] == []


def test_the_account_says_what_is_missing_and_what_waits(api, provider, cards):
    shown = api.get("/api/payouts/account").json()
    assert (shown["is_set_up"], shown["is_ready"], shown["needs"], shown["currency"]) == (
        False,
        False,
        [],
        None,
    )
    assert (shown["is_offered"], shown["frozen"], shown["payable"]) == (True, [], "0.000000")
    link = api.post("/api/payouts/account")
    assert link.status_code == 200
    assert link.json()["url"].startswith(cards.url)
    account = PayoutAccount.objects.get()
    assert account.organisation == provider
    entry = AuditEntry.objects.latest("pk")
    assert (entry.act, entry.done) == ("POST /api/payouts/account", True)
    assert link.json()["url"] not in str(entry.details)
    freeze_organisation(organisation_id=provider.pk, reference="x", reason="A chargeback.", now=NOW)
    shown = api.get("/api/payouts/account").json()
    assert (shown["is_set_up"], shown["frozen"]) == (True, ["A chargeback."])


def test_a_gateway_that_is_silent_is_said_so(api, provider, monkeypatch):
    def fail(*_, **__):
        raise GatewayFault("down", is_kept=False)

    PayoutAccount.objects.create(organisation=provider, gateway_id="acct_1", made_at=NOW)
    monkeypatch.setattr(payouts.stripe_accounts, "create_onboarding_link", fail)
    monkeypatch.setattr(payout_overview, "refresh_payout_account", fail)
    assert_problem(api.post("/api/payouts/account"), 503, "gateway_unavailable")
    assert api.get("/api/payouts/account").json()["is_set_up"] is True


def test_who_is_paid_is_said_with_a_scope_of_its_own_and_a_session_is_asked_again(
    provider, settings
):
    settings.ACCOUNT_REAUTHENTICATION_REQUIRED = True
    assert Scope.PAYOUTS_WRITE not in DEFAULT_SCOPES
    usual = Api(provider, scopes=[str(scope) for scope in DEFAULT_SCOPES])
    assert_problem(usual.post("/api/payouts/account"), 403, "missing_scope")
    owner = Client(raise_request_exception=False)
    owner.force_login(builders.owner_of(provider))
    answer = owner.post("/api/payouts/account", headers={"Finetender-Organisation": provider.pk})
    assert_problem(answer, 403, "sign_in_again")
    assert not PayoutAccount.objects.exists()
