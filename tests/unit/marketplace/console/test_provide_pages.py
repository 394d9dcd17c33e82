"""A provider's home, its nodes' pages and what it earned, by day, node and job."""

from __future__ import annotations

import re
from datetime import time, timedelta
from decimal import Decimal

import pytest
import time_machine
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from marketplace.accounts.models import Membership, Role
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Bid, Reservation, WorkShare
from marketplace.auction.settlement import settle_finished
from marketplace.console import nodes, provide_home, rates
from marketplace.fleet.models import Node, NodeStatus
from marketplace.jobs.models import Job, Slice
from marketplace.jobs.services import dispatch_slots, sweep_leases
from marketplace.payments.freezes import freeze_organisation
from marketplace.payments.models import Earning
from marketplace.payments.selectors import sum_earned
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from tests.pages import read_amounts, read_page, read_text
from workers.protocol.reports import SliceEnd

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def at_now():
    with time_machine.travel(NOW, tick=False) as traveller:
        yield traveller


@pytest.fixture
def node():
    return market.node(market.zone())


@pytest.fixture
def provider(node, client):
    client.force_login(builders.owner_of(node.provider.organisation))
    return client


def sell(node):
    """A job on the node, as the auction sold it."""
    bid = market.bid(builders.organisation(usd="10"), node.zone)
    decide_pending_bids(zone=node.zone, now=NOW)
    return bid, Job.objects.get(bid_id=bid.pk)


def finish(node):
    """The same, done and settled; what the node's provider got."""
    bid, job = sell(node)
    first = Reservation.objects.filter(bid=bid).order_by("slot").values_list("slot", flat=True)[0]
    Node.objects.update(last_heartbeat_at=market.slot_at(node.zone, first))
    dispatch_slots(now=market.slot_at(node.zone, first))
    done_at = market.slot_at(node.zone, first) + timedelta(seconds=3)
    market.end_slice(job, status=SliceEnd.FINISHED, now=done_at)
    assert settle_finished(now=done_at) == 1
    return Job.objects.get(pk=job.pk), WorkShare.objects.get(bid=bid)


@pytest.mark.parametrize(
    ("who", "door"), [("provider", "/provide"), ("owner", "/train"), ("operator", "/operator")]
)
def test_sign_in_leads_to_the_door_of_what_somebody_does(who, door, node, client):
    person = {
        "provider": lambda: builders.owner_of(node.provider.organisation),
        "owner": lambda: builders.owner_of(builders.organisation()),
        "operator": builders.operator,
    }[who]()
    client.force_login(person)
    assert client.get("/home")["Location"] == door


def test_a_home_without_trouble_says_that_nothing_waits(provider, node):
    text = read_text(provider.get("/provide"))
    assert "Nothing Every node is heard, no check failed, and no payout waits for you." in text
    assert "Nodes online 1 of 1" in text
    assert "Earned today $0.00" in text


@pytest.mark.parametrize(
    ("change", "title"),
    [
        ({"status": NodeStatus.OFFLINE}, "is silent"),
        ({"status": NodeStatus.DRAINING, "drained_at": NOW}, "is drained"),
        (
            {"status": NodeStatus.SUSPENDED, "suspended_at": NOW, "suspended_reason": "Faults."},
            "is suspended",
        ),
        ({"status": NodeStatus.RESTING, "available_from_at": NOW + timedelta(hours=1)}, "rests"),
        ({"available_until_at": NOW}, "is offered no more"),
    ],
)
def test_each_state_of_a_node_that_needs_somebody_is_named_with_its_page(
    provider, node, change, title
):
    Node.objects.filter(pk=node.pk).update(**change)
    answer = provider.get("/provide")
    assert f"{node.name} {title}" in read_text(answer)
    assert f'href="/nodes/{node.pk}' in read_page(answer)


def test_a_freeze_of_payouts_needs_somebody(provider, node):
    freeze_organisation(
        organisation_id=node.provider.organisation.pk,
        reference="x",
        reason="A payment is contested.",
        now=NOW,
    )
    assert "Payouts wait A payment is contested." in read_text(provider.get("/provide"))


def test_the_next_jobs_are_what_is_sold_of_the_nodes(provider, node):
    bid, job = sell(node)
    cells = Reservation.objects.filter(bid=bid)
    text = read_text(provider.get("/provide"))
    cost = sum(cells.values_list("operational_cost_micros", flat=True))
    assert f"{job.pk[:8]}…{job.pk[-5:]} {node.name}" in text
    assert f"{cells.count()} ${cost / 1e6:g}" in text
    # Nothing of its owner.
    assert job.name not in text
    assert bid.pk not in read_page(provider.get("/provide"))
    cells.update(released_at=NOW)
    assert "Nothing is sold ahead" in read_text(provider.get("/provide"))


