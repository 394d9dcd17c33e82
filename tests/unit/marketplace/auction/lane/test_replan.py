"""Jobs whose nodes are lost get new cells, and their owners pay nothing more."""

from __future__ import annotations

import pytest

from marketplace.auction.book.engine_cache import discard_lane_book
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.sweep import refresh_zone, replan_broken_jobs
from marketplace.auction.models import LogEntry, Reservation
from marketplace.fleet.models import Node, NodeStatus
from marketplace.fleet.selectors import last_slot_until
from marketplace.jobs.models import Job, JobEvent
from marketplace.jobs.services import dispatch_slots, replace_job_cells, request_job_replan
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.selectors import Wallet, get_wallet
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from workers.protocol.reports import SliceEnd as Ended

pytestmark = pytest.mark.django_db


@pytest.fixture
def zone():
    return market.zone()


@pytest.fixture
def owner():
    return builders.organisation(usd="10")


def admitted(owner, zone, **terms):
    bid = market.bid(owner, zone, **terms)
    decide_pending_bids(zone=zone, now=NOW)
    bid.refresh_from_db()
    assert bid.status == "admitted"
    return bid, Job.objects.get(bid_id=bid.pk)


def kinds(zone):
    rows = LogEntry.objects.filter(zone=zone).order_by("position")
    return list(rows.values_list("kind", flat=True))


def held_cells(bid):
    rows = Reservation.objects.filter(bid=bid, released_at=None).order_by("slot")
    return [[row.slot, row.node_id] for row in rows]


def test_job_on_a_silent_node_is_planned_again_at_once_and_free(zone, owner):
    first = market.node(zone, ask_micros=200_000)
    bid, job = admitted(owner, zone, epochs=3)
    second = market.node(zone, ask_micros=8_000_000)
    first.status = NodeStatus.OFFLINE
    first.save()

    refresh_zone(zone=zone, now=NOW)

    job.refresh_from_db()
    assert job.cells == [[101, second.pk], [102, second.pk], [103, second.pk]]
    assert not job.needs_replan
    assert held_cells(bid) == job.cells
    assert kinds(zone)[-3:] == ["NodeLeft", "NodeJoined", "TaskReplanned"] or kinds(zone)[-3:] == [
        "NodeJoined",
        "NodeLeft",
        "TaskReplanned",
    ]
    bid.refresh_from_db()
    assert bid.payment_micros == 150_000
    assert get_wallet(organisation=owner) == Wallet(available_micros=9_850_000, held_micros=0)
    assert verify_zone(zone).problems == []
    messages = JobEvent.objects.filter(job=job, kind="replanned").values_list("message", flat=True)
    assert list(messages) == [
        f"Planned again on {second.name}, at no cost to you; the deadline stands."
    ]


def test_only_the_work_that_is_left_is_planned_again(zone, owner):
    first = market.node(zone)
    _, job = admitted(owner, zone, epochs=10)
    assert len(job.cells) == 9
    market.node(zone)
    first.status = NodeStatus.OFFLINE
    first.save()
    Job.objects.filter(pk=job.pk).update(total_steps=120, checkpoint_step=84, step=90)

    refresh_zone(zone=zone, now=market.slot_at(zone, 105))

    job.refresh_from_db()
    # 900 units, 30 % of them left: three cells, after the present slot.
    assert [slot for slot, _ in job.cells if slot > 105] == [106, 107, 108]


@pytest.mark.parametrize(
    ("ask_micros", "slot"),
    # One cell of nine at 1.5 times the price is 6 % of the whole more, at 3 times 22 %.
    [(300_000, 106), (600_000, 109)],
)
def test_what_little_is_left_of_a_job_does_not_wait_for_a_slot_that_is_little_cheaper(
    zone, owner, ask_micros, slot
):
    first = market.node(zone, ask_micros=200_000)
    _, job = admitted(owner, zone, epochs=10)
    now = market.slot_at(zone, 105)
    market.node(zone, ask_micros=ask_micros)
    cheap = market.node(zone, ask_micros=200_000, available_from_at=market.slot_at(zone, 108))
    Node.objects.exclude(pk=first.pk).update(last_heartbeat_at=now)
    Node.objects.filter(pk=first.pk).update(status=NodeStatus.OFFLINE)
    Job.objects.filter(pk=job.pk).update(total_steps=120, checkpoint_step=108, step=108)

    refresh_zone(zone=zone, now=now)

    job.refresh_from_db()
    [cell] = [cell for cell in job.cells if cell[0] > 105]
    assert (cell[0], cell[1] == cheap.pk) == (slot, slot == 109)
    assert verify_zone(zone).problems == []


