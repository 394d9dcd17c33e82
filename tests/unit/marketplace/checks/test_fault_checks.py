"""Input that a node blames: who trains the steps again, and who pays for what comes out."""

from __future__ import annotations

import io
from datetime import timedelta

import pytest

from marketplace.accounts.models import Membership
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.endings import judge_ending
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.pay_rule import Ending
from marketplace.auction.settlement import settle_finished
from marketplace.checks import fault_checks
from marketplace.checks.fault_checks import GIVEN_UP_AFTER, STEPS_LATER, open_fault_checks
from marketplace.checks.models import FaultCheck
from marketplace.common.errors import NotFound, UserError
from marketplace.fleet.models import Node, NodeStatus, Provider
from marketplace.jobs.errands import find_errand_blob, hand_out_errands, sweep_errands
from marketplace.jobs.executed_work import list_organisations_at_fault, list_slices
from marketplace.jobs.models import Checkpoint, ErrandState, Job, Slice, SliceStatus
from marketplace.jobs.selectors import list_job_checkpoints
from marketplace.jobs.services import cancel_job, dispatch_slots, record_progress, store_checkpoint
from marketplace.jobs.work import load_work_plan
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.models import Earning
from marketplace.payments.selectors import get_earnings, get_house_balances, get_wallet
from tests import builders
from tests import job_builders as build
from tests import market_builders as market
from tests.builders import NOW
from tests.errand_builders import answer_errand, list_errands
from workers.protocol.errands import FAULT, ErrandSpec
from workers.protocol.fault_checks import FaultCheckResult
from workers.protocol.reports import Fault, SliceEnd

pytestmark = pytest.mark.django_db

FOUND, NOTHING = FaultCheckResult("The loss is not a number.", 5), FaultCheckResult()


@pytest.fixture
def zone():
    return market.zone()


@pytest.fixture
def owner():
    return builders.organisation(usd="10")


def blamed(owner, zone, *, step=3):
    """A job of 36 steps that its node stored, and blamed two steps later; bid, job, when."""
    bid = market.bid(owner, zone, epochs=3)
    decide_pending_bids(zone=zone, now=NOW)
    bid.refresh_from_db()
    job = Job.objects.get(bid_id=bid.pk)
    now = market.slot_at(zone, 101)
    dispatch_slots(now=now)
    held = build.lease(job)
    event = build.event(1, step=step, total_steps=36)
    record_progress(node=held.node, report=build.report(held, event), now=now)
    content = io.BytesIO(build.safetensors())
    lease = {"node": held.node, "lease_token": held.lease_token}
    store_checkpoint(step=step, content=content, now=now, **lease)
    end = {"status": SliceEnd.FAILED, "fault": Fault.USER, "reason": "It diverged."}
    market.end_slice(job, step=step + 2, now=now, **end)
    return bid, job, now


def ask(now) -> tuple[Node | None, ErrandSpec | None]:
    """Hand the check out; whom it is asked of, and what."""
    open_fault_checks(now=now)
    hand_out_errands(now=now)
    node = FaultCheck.objects.get().node
    return node, None if node is None else list_errands(node, FAULT)[-1]


def earned(node):
    return get_earnings(organisation=node.provider.organisation).pending_micros


def verify(*nodes):
    Provider.objects.filter(nodes__in=nodes).update(verified_at=NOW)


def past_slice(job, node, status):
    """One of another node, before the one that ended last."""
    return Slice.objects.create(
        job=job,
        node=node,
        lease_token="past",
        status=status,
        first_slot=100,
        last_slot=100,
        lease_expires_at=NOW,
        opened_at=NOW,
        closed_at=NOW,
        result={"fault": "user"},
    )


@pytest.mark.parametrize(
    ("alone", "verified", "too_long", "pay"),
    [
        (True, False, False, 0),
        (True, True, False, 26_667),
        (False, False, False, 26_667),
        (False, False, True, 0),
    ],
)
def test_settings_that_diverge_are_their_owners_end_and_pay_for_what_was_trained_again(
    zone, owner, monkeypatch, alone, verified, too_long, pay
):
    node = market.node(zone)
    if verified:
        verify(node)
    if too_long:
        monkeypatch.setattr(fault_checks, "LONGEST", timedelta(0))
    bid, job, now = blamed(owner, zone)
    second = node if alone else market.node(zone)
    asked, errand = ask(now)
    assert (asked, errand.task.until_step) == (second, 5 + STEPS_LATER)
    # What it stored itself may be what the steps fail on.
    resume = errand.task.resume_from
    assert (None if resume is None else resume.step) == (3 if too_long else None)
    answer_errand(asked, errand.token, FOUND, now=now)
    job.refresh_from_db()
    assert (job.status, job.fault, job.failure_reason) == ("failed", "user", "It diverged.")
    # What is not paid for is not handed out.
    assert list_job_checkpoints(job).exists() is bool(pay)
    assert settle_finished(now=now) == 1
    bid.refresh_from_db()
    # 24 of 270 units stand in the checkpoint; 98 % of what the rest is worth goes back.
    back = (300_000 - pay) * 98 // 100
    assert (bid.refund_micros, get_house_balances()["congestion"]) == (back, 300_000 - pay - back)
    assert get_wallet(organisation=owner).available_micros == 9_700_000 + back
    # Who repeats its own claim is paid nothing for it.
    paid = FaultCheck.objects.get().paid_micros
    # Ten steps cost more than a fiftieth of the price.
    assert (earned(node), paid) == (pay, 0 if alone else 6_000)
    assert sum(Earning.objects.values_list("amount_micros", flat=True)) == pay + paid
    assert verify_zone(zone).problems == []
    assert check_ledger().balanced


