"""Losses are shared out together: one job makes room for another, and both keep their promises."""

from __future__ import annotations

from typing import Any

import pytest

from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.defragment import (
    adopt_plan,
    find_plan_for_late_jobs,
    improve_plans,
    view_zone,
)
from marketplace.auction.lane.enter import enter_lane
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.models import Bid, LogEntry, Reservation
from marketplace.fleet.models import Node, NodeStatus
from marketplace.jobs.models import Job, JobEvent
from marketplace.jobs.services import dispatch_slots
from marketplace.payments.ledger_checks import check_ledger
from tests import builders
from tests import market_builders as market
from tests.builders import NOW

pytestmark = pytest.mark.django_db

#: A node of this capacity runs one job at a time.
SINGLE = 100.0


@pytest.fixture
def zone():
    return market.zone(jobs_per_node=1)


@pytest.fixture
def owner():
    return builders.organisation(usd="50")


def job_on(owner, zone, node_terms: dict[str, Any] | None = None, **terms: Any) -> Job:
    """A job of three cells; ``node_terms``: on a node of its own that joins before its bid."""
    if node_terms is not None:
        market.node(zone, compute_capacity=SINGLE, **node_terms)
    bid = market.bid(owner, zone, epochs=3, **terms)
    decide_pending_bids(zone=zone, now=NOW)
    bid.refresh_from_db()
    assert bid.status == "admitted"
    return Job.objects.get(bid_id=bid.pk)


def lose(*nodes: str) -> None:
    Node.objects.filter(pk__in=nodes).update(status=NodeStatus.OFFLINE)


def plan_of(job: Job) -> list[list[Any]]:
    return Job.objects.values_list("cells", flat=True).get(pk=job.pk)


def held(job: Job) -> list[list[Any]]:
    rows = Reservation.objects.filter(bid_id=job.bid_id, released_at=None).order_by("slot")
    return [[row.slot, row.node_id] for row in rows]


def kinds(zone) -> list[str]:
    rows = LogEntry.objects.filter(zone=zone).order_by("position")
    return list(rows.values_list("kind", flat=True))


def told(job: Job) -> list[str]:
    events = JobEvent.objects.filter(job=job, kind="replanned").order_by("seq")
    return list(events.values_list("message", flat=True))


def paid() -> list[tuple[str, int]]:
    return list(Bid.objects.order_by("pk").values_list("pk", "payment_micros"))


def on(node: str, *slots: int) -> list[list[Any]]:
    return [[slot, node] for slot in slots]


def assert_sound(zone) -> None:
    assert verify_zone(zone).problems == []
    assert check_ledger().balanced


@pytest.fixture
def two(zone, owner):
    """A job with slack on one node, and one without on another."""
    lax = job_on(owner, zone, {})
    tight = job_on(owner, zone, {}, slots=3)
    [[_, first], *_], [[_, second], *_] = plan_of(lax), plan_of(tight)
    assert (plan_of(lax), plan_of(tight)) == (on(first, 101, 102, 103), on(second, 101, 102, 103))
    assert first != second
    return lax, tight, first, second


def test_a_job_with_slack_makes_room_for_one_that_lost_its_node(zone, two):
    lax, tight, first, second = two
    before = paid()
    lose(second)
    refresh_zone(zone=zone, now=NOW)
    assert plan_of(tight) == held(tight) == on(first, 101, 102, 103)
    assert plan_of(lax) == held(lax) == on(first, 104, 105, 106)
    assert (kinds(zone)[-1], kinds(zone).count("TaskReplanned")) == ("PlansMoved", 0)
    assert paid() == before
    name = Node.objects.get(pk=first).name
    assert told(tight) == [f"Planned again on {name}, at no cost to you; the deadline stands."]
    assert told(lax) == [
        f"Planned again on {name}, so that another job keeps its deadline too; yours stands, "
        "and your price does not change."
    ]
    assert_sound(zone)


def test_a_loss_that_planning_one_by_one_repairs_moves_no_other_job(zone, owner, two):
    lax, tight, first, second = two
    third = market.node(zone, compute_capacity=SINGLE, ask_micros=200_000)
    lose(second)
    refresh_zone(zone=zone, now=NOW)
    assert plan_of(tight) == on(third.pk, 101, 102, 103)
    assert plan_of(lax) == on(first, 101, 102, 103)
    assert "PlansMoved" not in kinds(zone)
    assert told(lax) == []


def test_two_nodes_lost_at_once_are_shared_out_over_what_is_left(zone, owner):
    lax = job_on(owner, zone, {})
    tight = job_on(owner, zone, {}, slots=3)
    later = job_on(owner, zone, {}, slots=6)
    nodes = [plan_of(job)[0][1] for job in (lax, tight, later)]
    assert len(set(nodes)) == 3
    lose(*nodes[1:])
    refresh_zone(zone=zone, now=NOW)
    assert plan_of(tight) == on(nodes[0], 101, 102, 103)
    assert plan_of(later) == on(nodes[0], 104, 105, 106)
    assert plan_of(lax) == on(nodes[0], 107, 108, 109)
    assert kinds(zone).count("PlansMoved") == 1
    assert_sound(zone)


