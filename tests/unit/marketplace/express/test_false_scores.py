"""A node that says of its loss what is not so: a target score ends a job, and must not pay for it.

A target score is looked at on held-out rows, which only nodes compute. A node that claims it at the
first evaluation ends the job there: it gets what the work done up to there earns and no more, and
the owner what was not done back. Without a target no claim ends a job.
"""

from __future__ import annotations

import io
import math
from dataclasses import replace
from datetime import timedelta

import pytest

from marketplace.auction.book.verify import verify_zone
from marketplace.auction.models import Reservation
from marketplace.auction.settlement import settle_finished
from marketplace.common.errors import UserError
from marketplace.express.floor import settle_seats
from marketplace.jobs.models import JobStatus, Slice
from marketplace.jobs.services import dispatch_slots, finish_slice, store_adapter
from marketplace.jobs.work import load_work_plan
from marketplace.payments.models import Earning
from marketplace.payments.selectors import get_wallet
from tests import job_builders
from tests.express_builders import OPEN_AT, answered, ask, job_of
from workers.protocol.job_spec import AdapterSpec
from workers.protocol.reports import SliceEnd
from workers.protocol.wire import from_json

pytestmark = pytest.mark.django_db

#: Evaluated after every step, so that a claim may come with the first.
OFTEN = {"epochs": 2, "eval_every_steps": 1}


def after(seconds):
    return OPEN_AT + timedelta(seconds=seconds)


def begin(owner, zone, **training):
    request = answered(ask(owner, zone, **OFTEN | training))
    dispatch_slots(now=OPEN_AT)
    return request, job_of(request)


def claim(job, *, loss, step=1, stopped_early=True):
    """End a job as its node reports it."""
    held = Slice.objects.select_related("node").get(job=job, status="open")
    content = job_builders.adapter_zip(adapter=from_json(AdapterSpec, job.spec["adapter"]))
    store_adapter(
        node=held.node, lease_token=held.lease_token, content=io.BytesIO(content), now=after(2)
    )
    total = load_work_plan(job).total_steps
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
    return sum(Earning.objects.values_list("amount_micros", flat=True))


def test_a_false_target_score_earns_nothing_beyond_the_seat(zone, lane, owner):
    before = get_wallet(organisation=owner).available_micros
    request, job = begin(owner, zone, target_loss=0.5)
    claim(job, loss=0.01)
    assert (job.status, job.stopped_early) == (JobStatus.SUCCEEDED, True)
    settle_finished(now=after(4))
    # The provider sold its seat to the lane, and has no pay for the job itself.
    assert not Earning.objects.exists()
    price = request.answer["price_micros"]
    plan = load_work_plan(job)
    share = max(0.25, plan.count_ended_at(1) / plan.count_ended_at(plan.total_steps))
    paid = before - get_wallet(organisation=owner).available_micros
    assert paid == pytest.approx(price * share, abs=1)
    assert paid < price
    assert verify_zone(zone).problems == []


def test_a_seat_pays_the_same_whatever_its_node_claims(zone, lane, owner):
    _, job = begin(owner, zone, target_loss=0.5)
    claim(job, loss=0.01)
    settle_finished(now=after(4))
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
