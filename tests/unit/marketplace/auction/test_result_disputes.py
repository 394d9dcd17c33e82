"""Results that are found wanting: refused, measured, disputed, and their money taken back."""

from __future__ import annotations

from datetime import timedelta

import pytest

from marketplace.accounts.models import Role
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import ResultDispute, WorkShare
from marketplace.auction.models.disputes import DISPUTABLE_FOR
from marketplace.auction.result_disputes import (
    can_be_disputed,
    conclude_disputes,
    decide_result_dispute,
    open_result_dispute,
    take_back_pay,
)
from marketplace.auction.settlement import settle_finished
from marketplace.checks import scores
from marketplace.checks.models import SpotCheck
from marketplace.common.errors import Conflict, NotAllowed, UserError
from marketplace.fleet.models import NodeStatus, Provider
from marketplace.jobs.errands import hand_out_errands, sweep_errands
from marketplace.jobs.models import Artifact, ErrandState, Job, JobStatus
from marketplace.jobs.services import dispatch_slots, record_progress
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.maturity import mature_earnings
from marketplace.payments.models import Earning
from marketplace.payments.selectors import get_earnings, get_wallet
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from tests.errand_builders import answer_errand, list_errands
from workers.protocol.checks import CheckResult
from workers.protocol.errands import CHECK
from workers.protocol.reports import ProgressEvent, ProgressReport, SliceEnd

pytestmark = pytest.mark.django_db

PAID = 300_000


@pytest.fixture(autouse=True)
def results_are_checked(settings):
    settings.SPOT_CHECK_SHARE = 0.001


@pytest.fixture
def zone():
    return market.zone()


@pytest.fixture
def owner():
    return builders.organisation(usd="10")


@pytest.fixture
def node(zone):
    return market.node(zone)


def sold(owner, zone):
    bid = market.bid(owner, zone, epochs=3)
    decide_pending_bids(zone=zone, now=NOW)
    job = Job.objects.get(bid_id=bid.pk)
    for slot in (101, 102, 103):
        dispatch_slots(now=market.slot_at(zone, slot))
    return bid, job, market.slot_at(zone, 103)


def report(job, now, **figures):
    held = market.open_slice(job)
    event = ProgressEvent(
        seq=1, at=now.timestamp(), step=36, total_steps=36, epoch=3.0, samples_done=36, **figures
    )
    record_progress(node=held.node, report=ProgressReport(held.lease_token, (event,)), now=now)


def end(job, now, *, loss=1.0):
    report(job, now)
    market.end_slice(job, status=SliceEnd.FINISHED, now=now, valid_loss_after=loss)
    job.refresh_from_db()


def believe(node, monkeypatch):
    """As of a node whose first results were measured, and this one is not drawn."""
    monkeypatch.setattr(scores, "compute_share", lambda node, now: 0.0)


def settled_unmeasured(owner, zone, node, monkeypatch):
    believe(node, monkeypatch)
    bid, job, now = sold(owner, zone)
    end(job, now)
    assert settle_finished(now=now) == 1
    job.refresh_from_db()
    return bid, job, now


def checker_of(zone, now):
    """A node of another provider, which the operator verified."""
    other = market.node(zone, last_heartbeat_at=now)
    Provider.objects.filter(pk=other.provider_id).update(verified_at=NOW)
    return other


def answer(score, now):
    sweep_errands(now=now)
    hand_out_errands(now=now)
    check = SpotCheck.objects.get(state=ErrandState.ASKED)
    asked = list_errands(check.node, CHECK)[-1]
    answer_errand(check.node, asked.token, CheckResult(score=score), now=now)


def opinion(job, checker, key, **found):
    return SpotCheck.objects.create(
        kind="check",
        key=key,
        node=checker,
        zone=job.zone,
        job=job,
        slice=Artifact.objects.get(job=job).slice,
        from_step=0,
        created_at=NOW,
        state=ErrandState.DONE,
        **found,
    )


def earned(node):
    return get_earnings(organisation=node.provider.organisation).pending_micros


def refuse(job, now, **figures):
    with pytest.raises(UserError) as refused:
        market.end_slice(job, status=SliceEnd.FINISHED, now=now, **figures)
    job.refresh_from_db()
    assert job.status == JobStatus.RUNNING
    assert job.settled_at is None
    return refused.value


