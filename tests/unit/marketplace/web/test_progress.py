"""Work against what was promised, rows that stand out, and exact receipts."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from django.core.files.base import ContentFile
from django.test import Client

from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Bid
from marketplace.auction.pay_rule import PAY_RULE
from marketplace.auction.selectors import list_bids
from marketplace.auction.settlement import settle_finished
from marketplace.jobs.models import Job, JobStatus, MetricPoint, Slice
from marketplace.jobs.selectors import Outlier, add_excerpts, list_row_outliers, list_samples
from marketplace.jobs.services import cancel_job, dispatch_slots, finish_slice, record_progress
from marketplace.payments.services import refund_charge
from marketplace.web.presenters.progress import (
    compute_planned_progress,
    find_earlier_run,
    serialize_plan,
)
from marketplace.web.presenters.receipt import build_receipt
from marketplace.web.presenters.timeline import RibbonNode
from tests import job_builders as build
from tests import market_builders
from tests.builders import NOW
from tests.job_builders import SLOT, at
from tests.pages import read_page
from tests.unit.marketplace.web.conftest import Site
from workers.protocol.reports import RowOutlier, TextSample
from workers.protocol.reports import SliceEnd as Ended
from workers.protocol.wire import to_json

pytestmark = pytest.mark.django_db


def sold(site: Site) -> tuple[Bid, Job]:
    bid = market_builders.bid(site.organisation, site.zone, data=site.dataset)
    decide_pending_bids(zone=site.zone, now=NOW, limit=10)
    bid.refresh_from_db()
    return bid, Job.objects.get(bid_id=bid.pk)


def begun(job: Job) -> Slice:
    """The lease of the job's first slot."""
    dispatch_slots(now=market_builders.slot_at(job.zone, job.cells[0][0]))
    return build.lease(job)


def ended(job: Job, *outliers: RowOutlier) -> None:
    held = begun(job)
    result = replace(build.result(held, Ended.PAUSED), outliers=outliers)
    finish_slice(node=held.node, result=result, now=held.opened_at)


def test_the_plan_rises_with_its_slots_and_waits_between_them() -> None:
    bid = Bid(
        zone=market_builders.zone(),
        created_at=NOW,
        status="admitted",
        rates={"A100": 40.0, "A40": 30.0},
        compute_demand=100.0,
    )
    bid.first_cells = [[SLOT, "a"], [SLOT + 1, "a"], [SLOT + 4, "b"]]
    machines = {
        "a": RibbonNode("a", "marketplace", "A100"),
        "b": RibbonNode("b", "serverless", "A40"),
    }
    planned = compute_planned_progress(bid, machines)
    slot_s, begin = bid.zone.slot_s, NOW.timestamp()
    assert [share for _, share in planned] == [0.0, 0.4, 0.8, 0.8, 1.0]
    assert [round((when - begin) / slot_s) for when, _ in planned] == [0, 1, 2, 4, 5]


def test_a_sold_job_is_promised_whole_before_its_deadline(site: Site) -> None:
    bid, job = sold(site)
    machine = RibbonNode(site.node.name, site.node.tier, site.node.gpu_type_id)
    data = serialize_plan(bid, job, {site.node.pk: machine})
    assert data["planned"][-1][1] == 1.0
    assert data["planned"][-1][0] <= data["deadline"] == bid.deadline_at.timestamp()
    assert data["earlier"] is None


def test_a_job_is_compared_with_the_last_finished_one_on_the_same_data(site: Site) -> None:
    mine = {"organisation": site.organisation, "dataset": site.dataset}
    first = build.job(site.zone, (0, site.node), **mine)
    second = build.job(site.zone, (1, site.node), now=at(60), **mine)
    other = build.job(site.zone, (2, site.node), now=at(90), organisation=site.organisation)
    assert find_earlier_run(second) is None
    first.status, first.finished_at = "succeeded", at(30)
    first.save()
    assert find_earlier_run(second) == first
    assert find_earlier_run(first) is None
    assert find_earlier_run(other) is None


def test_rows_that_stand_out_are_those_of_the_last_pass_also_when_it_found_none(
    site: Site,
) -> None:
    _, job = sold(site)
    ended(job, RowOutlier(line=17, loss=4.5), RowOutlier(line=3, loss=4.25))
    # Losses of an earlier pass accuse good rows: the model had not learnt them yet.
    assert list_row_outliers(job) == []
    Job.objects.update(status=JobStatus.SUCCEEDED, finished_at=at(60))
    job.refresh_from_db()
    assert list_row_outliers(job) == [Outlier(line=17, loss=4.5), Outlier(line=3, loss=4.25)]
    last = Slice.objects.get(job=job)
    assert last.closed_at is not None
    last.pk, last.lease_token, last.closed_at = None, "last", last.closed_at + timedelta(seconds=9)
    last.result = {**last.result, "outliers": []}
    last.save(force_insert=True)
    assert list_row_outliers(job) == []


def test_rows_that_stand_out_are_shown_with_what_they_begin_with(site: Site) -> None:
    site.dataset.file.save("data", ContentFile(b'{"a": 1}\n' + "é".encode() * 500 + b"\nlast"))
    wanted = [Outlier(line=2, loss=9.0), Outlier(line=3, loss=8.0), Outlier(line=40, loss=7.0)]
    shown = add_excerpts(wanted, dataset=site.dataset)
    assert [row.excerpt for row in shown] == ["é" * 400 + "…", "last", ""]
    assert [row.line for row in shown] == [2, 3, 40]


