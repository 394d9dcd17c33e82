"""A paused job gives back what a cancelled one does, and a bid goes on from its checkpoint."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from safetensors.numpy import save

from marketplace.auction.bidding.place import NewBid, place_bid
from marketplace.auction.bidding.quotes import make_quote
from marketplace.auction.bidding.resuming import find_price_left
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.cancelling import CancelQuote, cancel_sold_job, quote_cancelling
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Bid
from marketplace.auction.pausing import pause_sold_job
from marketplace.auction.settlement import settle_finished
from marketplace.checks.models import SpotCheck
from marketplace.checks.sampling import choose_checks
from marketplace.common.errors import Conflict, UserError
from marketplace.jobs.kept_data import _list_adapter_needs
from marketplace.jobs.models import Artifact, Checkpoint, Job, JobEvent, JobStatus, NodePlan, Slice
from marketplace.jobs.selectors import find_job_blob, list_job_checkpoints
from marketplace.jobs.services import (
    delete_dataset,
    delete_job,
    discard_node_work,
    store_checkpoint,
)
from marketplace.jobs.tuned_models import find_tuned_model
from marketplace.jobs.work import compute_work_left_share, load_work_plan
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.selectors import get_wallet
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from tests.unit.marketplace.auction.test_settlement import earned, report_step, run, sold
from workers.protocol.reports import SliceEnd
from workers.protocol.starts import Resumption, Start, StartKind

pytestmark = pytest.mark.django_db


@pytest.fixture
def zone():
    return market.zone()


@pytest.fixture
def node(zone):
    # Nobody asks it here.
    return market.node(zone, last_heartbeat_at=NOW + timedelta(hours=1))


@pytest.fixture
def owner():
    return builders.organisation(usd="10")


@pytest.fixture
def paused(owner, zone, node) -> Job:
    """A job of 36 steps and 270 units, stopped in step 18 with a checkpoint of step 12."""
    _, job = sold(owner, zone, epochs=3)
    run(job, zone, 101, 102)
    now = market.slot_at(zone, 102)
    report_step(job, 12, now)
    store(job, 12)
    report_step(job, 18, now)
    pause_sold_job(job=job, paused_by=builders.owner_of(owner), now=now)
    job.refresh_from_db()
    return job


def store(job: Job, step: int):
    made = market.checkpoint(job, step=step)
    Job.objects.filter(pk=job.pk).update(checkpoint_step=step)
    return made


def settle(zone, *slots: int) -> None:
    for slot in slots:
        settle_finished(now=market.slot_at(zone, slot))
    check = check_ledger()
    assert check.balanced, check
    assert verify_zone(zone).problems == []


def ask(job: Job, *, now, key=None, **changed) -> NewBid:
    terms = {
        "organisation": job.organisation,
        "placed_by": builders.owner_of(job.organisation),
        "zone": job.zone,
        "dataset": job.dataset,
        "name": "the rest",
        "adapter": {},
        "training": {},
        "model": f"resume:{job.pk}",
        "price_micros": 1_000_000,
        "deadline_at": now + timedelta(seconds=20 * job.zone.slot_s),
        "idempotency_key": key,
    } | changed
    return NewBid(**terms)


def resume(job: Job, *, slot: int, **changed) -> tuple[Bid, Job]:
    now = market.slot_at(job.zone, slot)
    bid = place_bid(asked=ask(job, now=now, **changed), now=now)
    decide_pending_bids(zone=job.zone, now=now)
    bid.refresh_from_db()
    return bid, Job.objects.get(bid_id=bid.pk)


def test_pausing_gives_back_what_cancelling_would(owner, zone, node):
    bid, job = sold(owner, zone, epochs=3)
    run(job, zone, 101, 102)
    now = market.slot_at(zone, 102)
    report_step(job, 18, now)
    job.refresh_from_db()
    # As of test_cancelled_job_is_refunded_for_the_work_not_done.
    assert quote_cancelling(bid=bid, job=job, now=now) == CancelQuote(143_732, 2_934, 153_334)
    with pytest.raises(Conflict) as refused:
        pause_sold_job(job=job, paused_by=None, now=now, at_least_micros=143_733)
    assert refused.value.code == "refund_changed"
    pause_sold_job(job=job, paused_by=None, now=now, at_least_micros=143_732)
    pause_sold_job(job=job, paused_by=None, now=now)
    settle(zone, 103)
    bid.refresh_from_db()
    job.refresh_from_db()
    assert (bid.refund_micros, earned(node)) == (143_732, 153_334)
    assert (job.status, job.settled_at) == (JobStatus.PAUSED, market.slot_at(zone, 103))
    assert JobEvent.objects.filter(job=job, kind="owner_paused").count() == 1
    with pytest.raises(Conflict) as refused:
        cancel_sold_job(job=job, cancelled_by=None, now=now)
    assert refused.value.code == "job_ended"


def test_the_rest_is_sold_and_goes_on_from_the_checkpoint(paused, zone, node):
    settle(zone, 103)
    plan = load_work_plan(paused)
    left = plan.total_units - plan.count_until(12)
    bid, job = resume(paused, slot=103)
    [checkpoint] = list_job_checkpoints(paused)
    assert bid.compute_demand == left == 180
    assert bid.terms.resumes == Resumption(paused.pk, checkpoint.pk, 12)
    assert bid.resumed_job_id == job.resumed_job_id == paused.pk
    assert bid.terms.adapter == paused.terms.adapter
    assert bid.terms.training == paused.terms.training
    assert (job.step, job.checkpoint_step, job.status) == (12, 12, JobStatus.QUEUED)
    assert compute_work_left_share(job) == left / plan.total_units
    run(job, zone, 104)
    held = market.open_slice(job)
    assert (held.first_step, held.last_step) == (12, 12)
    [spec] = NodePlan.objects.filter(node=node).latest("pk").plan["slices"]
    assert spec["resume_from"]["step"] == 12
    assert spec["resume_from"]["blob"]["sha256"] == checkpoint.sha256
    found = find_job_blob(job, checkpoint.pk)
    assert found is not None
    assert found.file == checkpoint.file


def test_the_rest_is_paid_by_its_own_share_and_both_cost_what_the_whole_did(paused, zone, node):
    settle(zone, 103)
    before = earned(node)
    bid, job = resume(paused, slot=103)
    run(job, zone, 104, 105, 106)
    now = market.slot_at(zone, 106)
    market.end_slice(job, status=SliceEnd.FINISHED, step=36, now=now)
    settle(zone, 107)
    bid.refresh_from_db()
    job.refresh_from_db()
    assert (job.status, bid.refund_micros) == (JobStatus.SUCCEEDED, 0)
    # Two cells in place of three: 180 units of 270.
    assert bid.payment_micros == earned(node) - before == 200_000


def test_a_resumed_job_that_is_cancelled_counts_only_its_own_steps(paused, zone, node):
    settle(zone, 103)
    before = earned(node)
    bid, job = resume(paused, slot=103)
    run(job, zone, 104)
    now = market.slot_at(zone, 104)
    report_step(job, 18, now)
    job.refresh_from_db()
    due = quote_cancelling(bid=bid, job=job, now=now)
    cancel_sold_job(job=job, cancelled_by=None, now=now)
    settle(zone, 105)
    bid.refresh_from_db()
    # Steps 13 to 18 are 48 of 180 units, of $0.20.
    plan = load_work_plan(job)
    assert plan.count_between(12, 18) == 48
    assert earned(node) - before == due.used_micros == 200_000 * 48 // 180 + 1
    assert bid.refund_micros == due.refund_micros


def test_a_job_with_no_checkpoint_is_resumed_from_its_beginning(owner, zone, node):
    _, first = sold(owner, zone, epochs=3)
    pause_sold_job(job=first, paused_by=None, now=NOW)
    settle(zone, 101)
    first.refresh_from_db()
    bid, job = resume(first, slot=101)
    assert bid.terms.resumes == Resumption(first.pk)
    assert (bid.compute_demand, job.step) == (270, 0)


def test_a_resumed_job_can_be_paused_and_resumed_again(paused, zone):
    settle(zone, 103)
    _, second = resume(paused, slot=103)
    run(second, zone, 104)
    now = market.slot_at(zone, 104)
    report_step(second, 20, now)
    store(second, 20)
    second.refresh_from_db()
    pause_sold_job(job=second, paused_by=None, now=now)
    settle(zone, 105)
    second.refresh_from_db()
    bid, third = resume(second, slot=105)
    assert bid.terms.resumes.job_id == second.pk
    assert (third.step, bid.terms.resumes.step) == (20, 20)


def test_nobody_goes_on_twice_with_one_job(paused, zone):
    settle(zone, 103)
    now = market.slot_at(zone, 103)
    _, job = resume(paused, slot=103, key="first")
    assert place_bid(asked=ask(paused, now=now, key="first"), now=now).pk == job.bid_id
    held = get_wallet(organisation=paused.organisation)
    with pytest.raises(Conflict) as refused:
        place_bid(asked=ask(paused, now=now), now=now)
    assert refused.value.code == "already_resumed"
    assert get_wallet(organisation=paused.organisation) == held
    assert Bid.objects.count() == 2
    # Once it ended without a result, the checkpoint is there for another.
    cancel_sold_job(job=job, cancelled_by=None, now=now)
    assert resume(paused, slot=103)[0].status == "admitted"


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"training": {"epochs": 1}}, "training"),
        ({"adapter": {"rank": 4}}, "adapter"),
        ({"preparation": {}}, "preparation"),
    ],
)
def test_a_job_goes_on_with_its_own_settings(paused, zone, changed, param):
    now = market.slot_at(zone, 103)
    with pytest.raises(UserError) as refused:
        place_bid(asked=ask(paused, now=now, **changed), now=now)
    assert (refused.value.code, refused.value.param) == ("invalid_hyperparameter", param)
    assert Bid.objects.count() == 1


def test_what_is_not_paused_or_not_ones_own_is_not_resumed(owner, zone, node, paused):
    now = market.slot_at(zone, 103)
    _, running = sold(owner, zone)
    stranger = builders.organisation(usd="10")
    data = market.dataset(stranger, zone)
    for changed, code in (
        ({"model": f"resume:{running.pk}", "dataset": running.dataset}, "not_resumable"),
        ({"model": "resume:ftjob-none"}, "unknown_model"),
        ({"organisation": stranger, "dataset": data}, "unknown_model"),
    ):
        with pytest.raises(UserError) as refused:
            place_bid(asked=ask(paused, now=now, **changed), now=now)
        assert refused.value.code == code


def test_a_paused_job_whose_data_or_results_were_deleted_is_not_resumed(paused, zone):
    settle(zone, 103)
    now = market.slot_at(zone, 103)
    _, job = resume(paused, slot=103)
    assert "A job that goes on from its checkpoint needs it." in list(
        _list_adapter_needs(paused.pk)
    )
    cancel_sold_job(job=job, cancelled_by=None, now=now)
    delete_job(job=paused, asked_by=None, now=now)
    with pytest.raises(Conflict) as refused:
        place_bid(asked=ask(paused, now=now), now=now)
    assert refused.value.code == "not_resumable"
    Job.objects.filter(pk=paused.pk).update(deleted_at=None)
    delete_dataset(dataset=paused.dataset, asked_by=None, now=now)
    with pytest.raises(Conflict) as refused:
        place_bid(asked=ask(paused, now=now), now=now)
    assert refused.value.code == "not_resumable"


def test_a_paused_job_is_not_resumed_without_the_adapter_that_it_began_with(paused, zone):
    settle(zone, 103)
    now = market.slot_at(zone, 103)
    model = find_tuned_model(f"{paused.pk}:ckpt-step-12", organisation=paused.organisation)
    assert model is not None
    artifact = model.take_artifact(now=now)
    paused.terms = replace(
        paused.terms, start=Start(StartKind.CONTINUED, artifact.pk, artifact.job_id)
    )
    paused.save(update_fields=["terms"])
    asked = ask(paused, now=now)
    assert make_quote(asked, deadline_at=asked.deadline_at, now=now)
    Artifact.everything.filter(pk=artifact.pk).update(file="", deleted_at=now)
    gone = "The adapter that job [^ ]+ began with was deleted"
    with pytest.raises(Conflict, match=gone):
        make_quote(asked, deadline_at=asked.deadline_at, now=now)
    with pytest.raises(Conflict, match=gone):
        place_bid(asked=asked, now=now)
    assert Bid.objects.count() == 1


def test_what_was_bid_at_first_is_the_most_that_both_parts_cost(paused, zone):
    with pytest.raises(Conflict) as refused:
        find_price_left(paused)
    assert refused.value.code == "not_settled"
    settle(zone, 103)
    paused.refresh_from_db()
    bid = Bid.objects.get(pk=paused.bid_id)
    assert bid.payment_micros is not None
    kept = bid.payment_micros - bid.refund_micros
    assert kept == 156_268
    assert find_price_left(paused) == 5_000_000 - kept


def test_a_quote_is_for_the_rest(paused, zone):
    settle(zone, 103)
    now = market.slot_at(zone, 103)
    asked = ask(paused, now=now)
    quote = make_quote(asked, deadline_at=asked.deadline_at, now=now)
    assert (quote.price_micros, quote.measured.work.compute_demand) == (200_000, 180)


def test_a_job_whose_data_are_prepared_is_not_paused(owner, zone, node):
    _, job = sold(owner, zone)
    Job.objects.filter(pk=job.pk).update(awaits_data=True)
    with pytest.raises(Conflict) as refused:
        pause_sold_job(job=job, paused_by=None, now=NOW)
    assert refused.value.code == "not_pausable"
    assert Job.objects.get(pk=job.pk).is_active


def test_work_up_to_a_stored_checkpoint_is_paid_though_no_report_said_so(owner, zone, node):
    """Else pausing just after a checkpoint would buy its steps for nothing."""
    _, job = sold(owner, zone, epochs=3)
    run(job, zone, 101)
    now = market.slot_at(zone, 101)
    report_step(job, 6, now)
    held = market.open_slice(job)
    content = io.BytesIO(save({"row_losses": np.zeros(3, "f4")}))
    store_checkpoint(
        node=held.node, lease_token=held.lease_token, step=12, content=content, now=now
    )
    job.refresh_from_db()
    pause_sold_job(job=job, paused_by=None, now=now)
    held.refresh_from_db()
    assert (job.checkpoint_step, held.last_step) == (12, 12)
    settle(zone, 102)
    # 90 of 270 units.
    assert earned(node) == 100_000


def test_nothing_goes_on_from_what_a_node_that_was_set_aside_stored(paused, zone, node):
    settle(zone, 103)
    bid, job = resume(paused, slot=103)
    honest = market.node(zone, last_heartbeat_at=NOW + timedelta(hours=1))
    now = market.slot_at(zone, 104)
    discard_node_work(node=honest, reason="Another one.", now=now)
    job.refresh_from_db()
    assert job.is_active
    discard_node_work(node=node, reason="It stored other weights.", now=now)
    job.refresh_from_db()
    paused.refresh_from_db()
    assert (job.status, job.fault, paused.checkpoint_step) == ("failed", "system", 0)
    settle(zone, 105)
    bid.refresh_from_db()
    assert bid.refund_micros == bid.payment_micros
    again, third = resume(paused, slot=105)
    assert (again.terms.resumes.step, third.step) == (0, 0)


@pytest.mark.parametrize("is_other", [True, False])
def test_a_resumed_job_with_later_checkpoints_of_a_set_aside_node_only_is_not_begun_again(
    paused, zone, node, is_other
):
    """It was sold only the steps after the checkpoint that it was resumed from."""
    settle(zone, 103)
    bid, job = resume(paused, slot=103)
    before = earned(node)
    run(job, zone, 104)
    now = market.slot_at(zone, 104)
    report_step(job, 20, now)
    made = store(job, 20)
    if is_other:
        other = market.node(zone, last_heartbeat_at=NOW + timedelta(hours=1))
        first = Slice.objects.create(
            job=job,
            node=other,
            status="paused",
            lease_token="earlier",
            first_slot=103,
            last_slot=103,
            first_step=12,
            last_step=20,
            opened_at=now,
            closed_at=now,
            lease_expires_at=now,
        )
        Checkpoint.objects.filter(pk=made.pk).update(slice=first)
    discard_node_work(node=node, reason="It stored other weights.", now=now)
    job.refresh_from_db()
    if is_other:
        assert (job.is_active, job.checkpoint_step) == (True, 20)
        return
    assert (job.status, job.fault) == ("failed", "system")
    settle(zone, 105)
    bid.refresh_from_db()
    # The node that is at fault gets nothing for it.
    assert (bid.refund_micros, earned(node)) == (bid.payment_micros, before)


def test_the_first_steps_of_a_resumed_job_may_be_checked_too(paused, zone, settings):
    settings.SPOT_CHECK_SHARE = 1.0
    settle(zone, 103)
    _, job = resume(paused, slot=103)
    run(job, zone, 104)
    choose_checks(now=market.slot_at(zone, 104))
    check = SpotCheck.objects.get(job=job)
    assert check.from_step == 12
    assert check.slice == market.open_slice(job)