@pytest.mark.parametrize(
    ("verified", "step", "counted"), [(True, 4, 12), (True, None, 30), (False, 4, 30)]
)
def test_steps_after_the_one_where_the_fault_shows_elsewhere_are_not_paid(
    zone, owner, verified, step, counted
):
    node = market.node(zone)
    _, job, now = blamed(owner, zone, step=30)
    second = market.node(zone)
    if verified:
        verify(second)
    asked, errand = ask(now)
    answer_errand(asked, errand.token, FaultCheckResult("It is no number.", step), now=now)
    check = FaultCheck.objects.get()
    assert (check.found_step, check.until_step) == (step or 40, 40)
    assert settle_finished(now=now) == 1
    plan = load_work_plan(job)
    assert Slice.objects.get().steps_lost == 32 - counted
    # Another device may come to it a few steps later.
    assert earned(node) == -(-300_000 * plan.count_until(counted) // plan.total_units)
    assert list_job_checkpoints(job).exists() is (counted == 30)
    assert check_ledger().balanced


def test_a_stranger_gets_the_jobs_files_and_is_asked_before_friends(zone, owner):
    node = market.node(zone)
    _, job, now = blamed(owner, zone)
    Checkpoint.objects.update(slice=past_slice(job, market.node(zone), SliceStatus.PAUSED))
    Node.objects.exclude(pk=node.pk).update(status=NodeStatus.RESTING)
    market.node(zone, of=node.provider)
    own = market.node(zone)
    Membership.objects.create(
        organisation=own.provider.organisation, user=builders.owner_of(owner), role="member"
    )
    stranger = market.node(zone)
    asked, errand = ask(now)
    assert asked == stranger
    assert errand.task.job.job_id == FaultCheck.objects.get().pk
    assert errand.task.resume_from.step == 3
    for ref in (errand.task.job.dataset, errand.task.resume_from.blob):
        name = ref.url.rpartition("/")[2]
        found = find_errand_blob(node=stranger, token=errand.token, name=name, now=now)
        assert (found.sha256, found.bytes) == (ref.sha256, ref.bytes)
    for of, name in ((node, "dataset"), (stranger, "prompts"), (stranger, "../x")):
        with pytest.raises(NotFound):
            find_errand_blob(node=of, token=errand.token, name=name, now=now)


def test_a_job_whose_input_is_sound_goes_on_elsewhere_at_no_cost_to_its_owner(zone, owner):
    node = market.node(zone)
    bid, job, now = blamed(owner, zone)
    market.node(zone)
    second = market.node(zone)
    verify(second)
    asked, errand = ask(now)
    assert asked == second
    answer_errand(second, errand.token, NOTHING, now=now)
    job.refresh_from_db()
    assert (job.is_active, job.needs_replan, job.system_faults) == (True, True, 1)
    assert Node.objects.get(pk=node.pk).faults_in_row == 1
    Node.objects.update(last_heartbeat_at=market.slot_at(zone, 103))
    refresh_zone(zone=zone, now=market.slot_at(zone, 102))
    dispatch_slots(now=market.slot_at(zone, 103))
    held = build.lease(job)
    assert (held.node != node, held.first_step) == (True, 0)
    last = market.slot_at(zone, 104)
    market.end_slice(job, status=SliceEnd.FINISHED, step=36, now=last)
    assert settle_finished(now=last) == 1
    bid.refresh_from_db()
    assert (bid.refund_micros, bid.credit_micros) == (0, 0)
    assert get_house_balances()["congestion"] == 0
    assert check_ledger().balanced


def test_a_job_goes_on_where_no_node_could_train_its_steps_again(zone, owner):
    node = market.node(zone)
    _, job, now = blamed(owner, zone)
    Node.objects.update(last_heartbeat_at=now - timedelta(hours=1))
    assert ask(now) == (None, None)
    later = now + GIVEN_UP_AFTER
    hand_out_errands(now=later)
    job.refresh_from_db()
    assert FaultCheck.objects.get().state == ErrandState.FAILED
    assert (job.awaits_fault_check, job.needs_replan, job.system_faults) == (False, True, 1)
    assert Node.objects.get(pk=node.pk).faults_in_row == 0
    assert open_fault_checks(now=later) == 0


def test_a_job_that_is_cancelled_meanwhile_stays_so(zone, owner):
    market.node(zone)
    _, job, now = blamed(owner, zone)
    asked, errand = ask(now)
    cancel_job(job=job, cancelled_by=None, now=now)
    answer_errand(asked, errand.token, FOUND, now=now)
    job.refresh_from_db()
    assert (job.status, job.fault) == ("cancelled", "")
    sweep_errands(now=now + timedelta(days=1))
    assert FaultCheck.objects.get().state == ErrandState.DONE


@pytest.mark.parametrize(
    ("words", "at_fault"), [([NOTHING], 0), ([NOTHING, FOUND], 0), ([NOTHING, NOTHING], 1)]
)
def test_one_unverified_word_for_the_input_is_not_held_against_a_node(zone, owner, words, at_fault):
    node = market.node(zone)
    _, job, now = blamed(owner, zone)
    asked = []
    for _ in words:
        market.node(zone)
    open_fault_checks(now=now)
    for word in words:
        hand_out_errands(now=now)
        check = FaultCheck.objects.get(state=ErrandState.ASKED)
        asked.append(check.node.provider_id)
        answer_errand(check.node, check.token, word, now=now)
    assert len({node.provider_id, *asked}) == 1 + len(words)
    job.refresh_from_db()
    assert (job.is_active, job.awaits_fault_check, job.system_faults) == (True, False, 1)
    assert Node.objects.get(pk=node.pk).faults_in_row == at_fault
    assert len(list_organisations_at_fault(job, list_slices(job))) == at_fault


def test_the_last_one_asked_is_the_providers_other_node(zone, owner):
    node = market.node(zone)
    _, _, now = blamed(owner, zone)
    other = market.node(zone, of=node.provider)
    market.node(zone)
    open_fault_checks(now=now)
    FaultCheck.objects.update(attempts=2)
    assert ask(now)[0] == other


def test_a_node_does_not_blame_the_input_sooner_than_it_can_have_done_the_steps(
    zone, owner, settings
):
    settings.SPOT_CHECK_SHARE = 0.02
    market.node(zone)
    with pytest.raises(UserError) as refused:
        blamed(owner, zone)
    assert (refused.value.code, refused.value.status) == ("result_too_soon", 503)
    assert Job.objects.get().awaits_fault_check is False


def test_all_checks_of_a_job_have_one_limit(zone, owner):
    node = market.node(zone)
    _, job, now = blamed(owner, zone)
    market.node(zone)
    FaultCheck.objects.create(
        kind="fault",
        zone=zone,
        state=ErrandState.FAILED,
        job=job,
        slice=past_slice(job, node, SliceStatus.PAUSED),
        from_step=0,
        until_step=1,
        created_at=NOW,
        paid_micros=5_990,
    )
    open_fault_checks(now=now)
    hand_out_errands(now=now)
    check = FaultCheck.objects.get(state=ErrandState.ASKED)
    answer_errand(check.node, check.token, FOUND, now=now)
    check.refresh_from_db()
    assert check.paid_micros == 10


def test_a_job_that_is_blamed_twice_for_nothing_is_ended_by_the_house(zone, owner):
    node = market.node(zone)
    bid, job, now = blamed(owner, zone)
    past_slice(job, market.node(zone), SliceStatus.FAILED)
    Node.objects.update(last_heartbeat_at=now - timedelta(hours=1))
    ask(now)
    hand_out_errands(now=now + GIVEN_UP_AFTER)
    job.refresh_from_db()
    assert (job.status, job.fault) == ("failed", "system")
    assert settle_finished(now=now + GIVEN_UP_AFTER) == 1
    bid.refresh_from_db()
    assert (bid.refund_micros, earned(node)) == (300_000, 0)
    assert check_ledger().balanced


@pytest.mark.parametrize(("alone", "ending"), [(True, Ending.LATE), (False, Ending.STOPPED)])
def test_a_late_job_whose_input_is_at_fault_goes_back_whole(zone, owner, alone, ending):
    market.node(zone)
    _, job, now = blamed(owner, zone)
    if not alone:
        market.node(zone)
    Job.objects.update(deadline_at=now - timedelta(seconds=1))
    asked, errand = ask(now)
    answer_errand(asked, errand.token, FOUND, now=now)
    job.refresh_from_db()
    case = judge_ending(job)
    assert (case.ending, case.is_given_back) == (ending, False)


def test_a_check_that_cannot_be_opened_keeps_no_other_from_it(zone, owner):
    broken = build.job(zone, (0, market.node(zone)))
    Job.objects.filter(pk=broken.pk).update(awaits_fault_check=True)
    _, job, now = blamed(owner, zone)
    assert open_fault_checks(now=now) == 1
    assert FaultCheck.objects.get().job == job