def test_earned_today_is_of_the_visitors_day(provider, node, at_now):
    owner = node.provider.organisation
    midnight = NOW.replace(hour=0, minute=0, second=0)
    for number, moment in enumerate((midnight + timedelta(minutes=30), NOW), start=1):
        Earning.objects.create(
            organisation=owner,
            kind="provider",
            reference=f"bid:bid_{number}",
            amount_micros=1_000_000 * number,
            accrued_at=moment,
            payable_at=moment,
        )
    assert "Earned today $3.00" in read_text(provider.get("/provide"))
    # Where it is five hours earlier, the first was earned the day before.
    provider.cookies["tz"] = "America/New_York"
    at_now.move_to(NOW)
    assert "Earned today $2.00" in read_text(provider.get("/provide"))


def test_a_job_is_units_times_a_rate_and_leads_to_its_node_and_back(provider, node):
    job, share = finish(node)
    page = read_page(provider.get("/provide/earnings?by=job"))
    rate = share.paid_micros / share.units
    assert f">{share.units:,}<" in page
    assert f"${rate:,.4f}" in page
    assert f'href="/provide/earnings?job={job.pk}"' in page
    assert f'href="/nodes/{node.pk}"' in page
    of_node = read_page(provider.get(f"/nodes/{node.pk}"))
    assert f'href="/provide/earnings?node={node.pk}"' in of_node
    assert f'href="/provide/earnings?job={job.pk}"' in of_node
    narrowed = read_text(provider.get(f"/provide/earnings?node={node.pk}"))
    assert f"Jobs on {node.name}" in narrowed
    assert "No such work" in read_text(provider.get("/provide/earnings?job=nothing"))


def test_what_each_node_earned_adds_up_to_all_that_was_earned(provider, node):
    _, share = finish(node)
    line = {"organisation": node.provider.organisation, "accrued_at": NOW, "payable_at": NOW}
    Earning.objects.create(**line, kind="provider", reference="qst_1", amount_micros=300)
    Earning.objects.create(**line, kind="idle", reference="bid:b:idle", amount_micros=20)
    rows = read_amounts(provider.get("/provide/earnings?by=node"))
    dollars = [Decimal(micros).scaleb(-6) for micros in (share.paid_micros, 20, 300)]
    assert [row[-1] for row in rows] == [*dollars, sum(dollars)]
    assert sum_earned(organisation=node.provider.organisation, since=NOW - timedelta(days=1)) == (
        share.paid_micros + 320
    )


def test_pages_of_jobs_follow_one_another(provider, node, monkeypatch):
    monkeypatch.setattr("marketplace.console.earnings.ROWS_PER_PAGE", 1)
    jobs = [finish(node)[0] for _ in range(2)]
    first = provider.get("/provide/earnings?by=job").content.decode()
    assert jobs[1].pk in first
    assert jobs[0].pk not in first
    older = re.search(r'href="(\?by=job&amp;before=\d+)"', first)
    assert older is not None
    second = provider.get("/provide/earnings" + older[1].replace("&amp;", "&")).content.decode()
    assert jobs[0].pk in second
    assert jobs[1].pk not in second


def test_a_node_of_somebody_else_is_not_shown(provider, node):
    other = market.node(node.zone)
    assert provider.get(f"/nodes/{other.pk}").status_code == 404
    assert provider.get("/nodes/nothing").status_code == 404
    assert provider.get(f"/operator/nodes/{node.pk}").status_code == 403


def test_a_job_that_runs_and_goes_on_is_one_row_of_the_drawing(provider, node, at_now):
    bid, job = sell(node)
    slots = list(
        Reservation.objects.filter(bid=bid).order_by("slot").values_list("slot", flat=True)
    )
    now = market.slot_at(node.zone, slots[0])
    Node.objects.update(last_heartbeat_at=now)
    dispatch_slots(now=now)
    at_now.move_to(now + timedelta(seconds=4))
    page = provider.get(f"/nodes/{node.pk}").content.decode()
    rows = set(re.findall(r'<svg x="[\d.]+%" y="(\d+)" width="[\d.]+%" height="24">', page))
    assert rows == {"26"}
    assert f"Job {job.pk[-6:]} runs here" in page
    assert f"Job {job.pk[-6:]} is planned" in page


def test_what_a_node_lost_stands_with_its_reason_and_its_day(provider, node, at_now):
    bid, _ = sell(node)
    slots = list(
        Reservation.objects.filter(bid=bid).order_by("slot").values_list("slot", flat=True)
    )
    dispatch_slots(now=market.slot_at(node.zone, slots[0]))
    late = market.slot_at(node.zone, slots[-1]) + timedelta(minutes=5)
    sweep_leases(now=late)
    lost = Slice.objects.get(node=node)
    assert lost.status == "lost"
    at_now.move_to(late)
    page = read_page(provider.get(f"/nodes/{node.pk}"))
    assert lost.reason.split(".")[0] in page
    assert "0 of 1 ended well" in page
    assert "1 of 1 stay lost" in page