def test_a_result_that_comes_too_soon_is_taken_later(zone, owner, node):
    _, job, _ = sold(owner, zone)
    held = market.open_slice(job)
    # 36 of 100 units a slot of 10 s each; eight times as fast at most.
    soon = held.opened_at + timedelta(seconds=0.1)
    report(job, soon)
    refused = refuse(job, soon, valid_loss_after=1.0)
    assert (refused.code, refused.status) == ("result_too_soon", 503)
    later = held.opened_at + timedelta(seconds=30)
    market.end_slice(job, status=SliceEnd.FINISHED, now=later, valid_loss_after=1.0)
    job.refresh_from_db()
    assert job.status == JobStatus.SUCCEEDED


def test_a_result_without_progress_or_without_its_loss_is_none(zone, owner, node):
    _, job, now = sold(owner, zone)
    assert refuse(job, now, valid_loss_after=1.0).code == "progress_missing"
    report(job, now)
    assert refuse(job, now).code == "loss_missing"
    market.end_slice(job, status=SliceEnd.FINISHED, now=now, valid_loss_after=1.0)


def test_the_first_results_of_a_node_are_measured_then_a_share(zone, owner, node, monkeypatch):
    _, job, now = sold(owner, zone)
    checker = checker_of(zone, now)
    end(job, now)
    assert settle_finished(now=now) == 0
    answer(1.0, now)
    assert settle_finished(now=now) == 1
    monkeypatch.setattr(scores, "MEASURED_A_DELAY", 0.25)
    for number in range(1, scores.FIRST_RESULTS):
        assert scores.compute_share(node, now=now) == 1.0
        opinion(job, checker, f"more {number}", claimed_score=1.0, agrees=True)
    assert scores.compute_share(node, now=now) == 0.25
    # What others say of its steps does not count.
    opinion(job, checker, "steps", agrees=True)
    assert scores.compute_share(node, now=now) == 0.25


def test_a_result_that_cost_much_is_always_measured(zone, owner, node, monkeypatch):
    other = checker_of(zone, market.slot_at(zone, 103))
    believe(node, monkeypatch)
    monkeypatch.setattr(scores, "MEASURED_ABOVE_MICROS", PAID - 1)
    _, job, now = sold(owner, zone)
    end(job, now)
    ran = WorkShare.objects.filter(bid=job.bid_id)
    assert settle_finished(now=now) == 0
    assert not ran.exists()
    assert SpotCheck.objects.get().state == ErrandState.WAITING
    assert other.pk != Artifact.objects.get(job=job).slice.node_id or node.pk != other.pk


def test_a_disputed_result_that_another_node_refutes_costs_its_owner_nothing(
    zone, owner, node, monkeypatch
):
    bid, job, now = settled_unmeasured(owner, zone, node, monkeypatch)
    assert earned(node) == PAID
    checker_of(zone, now)
    opened = open_result_dispute(
        job=job, reason="It writes noise.", opened_by=builders.owner_of(owner), now=now
    )
    again = open_result_dispute(
        job=job, reason="Again.", opened_by=builders.owner_of(owner), now=now
    )
    assert again == opened
    assert Earning.objects.get(reference=bid.hold_reference).withheld_at == now
    assert mature_earnings(now=now + timedelta(days=30)) == 0
    assert conclude_disputes(now=now) == 0
    answer(9.0, now)
    assert conclude_disputes(now=now) == 1
    assert conclude_disputes(now=now) == 0
    opened.refresh_from_db()
    assert (opened.is_for_owner, opened.decided_by) == (True, None)
    assert earned(node) == 0
    assert get_wallet(organisation=owner).available_micros == 10_000_000
    bid.refresh_from_db()
    assert bid.refund_micros == PAID
    node.refresh_from_db()
    assert node.status == NodeStatus.SUSPENDED
    check = check_ledger()
    assert check.balanced, check


