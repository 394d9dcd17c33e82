"""A node that says of its loss what is not so: a target score ends a job, and must not pay for it.

A target score is looked at on held-out rows, which only nodes compute. Another provider's node
measures the result of a job that ended there before its money is settled. If it loses more than was
said, the owner gets everything back and the node is set aside, unpaid. Without a target no claim
ends a job.
"""

from __future__ import annotations

import io
import math
from dataclasses import replace
from datetime import timedelta
from fractions import Fraction

import pytest

from marketplace.accounts.models import Role
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.models import Reservation
from marketplace.auction.settlement import settle_finished
from marketplace.checks import verdicts
from marketplace.checks.checkers import find_checker
from marketplace.checks.models import SpotCheck
from marketplace.checks.verdicts import SCORE_GIVEN_UP_AFTER
from marketplace.common.errors import UserError
from marketplace.express.bank import give_consent, record_finished_jobs
from marketplace.express.models import BankPrompt, LookupRecord, Sharing
from marketplace.express.seat_autoscaler import settle_seats
from marketplace.fleet.models import Node, NodeStatus, Provider
from marketplace.jobs.errands import find_errand_blob, hand_out_errands, sweep_errands
from marketplace.jobs.models import ErrandState, JobStatus, Slice
from marketplace.jobs.services import (
    dispatch_slots,
    finish_slice,
    record_progress,
    result_checks,
    store_adapter,
)
from marketplace.jobs.work import load_work_plan
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.models import Earning
from marketplace.payments.selectors import get_wallet
from tests import builders, job_builders
from tests import market_builders as market
from tests.errand_builders import answer_errand, list_errands
from tests.express_builders import OPEN_AT, answered, ask, job_of, open_lane, zone_with_nodes
from workers.protocol.checks import CheckResult, score_agrees
from workers.protocol.errands import CHECK
from workers.protocol.reports import SliceEnd
from workers.protocol.work import PARTS

pytestmark = pytest.mark.django_db

#: Evaluated after every step, so that a claim may come with the first.
OFTEN = {"epochs": 2, "eval_every_steps": 1}


@pytest.fixture(autouse=True)
def results_are_checked(settings, monkeypatch):
    settings.SPOT_CHECK_SHARE = 0.02
    # Seconds of a test are not a node's.
    monkeypatch.setattr(result_checks, "PACE_MOST", 1e6)


def after(seconds):
    return OPEN_AT + timedelta(seconds=seconds)


def begin(owner, zone, **training):
    request = answered(ask(owner, zone, **OFTEN | training))
    dispatch_slots(now=OPEN_AT)
    return request, job_of(request)


def claim(job, *, loss, step=1, stopped_early=True):
    """End a job as its node reports it."""
    held = Slice.objects.select_related("node").get(job=job, status="open")
    content = job_builders.adapter_file(adapter=job.terms.adapter)
    store_adapter(
        node=held.node, lease_token=held.lease_token, content=io.BytesIO(content), now=after(2)
    )
    total = load_work_plan(job).total_steps
    reached = job_builders.event(1, step=max(0, step), total_steps=total)
    record_progress(node=held.node, report=job_builders.report(held, reached), now=after(2))
    said = job_builders.result(held, SliceEnd.FINISHED, step=step, copied_tokens=0)
    said = replace(
        said,
        total_steps=total,
        stopped_early=stopped_early,
        valid_loss_before=2.0,
        valid_loss_after=loss,
    )
    finish_slice(node=held.node, result=said, now=after(3))
    job.refresh_from_db()


def earn_of_seats(lane):
    settle_seats(lane, now=after(600))
    earned = Earning.objects.filter(reference__startswith="bid")
    return sum(earned.values_list("amount_micros", flat=True))


def measure(score, *, at_s, verified=False):
    """The node that is asked measures the result and tells what it found."""
    sweep_errands(now=after(at_s))
    hand_out_errands(now=after(at_s))
    check = SpotCheck.objects.get(state=ErrandState.ASKED)
    if verified:
        Provider.objects.filter(pk=check.node.provider_id).update(verified_at=OPEN_AT)
    asked = list_errands(check.node, CHECK)[-1]
    adapter = find_errand_blob(node=check.node, token=asked.token, name="adapter", now=after(at_s))
    assert asked.task.scores_start
    assert asked.task.job.warm_start.adapter.sha256 == adapter.sha256
    answer_errand(check.node, asked.token, CheckResult(score=score), now=after(at_s + 1))
    check.refresh_from_db()
    return check


