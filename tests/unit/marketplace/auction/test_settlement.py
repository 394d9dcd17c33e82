"""The money of jobs that ended, to the micro-dollar, and once."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import count
from types import SimpleNamespace

import pytest

from marketplace.auction import endings, settlement
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.cancelling import CancelQuote, cancel_sold_job, quote_cancelling
from marketplace.auction.lane import ended_jobs
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.enter import enter_lane, open_lane
from marketplace.auction.lane.replan import replan_jobs
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.models import Bid, LogEntry, MarketHead, Reservation, WorkShare
from marketplace.auction.retries import RETRY_AFTER
from marketplace.auction.selectors import list_bids_not_settled, list_bids_set_aside
from marketplace.auction.settlement import settle_finished, settle_job
from marketplace.common.errors import Conflict, UserError
from marketplace.fleet.models import Node, NodeStatus
from marketplace.fleet.slots import slot_ends_at
from marketplace.jobs.models import FaultOf, Job, JobEvent
from marketplace.jobs.services import (
    dispatch_slots,
    fail_job,
    record_progress,
    request_job_replan,
    sweep_leases,
)
from marketplace.jobs.work import load_work_plan
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.selectors import (
    Wallet,
    find_distribution,
    get_earnings,
    get_house_balances,
    get_wallet,
    sum_borne,
)
from scheduler.auction.log import events
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from workers.protocol.reports import Fault, ProgressEvent, ProgressReport, SliceEnd
from workers.protocol.starts import Start, StartKind
from workers.protocol.work import PARTS

pytestmark = pytest.mark.django_db


@pytest.fixture
def zone():
    return market.zone()


@pytest.fixture
def owner():
    return builders.organisation(usd="10")


def sold(owner, zone, **terms):
    bid = market.bid(owner, zone, **terms)
    decide_pending_bids(zone=zone, now=NOW)
    bid.refresh_from_db()
    return bid, Job.objects.get(bid_id=bid.pk)


def run(job, zone, *slots):
    for slot in slots:
        dispatch_slots(now=market.slot_at(zone, slot))


def settled(job, bid, now):
    assert settle_finished(now=now) == 1
    assert settle_finished(now=now) == 0
    job.refresh_from_db()
    bid.refresh_from_db()
    assert job.settled_at == now
    check = check_ledger()
    assert check.balanced, check


def earned(node):
    return get_earnings(organisation=node.provider.organisation).pending_micros


def paid_nodes(bid):
    """Steps, earned and paid of each node that did work, as the receipt shows them."""
    shares = WorkShare.objects.filter(bid=bid).order_by("pk")
    return list(shares.values_list("node__name", "steps", "earned_micros", "paid_micros"))


def own_node(zone):
    """A node, and its provider as an owner with money."""
    node = market.node(zone)
    owner = node.provider.organisation
    builders.fund_wallet(owner, usd="10")
    return node, owner


def report_step(job, step, now):
    """The node that has the job says how far it is."""
    held = market.open_slice(job)
    event = ProgressEvent(
        seq=held.last_seq + 1,
        at=now.timestamp(),
        step=step,
        total_steps=36,
        epoch=0.0,
        samples_done=step,
    )
    report = ProgressReport(lease_token=held.lease_token, events=(event,))
    assert record_progress(node=held.node, report=report, now=now).keep_running


def checkpointed(job, step):
    Job.objects.filter(pk=job.pk).update(step=step, checkpoint_step=step, total_steps=36)


def end_late(job, zone):
    """The job finishes a slot after its deadline, on the node that had it then; when."""
    Job.objects.filter(pk=job.pk).update(deadline_at=slot_ends_at(zone, 102))
    now = market.slot_at(zone, 103)
    market.end_slice(job, status=SliceEnd.FINISHED, now=now)
    return now


def move(job, zone, second):
    """The job leaves its node after 9 of 36 steps and goes on elsewhere."""
    run(job, zone, 101)
    now = market.slot_at(zone, 101) + timedelta(seconds=8)
    market.end_slice(job, status=SliceEnd.PAUSED, step=9, now=now)
    Node.objects.filter(pk=second.pk).update(last_heartbeat_at=market.slot_at(zone, 103))
    later = market.slot_at(zone, 102)
    with enter_lane(zone=zone, now=later) as lane:
        request_job_replan(job=job, reason="Moved.", now=later, is_trouble=False)
        replan_jobs(lane, preferred={job.pk: second.pk})
    run(job, zone, 103)
    assert market.open_slice(job).node == second


def failed_after_a_move(zone, owner, provider):
    """A job of which one node did 9 of 36 steps, and which another one failed for good."""
    bid, job = sold(owner, zone, epochs=3)
    move(job, zone, market.node(zone, of=provider))
    Job.objects.filter(pk=job.pk).update(system_faults=4)
    now = market.slot_at(zone, 103)
    market.end_slice(job, status=SliceEnd.FAILED, step=18, now=now, fault=Fault.SYSTEM)
    return bid, job, now


def test_success_leaves_the_price_and_pays_the_provider_its_ask(zone, owner):
    node = market.node(zone)
    bid, job = sold(owner, zone, epochs=3)
    run(job, zone, 101, 102, 103)
    now = market.slot_at(zone, 103)
    market.end_slice(job, status=SliceEnd.FINISHED, now=now)
    settled(job, bid, now)
    assert (bid.refund_micros, bid.credit_micros) == (0, 0)
    assert get_wallet(organisation=owner) == Wallet(available_micros=9_700_000, held_micros=0)
    assert earned(node) == 300_000
    assert get_house_balances()["revenue"] == 0
    assert verify_zone(zone).problems == []


def test_early_success_frees_unused_cells_and_pays_the_node_for_all_of_the_work(zone, owner):
    node = market.node(zone)
    bid, job = sold(owner, zone, epochs=3)
    run(job, zone, 101)
    now = market.slot_at(zone, 101)
    market.end_slice(job, status=SliceEnd.FINISHED, now=now)
    settled(job, bid, now)
    # The zone's next turn begins with it.
    assert LogEntry.objects.filter(zone=zone, kind="CellsReleased").count() == 1
    held = Reservation.objects.filter(bid=bid, released_at=None)
    assert list(held.values_list("slot", flat=True)) == [101]
    assert bid.refund_micros == 0
    assert earned(node) == 300_000
    assert paid_nodes(bid) == [(node.name, 36, 300_000, 300_000)]
    assert get_house_balances()["revenue"] == 0
    assert verify_zone(zone).problems == []


def stopping(zone, owner, **terms):
    """A job of 36 steps that may stop after one evaluation that is no lower; evaluated every 4."""
    training = market.job_terms(epochs=3, early_stopping=1, eval_every_steps=4)["training"]
    return sold(owner, zone, training=training, **terms)


def test_work_that_early_stopping_spares_is_refunded(zone, owner):
    node = market.node(zone)
    bid, job = stopping(zone, owner)
    run(job, zone, 101)
    now = market.slot_at(zone, 101)
    market.end_slice(
        job, status=SliceEnd.FINISHED, step=12, now=now, stopped_early=True, best_step=8
    )
    settled(job, bid, now)
    assert (job.status, job.stopped_early, job.best_step) == ("succeeded", True, 8)
    # A third of the steps were done; what was spared goes back at its value.
    assert (bid.refund_micros, bid.credit_micros) == (196_000, 0)
    assert get_wallet(organisation=owner) == Wallet(available_micros=9_896_000, held_micros=0)
    assert earned(node) == 100_000
    assert get_house_balances()["revenue"] == 0
    messages = list(JobEvent.objects.filter(job=job).values_list("message", flat=True))
    assert any("Stopped early after step 12 of 36" in message for message in messages)
    assert any(
        "Work that early stopping spared, but for $0.004 that is kept: $0.196 " in text
        for text in messages
    )
    assert verify_zone(zone).problems == []


def test_samples_of_a_job_that_stopped_early_are_paid_for(owner):
    zone = market.zone(work_costs=market.WORK_COSTS | {"forward": PARTS // 2})
    node = market.node(zone)
    bid, job = stopping(zone, owner)
    run(job, zone, job.cells[0][0])
    now = market.slot_at(zone, job.cells[0][0])
    market.end_slice(
        job, status=SliceEnd.FINISHED, step=12, now=now, stopped_early=True, best_step=8
    )
    settled(job, bid, now)
    plan = load_work_plan(job)
    done = plan.count_until(12) + plan.sample_units
    assert plan.count_until(12) < done < plan.total_units
    assert WorkShare.objects.get(bid=bid).units == done
    spared = bid.payment_micros * (plan.total_units - done) // plan.total_units
    assert bid.refund_micros == spared * 98 // 100
    assert earned(node) == bid.payment_micros - spared


@pytest.mark.parametrize(
    ("step", "best"),
    [(12, None), (12, 12), (12, 10), (11, 4), (36, 8), (12, -1), (4, 8)],
)
def test_an_early_stop_that_the_settings_do_not_allow_is_refused(zone, owner, step, best):
    market.node(zone)
    _, job = stopping(zone, owner)
    run(job, zone, 101)
    with pytest.raises(UserError) as caught:
        market.end_slice(
            job,
            status=SliceEnd.FINISHED,
            step=step,
            total_steps=37,
            now=market.slot_at(zone, 101),
            stopped_early=True,
            best_step=best,
        )
    assert caught.value.code == "work_missing"


def test_a_late_job_that_stopped_early_gets_its_refund_and_its_credit(zone, owner):
    node = market.node(zone)
    bid, job = stopping(zone, owner, slots=3)
    run(job, zone, 101, 102, 103)
    Job.objects.filter(pk=job.pk).update(deadline_at=slot_ends_at(zone, 102))
    now = market.slot_at(zone, 103)
    market.end_slice(
        job, status=SliceEnd.FINISHED, step=12, now=now, stopped_early=True, best_step=8
    )
    settled(job, bid, now)
    assert (bid.refund_micros, bid.credit_micros) == (200_000, 75_000)
    assert earned(node) == 25_000
    assert get_house_balances()["revenue"] == 0
    assert verify_zone(zone).problems == []


def test_missed_deadline_is_credited_out_of_the_pay_of_the_node_that_was_late(zone, owner):
    node = market.node(zone)
    bid, job = sold(owner, zone, epochs=3, slots=3)
    run(job, zone, 101, 102, 103)
    now = end_late(job, zone)
    settled(job, bid, now)
    assert (bid.refund_micros, bid.credit_micros) == (0, 75_000)
    assert get_wallet(organisation=owner).available_micros == 9_775_000
    assert earned(node) == 225_000
    assert paid_nodes(bid) == [(node.name, 36, 300_000, 225_000)]
    assert get_house_balances()["sla_credits"] == 0
    assert verify_zone(zone).problems == []


def test_a_late_end_that_is_no_providers_fault_is_credited_by_the_house(zone, owner):
    node = market.node(zone)
    bid, job = sold(owner, zone, epochs=3, slots=3)
    Job.objects.filter(pk=job.pk).update(deadline_at=NOW + timedelta(seconds=5))
    run(job, zone, 101)
    now = market.slot_at(zone, 103)
    market.end_slice(job, status=SliceEnd.FINISHED, now=now)
    settled(job, bid, now)
    assert bid.credit_micros == 75_000
    assert earned(node) == 300_000
    assert get_house_balances()["sla_credits"] == -75_000


def leave_at_the_deadline(job, zone, *, step):
    """The node lets the job go in its last slot, three seconds before the deadline."""
    run(job, zone, 101, 102, 103)
    now = slot_ends_at(zone, 103) - timedelta(seconds=3)
    market.end_slice(job, status=SliceEnd.PAUSED, step=step, now=now)


def replan_at(job, zone, slot):
    now = market.slot_at(zone, slot)
    Node.objects.filter(status=NodeStatus.ONLINE).update(last_heartbeat_at=now)
    run(job, zone, slot)
    refresh_zone(zone=zone, now=now)
    job.refresh_from_db()
    return now


def test_a_node_that_leaves_a_job_just_before_its_deadline_pays_for_the_late_end(zone, owner):
    node = market.node(zone)
    bid, job = sold(owner, zone, epochs=3, slots=3)
    leave_at_the_deadline(job, zone, step=35)
    replan_at(job, zone, 104)
    now = replan_at(job, zone, 105)
    market.end_slice(job, status=SliceEnd.FINISHED, now=now)
    settled(job, bid, now)
    assert (bid.credit_micros, earned(node)) == (75_000, 225_000)
    assert get_house_balances()["sla_credits"] == 0


def test_a_node_that_leaves_a_job_and_then_the_market_is_not_paid_by_the_house(zone, owner):
    node = market.node(zone)
    bid, job = sold(owner, zone, epochs=3, slots=3)
    leave_at_the_deadline(job, zone, step=35)
    Node.objects.filter(pk=node.pk).update(status=NodeStatus.OFFLINE)
    now = replan_at(job, zone, 104)
    assert (job.status, job.fault) == ("failed", "system")
    settled(job, bid, now)
    assert (bid.refund_micros, earned(node)) == (300_000, 0)
    assert get_house_balances()["refunds"] == 0


def test_a_node_that_is_gone_when_its_cells_come_is_at_fault_and_not_the_one_before_it(zone, owner):
    market.node(zone)
    _, job = sold(owner, zone, epochs=3)
    second = market.node(zone, ask_micros=9 * market.CELL_MICROS)
    move(job, zone, second)
    market.end_slice(job, status=SliceEnd.PAUSED, step=18, now=market.slot_at(zone, 103))
    Node.objects.filter(pk=second.pk).update(status=NodeStatus.OFFLINE)
    replan_at(job, zone, 104)
    assert job.blamed_nodes == [second.pk]


def test_an_owner_whose_own_node_was_late_gets_no_credit(zone):
    node, owner = own_node(zone)
    bid, job = sold(owner, zone, epochs=3, slots=3)
    run(job, zone, 101, 102, 103)
    now = end_late(job, zone)
    settled(job, bid, now)
    assert (bid.refund_micros, bid.credit_micros) == (0, 0)
    assert earned(node) == 300_000


def test_failure_of_the_house_is_refunded_whole_and_the_node_that_fell_silent_earns_nothing(
    zone, owner
):
    node = market.node(zone)
    bid, job = sold(owner, zone, epochs=3, slots=4)
    run(job, zone, 101, 102)
    checkpointed(job, 9)
    node.status = NodeStatus.OFFLINE
    node.save()
    refresh_zone(zone=zone, now=market.slot_at(zone, 103))
    sweep_leases(now=market.slot_at(zone, 103))
    now = market.slot_at(zone, 106)
    refresh_zone(zone=zone, now=now)
    job.refresh_from_db()
    assert (job.status, job.fault) == ("failed", "system")
    settled(job, bid, now)
    assert bid.refund_micros == 300_000
    assert get_wallet(organisation=owner) == Wallet(available_micros=10_000_000, held_micros=0)
    # It did 72 of 270 units, and it is why the job failed.
    assert earned(node) == 0
    assert paid_nodes(bid) == [(node.name, 9, 80_000, 0)]
    refunds = JobEvent.objects.filter(job=job, kind="refunded")
    assert [event.data for event in refunds] == [{"amount_micros": 300_000}]
    assert verify_zone(zone).problems == []


def test_the_house_pays_for_work_that_others_did_before_a_job_failed(zone, owner):
    first, second = market.node(zone), market.provider()
    bid, job, now = failed_after_a_move(zone, owner, second)
    settled(job, bid, now)
    assert bid.refund_micros == 300_000
    assert earned(first) == 80_000
    assert get_earnings(organisation=second.organisation).pending_micros == 0
    assert get_house_balances()["refunds"] == -80_000
    assert get_house_balances()["revenue"] == 0
    found = find_distribution(hold_reference=bid.hold_reference)
    assert found is not None
    assert (found.asks_micros, found.asks_returned_micros) == (300_000, 300_000)
    assert (found.borne_pay_micros, found.at_fault) == (80_000, second.organisation)


def test_what_the_house_bears_for_one_provider_in_a_day_is_limited(zone, owner, settings):
    settings.HOUSE_BEARS_MICROS_PER_DAY = 85_000
    second, third = market.provider(), market.node(market.zone())
    first = market.node(zone)
    bid, job, now = failed_after_a_move(zone, owner, second)
    settled(job, bid, now)
    assert earned(first) == 80_000
    bid, job, now = failed_after_a_move(third.zone, owner, second)
    settled(job, bid, now)
    # The owner has everything back all the same.
    assert get_wallet(organisation=owner).available_micros == 10_000_000
    assert earned(third) == 5_000
    assert sum_borne(at_fault_id=second.organisation.pk, since=NOW) == 85_000


def test_five_failures_of_the_bidders_own_node_give_its_job_back_at_its_value(zone):
    node, owner = own_node(zone)
    bid, job = sold(owner, zone, epochs=3)
    run(job, zone, 101)
    checkpointed(job, 9)
    Job.objects.filter(pk=job.pk).update(system_faults=4)
    now = market.slot_at(zone, 101)
    market.end_slice(job, status=SliceEnd.FAILED, step=9, now=now, fault=Fault.SYSTEM)
    settled(job, bid, now)
    # 198 of 270 units are left, for which 220,000 was paid; two cells are enough for them now.
    assert (bid.refund_micros, earned(node)) == (196_000, 80_000)
    assert get_wallet(organisation=owner).available_micros == 9_896_000
    assert get_house_balances()["revenue"] == get_house_balances()["refunds"] == 0


def test_cancelled_job_is_refunded_for_the_work_not_done(zone, owner):
    node = market.node(zone)
    bid, job = sold(owner, zone, epochs=3)
    run(job, zone, 101, 102)
    now = market.slot_at(zone, 102)
    report_step(job, 18, now)
    job.refresh_from_db()
    # An epoch of 90 units and 6 steps of 8; the last step of an epoch has 2.
    assert quote_cancelling(bid=bid, job=job, now=now) == CancelQuote(143_732, 2_934, 153_334)
    cancel_sold_job(job=job, cancelled_by=None, now=now)
    settled(job, bid, now)
    assert (bid.refund_micros, earned(node)) == (143_732, 153_334)
    assert verify_zone(zone).problems == []


def test_a_warm_start_that_cost_more_than_a_cold_one_is_settled_when_it_is_cancelled(zone, owner):
    node = market.node(zone)
    bid, job = sold(owner, zone, epochs=3)
    # 200,000 of asks and a royalty of 100,000, where a cold start would have cost 220,000.
    parts = bid.parts | {"operational": 200_000.0, "vendor": 100_000.0}
    start = Start(StartKind.CONTINUED, "art_earlier", "ftjob-earlier", royalty_micros=100_000)
    terms = replace(bid.terms, start=start)
    Bid.objects.update(parts=parts, terms=terms, cold_price_micros=220_000)
    bid.refresh_from_db()
    assert bid.excess_micros == 80_000
    run(job, zone, 101, 102)
    now = market.slot_at(zone, 102)
    report_step(job, 9, now)
    job.refresh_from_db()
    expected = quote_cancelling(bid=bid, job=job, now=now).refund_micros
    cancel_sold_job(job=job, cancelled_by=None, now=now)
    settled(job, bid, now)
    # 72 of 270 units were done; of the 80,000 too much, as large a part is left to give back.
    # Of 146,666 for the rest, beside the royalty, a fiftieth is kept.
    assert earned(node) == 53_334
    assert bid.refund_micros == expected == 220_000 - 2_934 + 80_000 * 72 // 270


def test_cancelling_one_step_before_the_end_returns_that_step_only(zone, owner):
    node = market.node(zone)
    bid, job = sold(owner, zone, epochs=3)
    run(job, zone, 101)
    now = market.slot_at(zone, 101)
    report_step(job, 35, now)
    cancel_sold_job(job=job, cancelled_by=None, now=now)
    settled(job, bid, now)
    assert (bid.refund_micros, earned(node)) == (2_177, 297_778)


def test_job_cancelled_before_it_began_pays_a_fiftieth_and_its_cells_are_sold_again(zone, owner):
    node = market.node(zone)
    sold_out = [sold(owner, zone, slots=1, price_micros=1_000_000) for _ in range(4)]
    bid, job = sold_out[0]
    assert quote_cancelling(bid=bid, job=job, now=NOW) == CancelQuote(98_000, 2_000, 0)
    cancel_sold_job(job=job, cancelled_by=None, now=NOW)
    settled(job, bid, NOW)
    assert (bid.payment_micros, bid.refund_micros) == (100_000, 98_000)
    assert earned(node) == 0
    balances = get_house_balances()
    assert (balances["congestion"], balances["revenue"]) == (2_000, 0)
    split = find_distribution(hold_reference=bid.hold_reference)
    # All of this price is what the node asks, so what is kept comes out of that.
    assert (split.asks_kept_micros, split.asks_returned_micros) == (2_000, 98_000)
    told = JobEvent.objects.get(job=job, kind="refunded").message
    assert told.startswith("Work that was not done, but for $0.002 that is kept: $0.098 ")
    again, _ = sold(owner, zone, slots=1, price_micros=1_000_000)
    assert again.status == "admitted"
    assert verify_zone(zone).problems == []


def test_a_job_cancelled_after_little_work_pays_for_it_and_a_fiftieth_of_the_rest(zone, owner):
    node = market.node(zone)
    bid, job = sold(owner, zone, epochs=3)
    run(job, zone, 101)
    now = market.slot_at(zone, 101)
    report_step(job, 1, now)
    job.refresh_from_db()
    # 8 of 270 units are work.
    assert quote_cancelling(bid=bid, job=job, now=now) == CancelQuote(285_288, 5_823, 8_889)
    cancel_sold_job(job=job, cancelled_by=None, now=now)
    settled(job, bid, now)
    assert (bid.refund_micros, earned(node)) == (285_288, 8_889)
    assert get_house_balances()["congestion"] == 5_823


def test_only_the_operational_cost_goes_back_of_the_cell_that_runs(zone, owner):
    market.node(zone)
    bid, job = sold(owner, zone, epochs=3)
    # A tenth of the price is asks, the rest congestion.
    Bid.objects.update(parts=bid.parts | {"operational": 30_000.0, "compute": 270_000.0})
    bid.refresh_from_db()
    run(job, zone, 101, 102, 103)
    now = market.slot_at(zone, 103)
    report_step(job, 35, now)
    job.refresh_from_db()
    assert quote_cancelling(bid=bid, job=job, now=now) == CancelQuote(217, 2_005, 297_778)
    cancel_sold_job(job=job, cancelled_by=None, now=now)
    settled(job, bid, now)
    assert (bid.refund_micros, get_house_balances()["congestion"]) == (217, 2_005)


def test_a_job_is_worth_no_more_than_it_costs_now(zone, owner):
    node = market.node(zone)
    bid, job = sold(owner, zone, epochs=3)
    # By now another node asks half of it.
    market.node(zone, ask_micros=node.ask_micros // 2)
    refresh_zone(zone=zone, now=NOW)
    assert quote_cancelling(bid=bid, job=job, now=NOW) == CancelQuote(147_000, 153_000, 0)
    cancel_sold_job(job=job, cancelled_by=None, now=NOW)
    settled(job, bid, NOW)
    assert bid.refund_micros == 147_000
    again, _ = sold(owner, zone, epochs=3)
    assert again.payment_micros == 150_000
    assert verify_zone(zone).problems == []


def test_an_owner_gets_what_its_job_was_worth_when_it_was_cancelled(zone, owner):
    node = market.node(zone)
    bid, job = sold(owner, zone, epochs=3)
    shown = quote_cancelling(bid=bid, job=job, now=NOW).refund_micros
    cancel_sold_job(job=job, cancelled_by=None, at_least_micros=shown, now=NOW)
    # What another asks later changes nothing: the next turn of the zone begins with its cells.
    market.node(zone, ask_micros=node.ask_micros // 2)
    refresh_zone(zone=zone, now=NOW)
    assert not Reservation.objects.filter(bid=bid, released_at=None).exists()
    settled(job, bid, NOW)
    assert bid.refund_micros == shown == 294_000
    assert verify_zone(zone).problems == []


def test_what_is_shown_counts_cells_that_wait_to_go_on_sale(zone, owner):
    node = market.node(zone)
    market.node(zone, ask_micros=node.ask_micros // 2)
    first, *_, (bid, job) = [sold(owner, zone, slots=1, price_micros=1_000_000) for _ in range(5)]
    assert (first[0].payment_micros, bid.payment_micros) == (50_000, 100_000)
    assert quote_cancelling(bid=bid, job=job, now=NOW).refund_micros == 98_000
    cancel_sold_job(job=first[1], cancelled_by=None, now=NOW)
    shown = quote_cancelling(bid=bid, job=job, now=NOW).refund_micros
    cancel_sold_job(job=job, cancelled_by=None, at_least_micros=shown, now=NOW)
    assert settle_finished(now=NOW) == 2
    bid.refresh_from_db()
    assert bid.refund_micros == shown == 49_000
    assert verify_zone(zone).problems == []


def cancel_rented(zone, owner):
    """A job whose price is rent by half, cancelled before cells that begin soon."""
    node = market.node(zone)
    prices = {node.pk: (1_000.0,) * 144}
    with enter_lane(zone=zone, now=NOW) as lane:
        free = dict.fromkeys(prices, (0.0,) * 144)
        lane.apply(events.PricesSolved(101, compute_price=prices, memory_price=free))
    bid, job = sold(owner, zone, epochs=3)
    assert bid.payment_micros == 600_000
    shown = quote_cancelling(bid=bid, job=job, now=NOW)
    assert shown == CancelQuote(294_000, 306_000, 0, waits_micros=294_000)
    cancel_sold_job(job=job, cancelled_by=None, at_least_micros=294_000, now=NOW)
    assert settle_finished(now=NOW) == 0
    return bid, job


@pytest.mark.parametrize(("buyers", "back"), [(0, 0), (4, 294_000)])
def test_the_rent_of_cells_that_begin_soon_goes_back_as_they_are_sold_again(
    zone, owner, buyers, back
):
    bid, job = cancel_rented(zone, owner)
    for _ in range(buyers):
        other, _ = sold(owner, zone, epochs=3, slots=3)
        assert other.payment_micros >= 600_000
    for slot in (101, 102):
        assert settle_finished(now=market.slot_at(zone, slot)) == 0
    settled(job, bid, market.slot_at(zone, 103))
    assert (bid.refund_micros, get_house_balances()["congestion"]) == (
        294_000 + back,
        306_000 - back,
    )


def test_money_waits_for_the_log_to_say_what_was_sold_again(zone, owner, monkeypatch):
    bid, job = cancel_rented(zone, owner)
    for _ in range(4):
        sold(owner, zone, epochs=3, slots=3)
    for slot in (101, 102):
        refresh_zone(zone=zone, now=market.slot_at(zone, slot))
    # No turn can run in the last slot whose beginning says something.
    with monkeypatch.context() as broken:
        broken.setattr(settlement, "refresh_zone", lambda **_: False)
        assert settle_finished(now=market.slot_at(zone, 103)) == 0
        assert settle_job(job=job, now=market.slot_at(zone, 104)) is None
    settled(job, bid, market.slot_at(zone, 104))
    assert (bid.waits_micros, bid.refund_micros) == (0, 588_000)


def test_a_zone_without_turns_keeps_no_rent_and_its_log_changes_nothing_later(
    zone, owner, monkeypatch
):
    bid, job = cancel_rented(zone, owner)
    Bid.objects.filter(pk=bid.pk).update(kept_if_won_micros=300_000)
    with monkeypatch.context() as broken:
        broken.setattr(settlement, "refresh_zone", lambda **_: False)
        last = NOW + timedelta(seconds=settlement.WAIT_SLOTS * zone.slot_s)
        assert settle_finished(now=last - timedelta(microseconds=1)) == 0
        settled(job, bid, last)
    # Its owner held nothing up.
    assert bid.refund_micros == 594_000
    due = (bid.waits_micros, bid.kept_micros, bid.kept_if_won_micros)
    assert due == (0, 12_000, 6_000)
    refresh_zone(zone=zone, now=last)
    bid.refresh_from_db()
    assert (bid.waits_micros, bid.kept_micros, bid.kept_if_won_micros) == due


def test_a_job_that_was_settled_since_a_turn_began_says_nothing_in_the_log(zone, owner):
    market.node(zone)
    _, job = sold(owner, zone)
    cancel_sold_job(job=job, cancelled_by=None, now=NOW)
    Job.objects.update(settled_at=NOW)
    with open_lane(zone=zone, now=NOW) as lane:
        ended_jobs.release_ended_jobs(lane, [job])
        assert lane.entries == []


def test_a_job_goes_on_where_less_would_go_back_than_its_owner_was_shown(zone, owner, monkeypatch):
    node = market.node(zone)
    bid, job = sold(owner, zone, epochs=3)
    shown = quote_cancelling(bid=bid, job=job, now=NOW).refund_micros
    market.node(zone, ask_micros=node.ask_micros // 2)
    refresh_zone(zone=zone, now=NOW)
    with monkeypatch.context() as patched:
        # Neither a refusal nor a cancellation needs the zone's one writer.
        patched.setattr("marketplace.auction.lane.enter.lock_lane", None)
        with pytest.raises(Conflict, match=r"\$0.147 would go back now, not \$0.294") as refused:
            cancel_sold_job(job=job, cancelled_by=None, at_least_micros=shown, now=NOW)
        assert refused.value.extra == {"refund_micros": 147_000}
        job.refresh_from_db()
        bid.refresh_from_db()
        assert (job.is_active, bid.promised_micros) == (True, 0)
        assert Reservation.objects.filter(bid=bid, released_at=None).count() == 3
        cancel_sold_job(job=job, cancelled_by=None, at_least_micros=147_000, now=NOW)
        bid.refresh_from_db()
        assert bid.promised_micros == 147_000
    settled(job, bid, NOW)
    assert bid.refund_micros == 147_000


def test_a_job_is_worth_what_it_costs_on_a_type_that_came_after_it_was_sold(zone, owner):
    market.node(zone)
    bid, job = sold(owner, zone, epochs=3)
    market.node(zone, gpu_type=market.gpu_type("new"), ask_micros=2 * market.CELL_MICROS)
    refresh_zone(zone=zone, now=NOW)
    cancel_sold_job(job=job, cancelled_by=None, now=NOW)
    settled(job, bid, NOW)
    again, _ = sold(owner, zone, epochs=3)
    assert (bid.refund_micros, again.payment_micros) == (147_000, 150_000)
    assert verify_zone(zone).problems == []


def test_a_job_that_the_market_moved_to_another_type_is_worth_what_that_costs(zone, owner):
    node = market.node(zone)
    bid, job = sold(owner, zone, epochs=3)
    market.node(zone, gpu_type=market.gpu_type("new"))
    Node.objects.filter(pk=node.pk).update(status=NodeStatus.LEFT)
    refresh_zone(zone=zone, now=NOW)
    cancel_sold_job(job=job, cancelled_by=None, now=NOW)
    settled(job, bid, NOW)
    assert bid.refund_micros == 294_000
    assert verify_zone(zone).problems == []


def test_the_cell_that_runs_has_its_part_of_a_job_that_does_not_fill_its_cells(zone, owner):
    market.node(zone)
    bid, job = sold(owner, zone, epochs=3)
    # A tenth of the price is asks, the rest the fee; 270 units have room for 300.
    Bid.objects.update(parts=bid.parts | {"operational": 30_000.0, "fee": 270_000.0})
    bid.refresh_from_db()
    run(job, zone, 101)
    now = market.slot_at(zone, 101)
    cancel_sold_job(job=job, cancelled_by=None, now=now)
    settled(job, bid, now)
    # 200,000 for the two cells to come, and of the one that runs what it costs to run.
    assert bid.refund_micros == (200_000 + 10_000) * 98 // 100


def test_a_job_is_worth_what_it_was_as_it_ended_however_late_its_zone_has_a_turn(zone, owner):
    node = market.node(zone)
    bid, job = sold(owner, zone, epochs=3)
    market.node(zone, ask_micros=node.ask_micros // 2)
    refresh_zone(zone=zone, now=NOW)
    cancel_sold_job(job=job, cancelled_by=None, now=NOW)
    # By now all of its cells have passed.
    settled(job, bid, market.slot_at(zone, 110))
    assert bid.refund_micros == 147_000
    assert verify_zone(zone).problems == []


def test_a_job_that_ended_in_a_slot_without_a_turn_is_given_back_from_the_next_slot_on(zone, owner):
    market.node(zone)
    bid, job = sold(owner, zone, epochs=3)
    now = market.slot_at(zone, 101)
    cancel_sold_job(job=job, cancelled_by=None, now=now)
    settled(job, bid, now)
    [entry] = LogEntry.objects.filter(zone=zone, kind="CellsReleased")
    assert '"arrival_slot":102' in entry.event
    assert verify_zone(zone).problems == []


def test_an_early_stop_is_worth_what_it_was_before_its_score_was_measured(zone, owner, monkeypatch):
    node = market.node(zone)
    bid, job = stopping(zone, owner)
    run(job, zone, 101)
    market.node(zone, ask_micros=node.ask_micros // 2)
    now = market.slot_at(zone, 101)
    refresh_zone(zone=zone, now=now)
    market.end_slice(
        job, status=SliceEnd.FINISHED, step=12, now=now, stopped_early=True, best_step=8
    )
    with monkeypatch.context() as measured:
        measured.setattr(settlement, "open_score_checks", lambda jobs, *, now: [])
        assert settle_finished(now=now) == 0
    settled(job, bid, market.slot_at(zone, 110))
    # 200,000 was paid for two cells that cost half by then.
    assert bid.refund_micros == 98_000
    assert verify_zone(zone).problems == []


def test_a_job_whose_node_belongs_to_its_owners_people_is_no_way_out(zone, owner):
    node = market.node(zone)
    person = node.provider.organisation.memberships.first()
    assert person is not None
    owner.memberships.create(user=person.user, role="owner")
    bid, job = sold(owner, zone)
    late = job.deadline_at + timedelta(seconds=1)
    Job.objects.update(finish_planned_at=late, blamed_nodes=[node.pk])
    fail_job(job=job, fault=FaultOf.SYSTEM, reason="No plan is left.", now=NOW)
    settled(job, bid, NOW)
    assert bid.payment_micros - bid.refund_micros == bid.payment_micros // 50


@pytest.mark.parametrize(("is_own", "kept"), [(True, 5_289), (False, 0)])
def test_only_a_strangers_node_makes_a_job_fail_by_what_it_said_of_the_result(
    zone, owner, monkeypatch, is_own, kept
):
    node = market.node(zone)
    if is_own:
        person = builders.owner_of(node.provider.organisation)
        owner.memberships.create(user=person, role="owner")
    bid, job = stopping(zone, owner)
    run(job, zone, 101)
    now = market.slot_at(zone, 101)
    market.end_slice(
        job, status=SliceEnd.FINISHED, step=4, now=now, stopped_early=True, best_step=0
    )
    provider = node.provider.organisation_id
    monkeypatch.setattr(endings, "find_refuted_organisation", lambda job: provider)
    settled(job, bid, now)
    done = bid.payment_micros - bid.refund_micros - get_house_balances()["congestion"]
    assert (done > 0) == is_own
    assert get_house_balances()["congestion"] == kept


def test_a_tight_deadline_makes_no_more_of_a_job_than_its_cells_are_worth(zone, owner):
    node = market.node(zone)
    bid, job = sold(owner, zone, epochs=3, slots=3)
    run(job, zone, 101)
    now = market.slot_at(zone, 101)
    # Two slots are left for the work of three, and room there costs half of what it did.
    market.node(zone, ask_micros=node.ask_micros // 2)
    refresh_zone(zone=zone, now=now)
    cancel_sold_job(job=job, cancelled_by=None, now=now)
    settled(job, bid, now)
    # All of the price is operational cost: 111,111 for the slot that runs, half of 200,000.
    assert bid.refund_micros < 220_000


def test_what_was_kept_goes_back_where_the_market_is_found_at_fault_after_all(zone, owner):
    market.node(zone)
    bid, job = sold(owner, zone)
    cancel_sold_job(job=job, cancelled_by=None, now=NOW)
    refresh_zone(zone=zone, now=NOW)
    Job.objects.update(finish_planned_at=job.deadline_at + timedelta(seconds=1))
    settled(job, bid, NOW)
    assert (bid.kept_micros, bid.refund_micros) == (bid.payment_micros // 50, bid.payment_micros)


def test_a_job_that_the_market_cannot_end_in_time_goes_back_whole(zone, owner):
    market.node(zone)
    bid, job = sold(owner, zone)
    Job.objects.update(finish_planned_at=job.deadline_at + timedelta(seconds=1))
    job.refresh_from_db()
    assert quote_cancelling(bid=bid, job=job, now=NOW) == CancelQuote(bid.payment_micros, 0, 0)
    cancel_sold_job(job=job, cancelled_by=None, now=NOW)
    settled(job, bid, NOW)
    assert bid.refund_micros == bid.payment_micros


def test_an_owner_whose_own_node_made_its_job_late_gets_its_value_back(zone):
    node, owner = own_node(zone)
    bid, job = sold(owner, zone)
    late = job.deadline_at + timedelta(seconds=1)
    Job.objects.update(finish_planned_at=late, blamed_nodes=[node.pk])
    job.refresh_from_db()
    cancel_sold_job(job=job, cancelled_by=None, now=NOW)
    settled(job, bid, NOW)
    assert bid.payment_micros - bid.refund_micros == bid.payment_micros // 50


def test_a_job_that_is_cancelled_after_the_market_failed_it_stays_refunded_whole(zone, owner):
    market.node(zone)
    bid, job = sold(owner, zone)
    fail_job(job=job, fault=FaultOf.SYSTEM, reason="No plan is left.", now=NOW)
    with pytest.raises(Conflict, match="has ended"):
        cancel_sold_job(job=job, cancelled_by=None, now=NOW)
    settled(job, bid, NOW)
    with pytest.raises(Conflict, match="has ended"):
        cancel_sold_job(job=job, cancelled_by=None, now=NOW)
    assert bid.refund_micros == bid.payment_micros
    assert get_house_balances().get("congestion", 0) == 0


def test_a_job_cancelled_again_and_again_pays_once(zone, owner):
    market.node(zone)
    bid, job = sold(owner, zone)
    for _ in range(3):
        cancel_sold_job(job=job, cancelled_by=None, now=NOW)
        settle_finished(now=NOW)
    bid.refresh_from_db()
    kept = bid.payment_micros // 50
    assert bid.payment_micros - bid.refund_micros == kept
    assert get_house_balances()["congestion"] == kept
    assert get_wallet(organisation=owner).available_micros == 10_000_000 - kept


def test_a_job_that_stops_early_at_once_is_given_back_as_a_cancelled_one_is(zone, owner):
    node = market.node(zone)
    training = market.job_terms(epochs=3, early_stopping=1, eval_every_steps=1)["training"]
    bid, job = sold(owner, zone, epochs=3, training=training)
    run(job, zone, 101)
    now = market.slot_at(zone, 101)
    market.end_slice(
        job, status=SliceEnd.FINISHED, step=2, now=now, stopped_early=True, best_step=1
    )
    settled(job, bid, now)
    kept = bid.payment_micros - bid.refund_micros
    rest = bid.payment_micros - earned(node)
    assert kept == earned(node) + rest - rest * 98 // 100 == 23_423
    assert get_house_balances()["congestion"] == kept - earned(node)


def test_providers_of_a_moved_job_are_paid_in_proportion_to_the_work_each_did(zone, owner):
    first = market.node(zone)
    bid, job = sold(owner, zone, epochs=3)
    second = market.node(zone, ask_micros=9 * market.CELL_MICROS)
    move(job, zone, second)
    run(job, zone, 104)
    now = market.slot_at(zone, 104)
    market.end_slice(job, status=SliceEnd.FINISHED, now=now)
    settled(job, bid, now)
    assert paid_nodes(bid) == [
        (first.name, 9, 80_000, 80_000),
        (second.name, 27, 220_000, 220_000),
    ]
    assert (earned(first), earned(second)) == (80_000, 220_000)
    assert bid.refund_micros == 0
    assert get_house_balances()["revenue"] == 0
    assert verify_zone(zone).problems == []


def test_running_jobs_are_left_alone(zone, owner):
    market.node(zone)
    _, job = sold(owner, zone, epochs=3)
    run(job, zone, 101)
    assert settle_finished(now=market.slot_at(zone, 102)) == 0
    assert get_wallet(organisation=owner).available_micros == 9_700_000


# --- What cannot be settled -------------------------------------------------------------------


def test_a_job_that_cannot_be_settled_is_shown_and_retried_while_the_others_go_on(
    zone, owner, monkeypatch
):
    market.node(zone)
    bad, bad_job = sold(owner, zone)
    good, good_job = sold(owner, zone)
    for job in (bad_job, good_job):
        cancel_sold_job(job=job, cancelled_by=None, now=NOW)
    distribute, held = settlement.distribute_charge, get_wallet(organisation=owner)

    def distribute_some(*, hold_reference, **rest):
        if hold_reference == bad.hold_reference:
            raise RuntimeError("odd")
        distribute(hold_reference=hold_reference, **rest)

    monkeypatch.setattr(settlement, "distribute_charge", distribute_some)
    assert settle_finished(now=NOW) == 1
    good_job.refresh_from_db()
    assert good_job.settled_at == NOW
    # Nothing of the failed try is left but the note.
    [shown] = list_bids_not_settled()
    assert (shown.pk, shown.failure, shown.failures) == (bad.pk, "RuntimeError: odd", 1)
    assert (shown.refund_micros, shown.retry_at) == (0, NOW + RETRY_AFTER)
    back = get_wallet(organisation=owner).available_micros - held.available_micros
    assert back == good.payment_micros * 98 // 100
    assert list(list_bids_set_aside()) == []

    # Not before its time, and then with twice the wait.
    assert settle_finished(now=NOW + RETRY_AFTER / 2) == 0
    assert Bid.objects.get(pk=bad.pk).failures == 1
    later = NOW + RETRY_AFTER
    assert settle_finished(now=later) == 0
    assert Bid.objects.get(pk=bad.pk).retry_at == later + 2 * RETRY_AFTER

    monkeypatch.undo()
    last = later + 2 * RETRY_AFTER
    settled(bad_job, bad, last)
    assert (bad.failure, bad.failures, bad.retry_at) == ("", 0, None)
    assert bad.refund_micros == bad.payment_micros * 98 // 100
    assert list(list_bids_not_settled()) == []


def test_a_zone_whose_cells_cannot_be_given_back_does_not_hold_up_another(zone, owner, monkeypatch):
    market.node(zone)
    bad, bad_job = sold(owner, zone)
    other = market.zone()
    market.node(other)
    good, good_job = sold(owner, other)
    # A zone whose log is broken ends a job as any other does.
    MarketHead.objects.filter(zone=zone).update(head_hash="0" * 64)
    for job in (bad_job, good_job):
        cancel_sold_job(job=job, cancelled_by=None, now=NOW)
    with pytest.raises(Conflict, match="cannot be read now"):
        quote_cancelling(bid=bad, job=bad_job, now=NOW)
    assert settle_finished(now=NOW) == 1
    good_job.refresh_from_db()
    bad_job.refresh_from_db()
    assert (good_job.settled_at, good.zone_id) == (NOW, other.pk)
    assert (bad_job.status, bad_job.settled_at) == ("cancelled", None)
    # Until its cell has begun, the market may come back and value it; then what was paid counts.
    settled(bad_job, bad, market.slot_at(zone, 101))
    assert bad.refund_micros == bad.payment_micros * 98 // 100


def test_a_turn_that_took_long_for_ended_jobs_leaves_the_rest_to_the_next(zone, owner, monkeypatch):
    market.node(zone)
    for job in [sold(owner, zone)[1] for _ in range(3)]:
        cancel_sold_job(job=job, cancelled_by=None, now=NOW)
    ticks = partial(next, count(step=0.6))
    monkeypatch.setattr(ended_jobs, "RELEASE_FOR_S", 1.0)
    monkeypatch.setattr(ended_jobs, "time", SimpleNamespace(monotonic=ticks))
    refresh_zone(zone=zone, now=NOW)
    # At 0.6 s the first and at 1.2 s no other.
    assert LogEntry.objects.filter(zone=zone, kind="CellsReleased").count() == 1
    monkeypatch.undo()
    assert settle_finished(now=NOW) == 3


def test_a_job_whose_cells_cannot_be_given_back_does_not_hold_up_its_zone(zone, owner, monkeypatch):
    market.node(zone)
    jobs = [sold(owner, zone)[1] for _ in range(3)]
    for job in jobs:
        fail_job(job=job, fault=FaultOf.USER, reason="No such column.", now=NOW)
    judge = ended_jobs.judge_ending

    def judge_some(job):
        if job.pk == jobs[1].pk:
            raise RuntimeError("odd")
        return judge(job)

    monkeypatch.setattr(ended_jobs, "judge_ending", judge_some)
    assert settle_finished(now=NOW) == 2
    [shown] = list_bids_not_settled()
    assert (shown.pk, shown.failure) == (jobs[1].bid_id, "RuntimeError: odd")
    held = Reservation.objects.filter(released_at=None)
    assert set(held.values_list("bid_id", flat=True)) == {jobs[1].bid_id}
    assert verify_zone(zone).problems == []