def test_what_no_plan_keeps_in_time_is_late_and_the_others_stand(zone, owner):
    standing = job_on(owner, zone, {}, slots=3)
    tight = job_on(owner, zone, {}, slots=3)
    first, second = plan_of(standing)[0][1], plan_of(tight)[0][1]
    lose(second)
    refresh_zone(zone=zone, now=NOW)
    assert plan_of(standing) == on(first, 101, 102, 103)
    assert plan_of(tight) == on(first, 104, 105, 106)
    assert kinds(zone).count("TaskReplanned") == 1
    assert "PlansMoved" not in kinds(zone)
    assert told(standing) == []
    assert_sound(zone)


def test_a_lane_that_dies_in_the_middle_of_sharing_out_has_changed_nothing(zone, two):
    lax, tight, first, second = two
    before = (plan_of(lax), plan_of(tight), kinds(zone), paid())
    lose(second)
    with pytest.raises(RuntimeError, match="killed"), enter_lane(zone=zone, now=NOW):
        raise RuntimeError("killed")
    assert (plan_of(lax), plan_of(tight), kinds(zone), paid()) == before
    refresh_zone(zone=zone, now=NOW)
    refresh_zone(zone=zone, now=NOW)
    assert plan_of(tight) == on(first, 101, 102, 103)
    assert kinds(zone).count("PlansMoved") == 1
    assert_sound(zone)


def test_a_job_on_its_nodes_queue_starts_where_it_was_moved(zone, two):
    lax, tight, first, second = two
    lose(second)
    refresh_zone(zone=zone, now=NOW)
    dispatch_slots(now=market.slot_at(zone, 101))
    assert market.open_slice(tight).node_id == first
    assert not lax.slices.exists()


@pytest.fixture
def late(zone, owner):
    """A job that lost its node and is planned after its deadline, and the node it is on."""
    job_on(owner, zone, {}, slots=3)
    job = job_on(owner, zone, {}, slots=3)
    lose(plan_of(job)[0][1])
    refresh_zone(zone=zone, now=NOW)
    assert plan_of(job)[0][0] == 104
    return job


def test_a_late_job_is_put_in_time_when_a_node_joins(zone, late):
    joined = market.node(zone, compute_capacity=SINGLE)
    refresh_zone(zone=zone, now=NOW)
    assert plan_of(late)[0][0] == 104
    assert improve_plans(zone_id=zone.pk, clock=lambda: NOW) == 1
    assert plan_of(late) == held(late) == on(joined.pk, 101, 102, 103)
    assert told(late)[-1] == (
        f"Planned again on {joined.name}, at no cost to you; the deadline stands."
    )
    after = kinds(zone)
    assert improve_plans(zone_id=zone.pk, clock=lambda: NOW) == 0
    assert kinds(zone) == after
    assert_sound(zone)


def test_a_late_job_stays_where_it_is_while_nothing_better_is_to_be_had(zone, late):
    before = (plan_of(late), kinds(zone))
    assert improve_plans(zone_id=zone.pk, clock=lambda: NOW) == 0
    assert (plan_of(late), kinds(zone)) == before


def test_a_bid_between_the_plan_and_its_adoption_keeps_the_cells_it_bought(zone, owner, late):
    joined = market.node(zone, compute_capacity=SINGLE)
    refresh_zone(zone=zone, now=NOW)
    proposal = find_plan_for_late_jobs(view_zone(zone, now=NOW))
    assert proposal is not None
    bought = job_on(owner, zone, slots=3)
    assert plan_of(bought) == on(joined.pk, 101, 102, 103)
    before = (plan_of(late), kinds(zone))
    assert adopt_plan(zone, proposal, now=NOW) == 0
    assert (plan_of(late), kinds(zone)) == before
    assert_sound(zone)


def test_a_plan_of_a_slot_that_is_over_is_dropped(zone, late):
    market.node(zone, compute_capacity=SINGLE)
    refresh_zone(zone=zone, now=NOW)
    proposal = find_plan_for_late_jobs(view_zone(zone, now=NOW))
    assert proposal is not None
    assert adopt_plan(zone, proposal, now=market.slot_at(zone, 101)) == 0
    assert "PlansMoved" not in kinds(zone)


def test_a_plan_is_dropped_when_a_job_in_it_has_ended(zone, late):
    market.node(zone, compute_capacity=SINGLE)
    refresh_zone(zone=zone, now=NOW)
    proposal = find_plan_for_late_jobs(view_zone(zone, now=NOW))
    assert proposal is not None
    Job.objects.filter(pk=late.pk).update(status="cancelled", finished_at=NOW)
    assert adopt_plan(zone, proposal, now=NOW) == 0
    assert "PlansMoved" not in kinds(zone)