def test_job_without_another_node_waits_and_is_tried_once_a_slot(zone, owner):
    node = market.node(zone)
    bid, job = admitted(owner, zone, epochs=3)
    node.status = NodeStatus.OFFLINE
    node.save()
    refresh_zone(zone=zone, now=NOW)
    refresh_zone(zone=zone, now=NOW)
    job.refresh_from_db()
    assert job.needs_replan
    assert held_cells(bid) == []
    assert kinds(zone).count("TaskReplanned") == 1

    market.node(zone)
    refresh_zone(zone=zone, now=market.slot_at(zone, 101))

    job.refresh_from_db()
    assert not job.needs_replan
    assert [slot for slot, _ in job.cells if slot > 101] == [102, 103, 104]
    assert kinds(zone).count("TaskReplanned") == 2
    assert verify_zone(zone).problems == []


def test_job_that_can_go_nowhere_fails_at_its_deadline_by_our_fault(zone, owner):
    node = market.node(zone)
    _, job = admitted(owner, zone, epochs=3, slots=5)
    node.status = NodeStatus.OFFLINE
    node.save()
    refresh_zone(zone=zone, now=NOW)
    refresh_zone(zone=zone, now=market.slot_at(zone, 107))
    job.refresh_from_db()
    assert (job.status, job.fault) == ("failed", "system")
    assert verify_zone(zone).problems == []


def test_job_too_late_for_its_deadline_is_planned_after_it(zone, owner):
    node = market.node(zone)
    _, job = admitted(owner, zone, epochs=3, slots=4)
    market.node(zone)
    node.status = NodeStatus.OFFLINE
    node.save()
    refresh_zone(zone=zone, now=market.slot_at(zone, 103))
    job.refresh_from_db()
    assert [slot for slot, _ in job.cells if slot > 103] == [104, 105, 106]
    message = JobEvent.objects.filter(job=job, kind="replanned").latest("seq").message
    assert "after the deadline" in message


def decided(owner, zone, *, now=NOW, **terms):
    """A small bid that fits beside another on a node, decided."""
    bid = market.bid(owner, zone, price_micros=4_000_000, now=now, **terms)
    decide_pending_bids(zone=zone, now=now)
    bid.refresh_from_db()
    return bid


def test_draining_node_serves_what_was_sold_and_sells_nothing_between(zone, owner):
    node = market.node(zone)
    bid, job = admitted(owner, zone, epochs=3)
    node.status = NodeStatus.DRAINING
    node.save()
    late = decided(owner, zone, epochs=1, slots=3)
    job.refresh_from_db()
    assert job.cells == [[101, node.pk], [102, node.pk], [103, node.pk]]
    assert held_cells(bid) == job.cells
    assert (late.status, late.cells) == ("refused", None)
    assert "TaskReplanned" not in kinds(zone)
    # Beside the job there was room: put back on sale, the node sells it.
    node.status = NodeStatus.ONLINE
    node.save()
    [[slot, _]] = decided(owner, zone, epochs=1, slots=3).cells
    assert slot in (101, 102, 103)


def test_draining_is_one_event_until_the_last_sold_cell_is_past(zone, owner):
    node = market.node(zone)
    bid, _ = admitted(owner, zone, epochs=3)
    node.status = NodeStatus.DRAINING
    node.save()
    for slot in (101, 102, 103):
        refresh_zone(zone=zone, now=market.slot_at(zone, slot))
        assert next(cell for cell in held_cells(bid) if cell[0] >= slot) == [slot, node.pk]
    assert kinds(zone).count("NodeChanged") == 1
    assert "NodeLeft" not in kinds(zone)
    refresh_zone(zone=zone, now=market.slot_at(zone, 104))
    refresh_zone(zone=zone, now=market.slot_at(zone, 105))
    assert "TaskReplanned" not in kinds(zone)
    assert verify_zone(zone).problems == []


def test_node_off_sale_until_later_sells_nothing_before(zone, owner):
    node = market.node(zone)
    bid, job = admitted(owner, zone, epochs=3)
    node.available_from_at = market.slot_at(zone, 115)
    node.save()
    late = decided(owner, zone, epochs=1)
    assert late.status == "admitted"
    # The first slot that begins after that moment.
    assert [slot for slot, _ in late.cells] == [116]
    job.refresh_from_db()
    assert held_cells(bid) == job.cells == [[101, node.pk], [102, node.pk], [103, node.pk]]
    discard_lane_book(zone_id=zone.pk)
    refresh_zone(zone=zone, now=NOW)
    assert held_cells(bid) == job.cells
    assert verify_zone(zone).problems == []