def test_a_disputed_result_that_another_node_finds_again_is_paid(zone, owner, node, monkeypatch):
    bid, job, now = settled_unmeasured(owner, zone, node, monkeypatch)
    checker_of(zone, now)
    open_result_dispute(
        job=job, reason="I do not like it.", opened_by=builders.owner_of(owner), now=now
    )
    answer(1.01, now)
    assert conclude_disputes(now=now) == 1
    dispute = ResultDispute.objects.get()
    assert dispute.is_for_owner is False
    assert "1.010" in dispute.words
    assert Earning.objects.get(reference=bid.hold_reference).withheld_at is None
    assert earned(node) == PAID
    assert get_wallet(organisation=owner).available_micros == 10_000_000 - PAID
    assert not can_be_disputed(job, now=now)


@pytest.mark.parametrize("is_for_owner", [True, False])
def test_where_no_node_can_measure_an_operator_decides(
    zone, owner, node, monkeypatch, is_for_owner
):
    _, job, now = settled_unmeasured(owner, zone, node, monkeypatch)
    dispute = open_result_dispute(
        job=job, reason="It writes noise.", opened_by=builders.owner_of(owner), now=now
    )
    assert conclude_disputes(now=now) == 0
    stranger, operator = builders.user(), builders.user(is_operator=True)
    decision = {
        "dispute": dispute,
        "is_for_owner": is_for_owner,
        "words": "I looked at it.",
        "now": now,
    }
    with pytest.raises(NotAllowed):
        decide_result_dispute(decided_by=stranger, **decision)
    gains = owner if is_for_owner else node.provider.organisation
    friend = builders.user(is_operator=True)
    gains.memberships.create(user=friend, role=Role.MEMBER)
    with pytest.raises(NotAllowed) as own:
        decide_result_dispute(decided_by=friend, **decision)
    assert own.value.code == "own_dispute"
    decide_result_dispute(decided_by=operator, **decision)
    with pytest.raises(Conflict):
        decide_result_dispute(decided_by=operator, **decision)
    assert earned(node) == (0 if is_for_owner else PAID)
    left = 10_000_000 - (0 if is_for_owner else PAID)
    assert get_wallet(organisation=owner).available_micros == left
    assert check_ledger().balanced


def test_a_result_can_be_disputed_once_it_is_settled_and_for_three_days(
    zone, owner, node, monkeypatch
):
    believe(node, monkeypatch)
    _, job, now = sold(owner, zone)
    end(job, now)
    with pytest.raises(Conflict):
        open_result_dispute(job=job, reason="No.", opened_by=builders.owner_of(owner), now=now)
    settle_finished(now=now)
    job.refresh_from_db()
    assert can_be_disputed(job, now=now + DISPUTABLE_FOR - timedelta(seconds=1))
    assert not can_be_disputed(job, now=now + DISPUTABLE_FOR)
    with pytest.raises(UserError):
        open_result_dispute(job=job, reason=" ", opened_by=builders.owner_of(owner), now=now)
    assert not ResultDispute.objects.exists()


def test_a_node_that_failed_a_check_loses_its_unpaid_pay_to_the_owners(
    zone, owner, node, monkeypatch
):
    bid, job, now = settled_unmeasured(owner, zone, node, monkeypatch)
    opinion(job, checker_of(zone, now), "elsewhere", agrees=False, failed_at=now)
    assert take_back_pay(now=now) == 1
    assert take_back_pay(now=now) == 0
    assert earned(node) == 0
    assert get_wallet(organisation=owner).available_micros == 10_000_000
    assert list(WorkShare.objects.filter(bid=bid).values_list("paid_micros", flat=True)) == [0]
    assert check_ledger().balanced


def test_the_pay_of_a_result_that_was_measured_is_not_taken_back(zone, owner, node, monkeypatch):
    _, job, now = settled_unmeasured(owner, zone, node, monkeypatch)
    checker = checker_of(zone, now)
    opinion(job, checker, "elsewhere", agrees=False, failed_at=now)
    opinion(job, checker, "own", claimed_score=1.0, agrees=True)
    assert take_back_pay(now=now) == 0
    assert earned(node) == PAID


def test_what_matured_is_not_taken_back(zone, owner, node, monkeypatch):
    _, job, now = settled_unmeasured(owner, zone, node, monkeypatch)
    later = now + timedelta(days=30)
    assert mature_earnings(now=later) == 1
    opinion(job, checker_of(zone, now), "elsewhere", agrees=False, failed_at=later)
    assert take_back_pay(now=later) == 0
    assert get_earnings(organisation=node.provider.organisation).payable_micros == PAID
    assert check_ledger().balanced
