"""Pages of vendors, of the operator who approves them, and of the owner whose data they prepare."""

from __future__ import annotations

import json
from typing import Any

import pytest
import time_machine
from django.test import Client

from marketplace.accounts.models import Organisation
from marketplace.auction.preparations import conclude_preparations
from marketplace.common.durable.kinds import get_kinds
from marketplace.common.durable.run import run_due_work
from marketplace.common.durable.services import NewWork, enqueue_work
from marketplace.jobs.models import Dataset
from marketplace.jobs.services.readings import INSPECT
from marketplace.payments.selectors import get_earnings
from marketplace.vendors.models import (
    DataReport,
    Dispute,
    PreparationStatus,
    RowState,
    Vendor,
    VendorKind,
    WorkRow,
)
from tests import builders
from tests import market_builders as market
from tests import vendor_builders as build
from tests.builders import NOW
from tests.pages import read_download, read_page
from tests.vendor_builders import chat, clock, prepare_next

pytestmark = pytest.mark.django_db

SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(autouse=True)
def _at_now():
    with time_machine.travel(NOW, tick=False):
        yield


@pytest.fixture
def zone():
    made = build.zone()
    market.node(made)
    return made


@pytest.fixture
def owner() -> Organisation:
    return builders.organisation(usd="10")


def browser_of(organisation: Organisation) -> Client:
    client = Client()
    client.force_login(builders.owner_of(organisation))
    return client


@pytest.fixture
def operator() -> Client:
    client = Client()
    client.force_login(builders.operator())
    return client


def terms(zone: Any, **changed: Any) -> dict[str, Any]:
    return {
        "name": "Careful hands",
        "kind": "human",
        "skills": ["format_repair", "labelling"],
        "minimum": "0.02",
        "per_1000_rows": "1.50",
        "per_1000_tokens": "0",
        "base_s": "15",
        "s_per_1000_rows": "0",
        "days": ["0", "1", "2", "3", "4", "5", "6"],
        "from_hour": "0",
        "to_hour": "24",
        "late_percent": "20",
        "endpoint": "",
        f"rows_{zone.pk}": "100",
    } | changed


def test_an_organisation_lists_itself_and_gets_work_once_approved(zone, operator):
    team = builders.organisation(name="Careful Ltd")
    client = browser_of(team)
    text = read_page(client.post("/vendor/new", terms(zone), follow=True))
    assert "Waits for approval" in text
    vendor = Vendor.objects.get()
    assert (vendor.organisation, vendor.minimum_micros, vendor.micros_per_1000_rows) == (
        team,
        20_000,
        1_500_000,
    )
    assert vendor.listings.get().rows_per_slot == 100
    operator.post(f"/operator/vendors/{vendor.pk}", {"do": "approve"})
    vendor.refresh_from_db()
    assert vendor.approved_at == NOW
    # Other prices need no leave; another kind, which lets the data out, does.
    client.post(f"/vendor/{vendor.pk}", terms(zone, minimum="0.03"))
    vendor.refresh_from_db()
    assert (vendor.minimum_micros, vendor.approved_at) == (30_000, NOW)
    client.post(f"/vendor/{vendor.pk}", terms(zone, kind="outside"))
    vendor.refresh_from_db()
    assert (vendor.kind, vendor.approved_at) == (VendorKind.OUTSIDE, None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "automatic"},
        {"skills": ["magic"]},
        {"minimum": "-1"},
        {"from_hour": "9", "to_hour": "9"},
        {"late_percent": "101"},
        {"endpoint": "http://example.org/quotes"},
        {"endpoint": "https://user:password@example.org/"},
        {"name": " "},
    ],
)
def test_terms_that_nobody_can_mean_are_refused_and_leave_no_trace(zone, wrong):
    reply = browser_of(builders.organisation()).post("/vendor/new", terms(zone, **wrong))
    assert "hint bad" in read_page(reply) or 'role="alert"' in read_page(reply)
    assert not Vendor.objects.exists()