def test_the_data_page_shows_rows_that_stand_out_as_text(site: Site, client: Client) -> None:
    _, job = sold(site)
    site.dataset.file.save("data", ContentFile(b"<script>alert(1)</script>\n"))
    ended(job, RowOutlier(line=1, loss=4.5))
    Job.objects.update(status=JobStatus.SUCCEEDED, finished_at=at(60))
    page = read_page(site.client.get(f"/jobs/{job.pk}/data"))
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "4.500" in page


def finished_with_samples(job: Job, *samples: TextSample) -> None:
    """The job's slice ended well, and its node wrote samples."""
    held = begun(job)
    result = to_json(replace(build.result(held, Ended.FINISHED), samples=samples))
    Slice.objects.filter(pk=held.pk).update(status="finished", result=result, closed_at=at(60))
    Job.objects.update(status=JobStatus.SUCCEEDED, finished_at=at(60))
    job.refresh_from_db()


def test_samples_are_shown_once_the_job_is_done_and_only_as_text(site: Site) -> None:
    _, job = sold(site)
    page = read_page(site.client.get(f"/jobs/{job.pk}"))
    assert "Known when the job is done: answers to rows that it did not train on." in page
    sample = TextSample(prompt="Where is <b>it</b>?", before="", after="<script>alert(1)</script>")
    finished_with_samples(job, sample)
    assert list_samples(job) == [sample]
    page = read_page(site.client.get(f"/jobs/{job.pk}"))
    assert "Where is &lt;b&gt;it&lt;/b&gt;?" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "(nothing)" in page
    assert "<script>alert" not in page


def test_a_job_without_held_out_rows_says_that_it_has_no_samples(site: Site) -> None:
    _, job = sold(site)
    finished_with_samples(job)
    assert list_samples(job) == []
    page = read_page(site.client.get(f"/jobs/{job.pk}"))
    assert "None: no rows were held out from training." in page
    Job.objects.update(valid_loss=1.5)
    page = read_page(site.client.get(f"/jobs/{job.pk}"))
    assert "None: no held-out row has a short prompt and a written answer." in page


def test_a_result_of_a_node_that_was_built_before_samples_has_none(site: Site) -> None:
    _, job = sold(site)
    finished_with_samples(job)
    held = Slice.objects.get(job=job)
    del held.result["samples"]
    held.save()
    assert list_samples(job) == []


def test_a_receipt_adds_up_to_the_micro_dollar(site: Site) -> None:
    bid, job = sold(site)
    receipt = build_receipt(bid, job=job)
    assert sum(line.micros for line in receipt.lines) == bid.payment_micros
    assert [micros for _, _, micros in receipt.money] == [
        bid.price_micros,
        bid.payment_micros,
        bid.price_micros - (bid.payment_micros or 0),
    ]
    assert all(line.why for line in receipt.lines)


def test_a_receipt_says_who_got_the_price_and_adds_up(site: Site) -> None:
    bid, job = sold(site)
    assert build_receipt(bid, job=job).payees == ()
    held = begun(job)
    report = build.report(held, build.event(1, step=6))
    record_progress(node=held.node, report=report, now=held.opened_at)
    Job.objects.update(checkpoint_step=6)
    job.refresh_from_db()
    cancel_job(job=job, cancelled_by=None, now=held.opened_at)
    settle_finished(now=held.opened_at)
    bid.refresh_from_db()
    job.refresh_from_db()
    provider, returned, kept = build_receipt(bid, job=job).payees
    assert provider[:2] == (
        site.node.provider.organisation.name,
        f"{site.node.name}, 48 work units",
    )
    assert provider[2] > 0
    assert returned == ("You", "returned to you", bid.refund_micros)
    assert kept[:2] == ("The house", "kept of the work that was not done")
    assert kept[2] == -(-(bid.payment_micros - provider[2]) // 50)
    paid = provider[2] + returned[2] + kept[2]
    assert paid == bid.payment_micros == (bid.parts or {})["operational"]
    shown = read_page(site.client.get(f"/jobs/{job.pk}/receipt"))
    assert "Who got the price" in shown
    assert PAY_RULE in shown


def test_a_receipt_names_what_went_back(site: Site) -> None:
    bid, job = sold(site)
    for amount, reason in ((1_000, "Work that was not done"), (20, "The data were refused")):
        refund_charge(
            hold_reference=bid.hold_reference, amount_micros=amount, reason=reason, now=NOW
        )
    bid.credit_micros, job.settled_at = 14_625, NOW
    assert build_receipt(bid, job=job).money[3:] == (
        ("Returned: work that was not done", NOW, 1_000),
        ("Returned: the data were refused", NOW, 20),
        ("Credited for a late end", NOW, 14_625),
    )
    assert (bid.refund_micros, list_bids(bid.organisation).get().refund_micros) == (1_020, 1_020)


def test_a_receipt_says_that_training_stopped_early(site: Site) -> None:
    bid, job = sold(site)
    assert build_receipt(bid, job=job).notes == ()
    job.stopped_early, job.step, job.total_steps, job.best_step = True, 9, 12, 6
    [note] = build_receipt(bid, job=job).notes
    assert "stopped early after step 9 of 12" in note
    assert "weights of step 6" in note
    assert "The price and its proof are of all 12 steps" in note


def test_reports_carry_when_they_were_made(site: Site) -> None:
    _, job = sold(site)
    held = begun(job)
    record_progress(node=site.node, report=build.report(held, build.event(1, step=1)), now=NOW)
    polled = site.client.get(f"/live/jobs/{job.pk}").json()
    assert [point["at"] for point in polled["points"]] == [
        MetricPoint.objects.get(job=job).at.isoformat()
    ]