def test_shorter_availability_keeps_the_cells_already_sold(zone, owner):
    node = market.node(zone)
    bid, job = admitted(owner, zone, epochs=3)
    node.available_until_at = market.slot_at(zone, 102)
    node.save()
    refresh_zone(zone=zone, now=NOW)
    job.refresh_from_db()
    assert held_cells(bid) == [[101, node.pk], [102, node.pk], [103, node.pk]]
    assert kinds(zone)[-1] == "NodeChanged"


def test_node_whose_time_is_over_is_not_joined_again_and_again(zone, owner):
    node = market.node(zone, available_until_at=market.slot_at(zone, 103))
    market.node(zone)
    refresh_zone(zone=zone, now=NOW)
    assert kinds(zone).count("NodeJoined") == 2
    for slot in (104, 104, 105):
        refresh_zone(zone=zone, now=market.slot_at(zone, slot))
    assert kinds(zone).count("NodeJoined") == 2
    assert node.pk not in LogEntry.objects.filter(zone=zone).latest("position").event


def test_refresh_with_nothing_new_writes_nothing(zone, owner):
    market.node(zone)
    refresh_zone(zone=zone, now=NOW)
    before = LogEntry.objects.count()
    refresh_zone(zone=zone, now=NOW)
    assert LogEntry.objects.count() == before == 2


def test_job_that_was_slower_than_measured_gets_more_cells(zone, owner):
    market.node(zone)
    _, job = admitted(owner, zone, epochs=3)
    Job.objects.filter(pk=job.pk).update(total_steps=36, step=20, checkpoint_step=20)
    request_job_replan(job=job, reason="It did not end in time.", now=market.slot_at(zone, 103))
    replan_broken_jobs(now=market.slot_at(zone, 103))
    job.refresh_from_db()
    assert [slot for slot, _ in job.cells if slot > 103] == [104, 105]
    assert check_ledger().balanced


def get_nowhere(zone, job, slot):
    """Hand the job back at the end of a slot, all steps done and no adapter; plan it again."""
    now = market.slot_at(zone, slot)
    Node.objects.update(last_heartbeat_at=now)
    dispatch_slots(now=now)
    market.end_slice(job, status=Ended.PAUSED, now=now)
    # As when nothing was planned for the next slots.
    replace_job_cells(job=job, cells=[], reason="test", now=now)
    request_job_replan(job=job, reason="It did not end in time.", now=now)
    replan_broken_jobs(now=now)
    job.refresh_from_db()
    return [at for at, _ in job.cells if at > slot]


def test_a_job_that_gets_nowhere_in_its_slices_gets_twice_as_many_slots_each_time(zone, owner):
    market.node(zone)
    bid, job = admitted(owner, zone, epochs=3)
    before = (bid.payment_micros, get_wallet(organisation=owner))
    # The first slice did all steps, the others only what a slot was too short for.
    assert get_nowhere(zone, job, 101) == [102]
    assert get_nowhere(zone, job, 102) == [103, 104]
    assert get_nowhere(zone, job, 103) == [104, 105, 106, 107]
    assert get_nowhere(zone, job, 104) == [*range(105, 113)]
    bid.refresh_from_db()
    assert (bid.payment_micros, get_wallet(organisation=owner)) == before
    assert verify_zone(zone).problems == []


def test_slots_for_a_job_that_gets_nowhere_end_at_its_deadline(zone, owner):
    market.node(zone)
    bid, job = admitted(owner, zone, epochs=3)
    Job.objects.filter(pk=job.pk).update(deadline_at=market.slot_at(zone, 106))
    bid.deadline_at = market.slot_at(zone, 106)
    bid.save()
    last = last_slot_until(zone, bid.deadline_at)
    for slot in (101, 102):
        get_nowhere(zone, job, slot)
    assert get_nowhere(zone, job, 103) == [*range(104, last + 1)]


def test_dispatch_runs_what_the_lane_planned(zone, owner):
    node = market.node(zone)
    _, job = admitted(owner, zone, epochs=3)
    dispatch_slots(now=market.slot_at(zone, 101))
    held = market.open_slice(job)
    assert (held.node_id, held.first_slot) == (node.pk, 101)