def test_strangers_see_and_change_nothing(zone, owner, operator):
    vendor = build.vendor(zone, "Team", kind=VendorKind.HUMAN)
    work = build.sell_few(owner, zone)
    for client in (browser_of(builders.organisation()), browser_of(owner)):
        for path in (f"/vendor/{vendor.pk}", f"/vendor/preparations/{work.pk}"):
            assert client.get(path).status_code == 404
        for path in (
            f"/vendor/{vendor.pk}/pause",
            f"/vendor/{vendor.pk}/secret",
            f"/vendor/preparations/{work.pk}/rows/1",
            f"/vendor/preparations/{work.pk}/hand-in",
            f"/vendor/preparations/{work.pk}/link",
        ):
            assert client.post(path).status_code == 404
        assert client.get("/operator/vendors").status_code == 403
        assert client.post(f"/operator/vendors/{vendor.pk}").status_code == 403
    assert (
        browser_of(builders.organisation())
        .post(f"/jobs/{work.job_id}/preparation/accept")
        .status_code
        == 404
    )
    vendor.refresh_from_db()
    assert vendor.paused_at is None


def test_a_suspended_vendor_cannot_lift_its_suspension(zone, operator):
    vendor = build.vendor(zone, "Team", kind=VendorKind.HUMAN)
    client = browser_of(vendor.organisation)
    client.post(f"/vendor/{vendor.pk}/pause")
    client.post(f"/vendor/{vendor.pk}/pause")
    vendor.refresh_from_db()
    assert vendor.paused_at is None
    operator.post(f"/operator/vendors/{vendor.pk}", {"do": "suspend"})
    assert client.post(f"/vendor/{vendor.pk}/pause").status_code == 403
    vendor.refresh_from_db()
    assert vendor.paused_at == NOW


def test_people_work_row_by_row_and_markup_in_rows_is_text(zone, owner):
    vendor = build.vendor(zone, "Team", kind=VendorKind.HUMAN)
    text = "\n".join([chat(1, price=SCRIPT), chat(2), "not <b>a</b> row"])
    data = build.upload(owner, zone, text, faulty=1)
    wish = {"kinds": ["human"], "instructions": f"Be kind. {SCRIPT}"}
    build.sell(owner, zone, data=data, epochs=1, preparation=wish)
    assert prepare_next(clock=clock)
    client = browser_of(vendor.organisation)
    work = WorkRow.objects.first().preparation
    base = f"/vendor/preparations/{work.pk}"
    for path in (base, f"{base}/rows/1", f"{base}/rows/3"):
        page = read_page(client.get(path))
        assert "&lt;script&gt;alert(1)" in page
        assert SCRIPT not in page
        assert "<b>a</b>" not in page
    assert client.get(f"{base}/next").url == f"{base}/rows/1"
    reply = client.post(
        f"{base}/rows/1",
        {
            "do": "save",
            "version": "0",
            "value": WorkRow.objects.get(number=1).proposal,
            "role": ["user", "assistant", "user"],
            "content": ["What is it?\r\nSay.", "A shop.", " "],
        },
    )
    assert reply.url == f"{base}/rows/2"
    said = json.loads(WorkRow.objects.get(number=1).value)["messages"]
    assert said == [
        {"role": "user", "content": "What is it?\nSay."},
        {"role": "assistant", "content": "A shop."},
    ]
    wrong = client.post(f"{base}/rows/3", {"do": "save", "version": "0", "value": "nonsense"})
    assert wrong.status_code == 400
    assert "no row to train on" in read_page(wrong)
    client.post(f"{base}/rows/3", {"do": "drop", "version": "0"})
    client.post(f"{base}/accept", {"first": "1", "last": "3"})
    states = [row.state for row in WorkRow.objects.order_by("number")]
    assert states == [RowState.EDITED, RowState.ACCEPTED, RowState.DROPPED]
    assert "Hand in" in read_page(client.get(base))
    assert "is checked" in read_page(client.post(f"{base}/hand-in", follow=True))