def pay_share(request, job):
    """Of its price, what an owner pays for a job that ended after its first step."""
    plan = load_work_plan(job)
    share = max(0.25, plan.count_ended_at(1) / plan.count_ended_at(plan.total_steps))
    return request.answer["price_micros"] * share


@pytest.mark.parametrize("most", [Fraction(1, 50), Fraction(1, 1000)])
def test_an_early_end_is_settled_once_another_node_has_measured_the_result(
    zone, lane, owner, monkeypatch, most
):
    monkeypatch.setattr(verdicts, "PAY_SHARE", most)
    zone.work_costs = zone.work_costs | {"forward": PARTS // 2}
    zone.save()
    before = get_wallet(organisation=owner).available_micros
    request, job = begin(owner, zone, target_loss=0.5)
    claim(job, loss=0.4)
    assert settle_finished(now=after(4)) == 0
    assert settle_finished(now=after(5)) == 0
    check = measure(0.43, at_s=6)
    assert (check.agrees, check.found_score) == (True, 0.43)
    # Two units at 0.40 dollars for 400, or the share of what the work costs its owner.
    plan = load_work_plan(job)
    done = Fraction(plan.count_ended_at(1), plan.count_ended_at(plan.total_steps))
    assert check.paid_micros == min(2000, math.floor(job.price_micros * done * most)) > 0
    assert settle_finished(now=after(8)) == 1
    paid = before - get_wallet(organisation=owner).available_micros
    assert paid == pytest.approx(pay_share(request, job), abs=1)
    assert paid < request.answer["price_micros"]
    # The checker is paid for one evaluation; the seat's provider has no pay for the job itself.
    assert Earning.objects.get().amount_micros == check.paid_micros
    assert check_ledger().balanced
    assert verify_zone(zone).problems == []


def test_a_false_target_score_sets_the_node_aside_unpaid_and_refunds_its_owner(zone, lane, owner):
    before = get_wallet(organisation=owner)
    give_consent(organisation=owner, sharing=Sharing.EVERYBODY, given_by=None, now=OPEN_AT)
    _, job = begin(owner, zone, target_loss=0.5)
    node = Slice.objects.get(job=job).node
    claim(job, loss=0.01)
    assert settle_finished(now=after(4)) == 0
    assert record_finished_jobs(now=after(5)) == 0
    check = measure(1.9, at_s=6, verified=True)
    assert (check.agrees, check.failed_at) == (False, after(7))
    assert settle_finished(now=after(8)) == 1
    assert get_wallet(organisation=owner) == before
    node.refresh_from_db()
    assert node.status == NodeStatus.SUSPENDED
    assert earn_of_seats(lane) == 0
    record_finished_jobs(now=after(9))
    assert not BankPrompt.objects.exists()
    assert LookupRecord.objects.get(pk=job.pk).left_out.startswith("Another node found")
    told = job.events.values_list("message", flat=True)
    assert any("Another node found a higher loss on the held-out rows" in text for text in told)
    assert check_ledger().balanced
    assert verify_zone(zone).problems == []


def test_a_result_is_measured_by_no_friend_and_by_a_verified_provider_if_there_is_one(
    zone, lane, owner
):
    _, job = begin(owner, zone, target_loss=0.5)
    ran = Slice.objects.get(job=job).node
    for party in (owner, ran.provider.organisation):
        friend = market.node(zone, last_heartbeat_at=after(3)).provider
        person = builders.owner_of(party)
        friend.organisation.memberships.create(user=person, role=Role.MEMBER)
    verified = market.node(zone, last_heartbeat_at=after(3))
    Provider.objects.filter(pk=verified.provider_id).update(verified_at=OPEN_AT)
    claim(job, loss=0.4)
    settle_finished(now=after(4))
    check = SpotCheck.objects.get()
    assert find_checker(check, now=after(4)) == verified
    Provider.objects.filter(pk=verified.provider_id).update(verified_at=None)
    other = Node.objects.exclude(pk=ran.pk).earliest("pk")
    for name in map(str, range(20)):
        check.id = name
        assert find_checker(check, now=after(4)) in (other, verified)


def test_one_word_against_a_score_needs_a_second(lane, zone, owner):
    market.node(zone, last_heartbeat_at=OPEN_AT)
    _, job = begin(owner, zone, target_loss=0.5)
    node = Slice.objects.get(job=job).node
    claim(job, loss=0.01)
    settle_finished(now=after(4))
    first = measure(1.9, at_s=6)
    # The owner's money waits for the second opinion as well.
    assert settle_finished(now=after(8)) == 0
    second = measure(0.02, at_s=9)
    assert second.confirms == first
    assert len({node.provider_id, first.node.provider_id, second.node.provider_id}) == 3
    assert settle_finished(now=after(11)) == 1
    node.refresh_from_db()
    assert node.status == NodeStatus.ONLINE


def test_a_checker_that_cannot_measure_is_followed_by_another(lane, zone, owner):
    market.node(zone, last_heartbeat_at=OPEN_AT)
    _, job = begin(owner, zone, target_loss=0.5)
    claim(job, loss=0.01)
    settle_finished(now=after(4))
    silent = measure(None, at_s=6)
    assert silent.state == ErrandState.WAITING
    found = measure(1.9, at_s=8, verified=True)
    assert found.pk == silent.pk
    assert found.attempts == 2
    assert found.failed_at == after(9)


def test_without_another_provider_an_early_end_is_settled_as_it_was_reported(owner):
    zone = zone_with_nodes(1)
    open_lane(zone)
    request, job = begin(owner, zone, target_loss=0.5)
    before = get_wallet(organisation=owner).available_micros
    claim(job, loss=0.01)
    assert settle_finished(now=after(4)) == 1
    assert SpotCheck.objects.get().state == ErrandState.FAILED
    kept = request.answer["price_micros"] - (
        get_wallet(organisation=owner).available_micros - before
    )
    assert kept == pytest.approx(pay_share(request, job), abs=1)


def test_a_check_that_nobody_answers_lets_the_money_go(zone, lane, owner):
    _, job = begin(owner, zone, target_loss=0.5)
    claim(job, loss=0.01)
    settle_finished(now=after(4))
    late = SCORE_GIVEN_UP_AFTER.total_seconds() + 5
    hand_out_errands(now=after(late))
    assert SpotCheck.objects.get().state == ErrandState.FAILED
    assert settle_finished(now=after(late + 1)) == 1


@pytest.mark.parametrize(("share", "settled"), [(1.0, 0), (0.0, 1)])
def test_of_jobs_that_ran_to_their_end_the_share_drawn_is_measured(
    zone, lane, owner, settings, share, settled
):
    settings.SPOT_CHECK_SHARE = share
    _, job = begin(owner, zone)
    steps = load_work_plan(job).total_steps
    claim(job, loss=1.0, step=steps, stopped_early=False)
    assert settle_finished(now=after(4)) == settled


@pytest.mark.parametrize(
    ("found", "agrees"),
    [(0.5, True), (0.1, True), (0.545, True), (0.56, False), (None, None), (math.nan, None)],
)
def test_a_score_agrees_within_what_devices_differ_by(found, agrees):
    assert score_agrees(0.5, found) is agrees


def test_a_seat_pays_the_same_whatever_its_node_claims(zone, lane, owner):
    _, job = begin(owner, zone, target_loss=0.5)
    claim(job, loss=0.01)
    settle_finished(now=after(4))
    # Its money waits for that of the job.
    assert earn_of_seats(lane) == 0
    measure(0.01, at_s=5)
    settle_finished(now=after(8))
    asks = Reservation.objects.filter(bid_id__in=lane.seats.values("pk"), released_at=None)
    due = sum(asks.values_list("operational_cost_micros", flat=True))
    assert earn_of_seats(lane) == due > 0


@pytest.mark.parametrize("loss", [0.0, -1.0, 0.01])
def test_without_a_target_no_loss_ends_a_job_early(zone, lane, owner, loss):
    _, job = begin(owner, zone)
    with pytest.raises(UserError) as refused:
        claim(job, loss=loss)
    assert refused.value.code == "work_missing"
    job.refresh_from_db()
    assert job.status == JobStatus.RUNNING


@pytest.mark.parametrize("loss", [0.51, math.nextafter(0.5, 1.0), None])
def test_a_loss_above_the_target_ends_no_job(zone, lane, owner, loss):
    _, job = begin(owner, zone, target_loss=0.5)
    with pytest.raises(UserError) as refused:
        claim(job, loss=loss)
    assert refused.value.code == "work_missing"


@pytest.mark.parametrize("step", [0, -1])
def test_a_target_score_before_the_first_step_ends_no_job(zone, lane, owner, step):
    _, job = begin(owner, zone, target_loss=0.5)
    with pytest.raises(UserError):
        claim(job, loss=0.01, step=step)
    job.refresh_from_db()
    assert job.status == JobStatus.RUNNING