def test_hours_are_typed_and_drawn_where_the_provider_is_and_kept_in_utc(provider, node):
    provider.cookies["tz"] = "Asia/Kolkata"
    answer = provider.post(
        f"/nodes/{node.pk}/hours", {"opens": "09:00", "closes": "17:30"}, follow=True
    )
    node.refresh_from_db()
    assert (node.sale_opens, node.sale_closes) == (time(3, 30), time(12, 0))
    page = read_page(answer)
    assert 'value="09:00"' in page
    assert 'value="17:30"' in page
    assert page.count("09:00 to 17:30") >= 6
    # As they were sent back, nothing changes.
    provider.post(f"/nodes/{node.pk}/hours", {"opens": "09:00", "closes": "17:30"})
    node.refresh_from_db()
    assert (node.sale_opens, node.sale_closes) == (time(3, 30), time(12, 0))


def test_maintenance_is_cut_out_of_the_week(provider, node):
    begins = (NOW + timedelta(days=1)).replace(hour=2, minute=0, second=0)
    provider.post(
        f"/nodes/{node.pk}/hours",
        {
            "maintenance_from_at": f"{begins:%Y-%m-%dT%H:%M}",
            "maintenance_until_at": f"{begins + timedelta(hours=3):%Y-%m-%dT%H:%M}",
        },
    )
    assert "00:00 to 02:00, 05:00 to 24:00" in read_text(provider.get(f"/nodes/{node.pk}"))


def test_a_page_asks_as_often_with_many_nodes_and_jobs_as_with_few(provider, node):
    # Two, for what is between two jobs.
    for _ in range(2):
        finish(node)
        sell(node)

    def count(path):
        # What the zone's log grew by is read once, by whichever page comes first.
        provider.get(path)
        with CaptureQueriesContext(connection) as queries:
            assert provider.get(path).status_code == 200
        return len(queries)

    paths = ["/provide", "/provide/earnings?by=node", "/provide/earnings?by=job"]
    paths.append(f"/nodes/{node.pk}")
    few = [count(path) for path in paths]
    for _ in range(3):
        market.node(node.zone, of=node.provider)
        finish(node)
        sell(node)
    assert [count(path) for path in paths] == few


def test_a_viewer_sees_it_all_and_changes_nothing(node, client: Client):
    viewer = builders.user()
    Membership.objects.create(
        organisation=node.provider.organisation, user=viewer, role=Role.VIEWER, created_at=NOW
    )
    client.force_login(viewer)
    for path in ("/provide", "/provide/earnings", f"/nodes/{node.pk}"):
        assert client.get(path).status_code == 200
    assert client.post(f"/nodes/{node.pk}/drain").status_code == 403
    node.refresh_from_db()
    assert node.drained_at is None
    assert Bid.objects.count() == 0


def test_a_provider_of_thousands_of_nodes_has_them_by_the_page(provider, node, monkeypatch):
    monkeypatch.setattr(nodes, "NODES_PER_PAGE", 2)
    monkeypatch.setattr(rates, "NODES_PER_PAGE", 2)
    more = [market.node(node.zone, of=node.provider) for _ in range(4)]
    Node.objects.filter(pk=more[0].pk).update(status=NodeStatus.OFFLINE)
    names = sorted([node.name, *(each.name for each in more)])
    address, seen = "/nodes", []
    while address:
        answer = provider.get(address)
        assert "Online 4 of 5" in read_text(answer)
        shown = re.findall(r'<h3 id="n-[^"]*">\s*<a[^>]*>([^<]*)</a>', read_page(answer))
        assert 1 <= len(shown) <= 2
        seen += shown
        following = re.search(r'href="(\?after=[^"]*)"', read_page(answer))
        address = f"/nodes{following[1]}" if following else ""
        assert provider.get(f"/nodes/rates{following[1] if following else ''}").status_code == 200
    assert seen == names
    beyond = read_text(provider.get("/nodes?after=~"))
    assert "First" in beyond
    assert "List a machine" not in beyond


def test_a_home_names_some_of_the_nodes_that_need_somebody(provider, node, monkeypatch):
    monkeypatch.setattr(provide_home, "NODES_NEEDY", 2)
    for _ in range(4):
        market.node(node.zone, of=node.provider)
    Node.objects.exclude(pk=node.pk).update(status=NodeStatus.OFFLINE)
    text = read_text(provider.get("/provide"))
    assert text.count("is silent") == 2
    assert "Nodes online 1 of 5" in text