def test_an_owner_looks_at_a_delivery_refuses_it_and_the_operator_decides(zone, owner, operator):
    vendor = build.vendor(zone, "Team", kind=VendorKind.HUMAN)
    work = build.sell_few(owner, zone, review_s=30)
    team, mine = browser_of(vendor.organisation), browser_of(owner)
    base, job = f"/vendor/preparations/{work.pk}", f"/jobs/{work.job_id}"
    team.post(f"{base}/accept", {"first": "1", "last": "5"})
    team.post(f"{base}/rows/4", {"do": "accept", "version": "0"})
    team.post(f"{base}/rows/5", {"do": "drop", "version": "0"})
    team.post(f"{base}/hand-in")
    assert prepare_next(clock=clock)
    page = read_page(mine.get(f"{job}/data"))
    assert "Accept and train" in page
    assert "Opened rows in the console" in page
    assert mine.get(f"{job}/changes").status_code == 404
    page = read_page(mine.post(f"{job}/preparation/dispute", {"reason": SCRIPT}, follow=True))
    assert "The operator decides" in page
    page = read_page(operator.get("/operator/vendors"))
    assert "refuses a delivery of Team" in page
    assert SCRIPT not in page
    found = Dispute.objects.get()
    path = f"/operator/disputes/{found.pk}"
    operator.post(path, {"do": "vendor", "words": ""})
    operator.post(path, {"do": "", "words": "It is what was ordered."})
    assert Dispute.objects.get().decided_at is None
    operator.post(path, {"do": "vendor", "words": "It is what was ordered."})
    work.refresh_from_db()
    assert work.status == PreparationStatus.ACCEPTED
    assert conclude_preparations(now=clock()) == 1
    assert get_earnings(organisation=vendor.organisation).pending_micros == 20_000
    assert "$0.02" in read_page(team.get("/vendor"))
    changes = read_download(mine.get(f"{job}/changes"))
    assert [json.loads(line)["line"] for line in changes.splitlines()] == [4, 5]


def make_report(data: Dataset) -> None:
    enqueue_work(NewWork(INSPECT, data.pk, due_at=NOW))
    assert run_due_work(get_kinds()[INSPECT], clock=clock) == 1


def test_the_report_says_what_is_in_the_data_and_what_each_vendor_asks(zone, owner):
    build.vendor(zone, "Tidy")
    build.vendor(zone, "Team", kind=VendorKind.HUMAN, minimum_micros=5_000_000)
    text = build.MESSY + "\n" + chat(99, price=f"Ask jo@example.com {SCRIPT}")
    data = build.upload(owner, zone, text)
    client = browser_of(owner)
    assert "The report is being made" in read_page(client.get(f"/datasets/{data.pk}/report"))
    make_report(data)
    page = read_page(client.get(f"/datasets/{data.pk}/report"))
    for words in (
        "101 rows",
        "Repetitions",
        "E-mail addresses",
        "Names of people are not found",
        "no delivery yet",
        "Tidy",
        "$5.00",
        f"/datasets/{data.pk}/plan",
    ):
        assert words in page
    form = read_page(client.get(f"/bids/new?dataset={data.pk}&prepare=on"))
    assert 'name="prepare" checked' in form
    assert 'name="people"' in form


def test_a_file_without_one_usable_row_is_reported_as_such(zone, owner):
    data = build.upload(owner, zone, "{no\nrow {\n{here {", faulty=2)
    make_report(data)
    assert data.report.report["rows_unusable"] == 3
    page = read_page(browser_of(owner).get(f"/datasets/{data.pk}/report"))
    assert "Beyond repair" in page
    assert "3 of 3" in page or ">3<" in page


def test_a_file_that_no_program_can_read_has_an_empty_report(zone, owner):
    data = build.upload(owner, zone, "\x00PNG" * 10, faulty=0)
    make_report(data)
    assert DataReport.objects.get(dataset=data).report == {}


def test_the_bid_form_of_a_file_that_must_be_prepared_asks_for_it(zone, owner):
    build.vendor(zone, "Tidy")
    data = build.upload(owner, zone)
    data.needs_preparation = True
    data.save()
    page = read_page(browser_of(owner).get(f"/bids/new?dataset={data.pk}"))
    assert 'name="prepare" checked' in page
    assert "as it is" in page
