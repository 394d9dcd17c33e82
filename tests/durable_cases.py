"""One piece of work of every kind, for the faults that each of them must stand."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from marketplace.accounts.erasure import ERASE, GRACE
from marketplace.accounts.lock_mail import LOCK_MAIL
from marketplace.accounts.models import Deletion, Organisation
from marketplace.auction.models import Pricing
from marketplace.auction.witnesses.days import ASK, ask_witness
from marketplace.common.durable.services import NewWork, enqueue_work
from marketplace.common.encryption import encrypt_text
from marketplace.exports.hub import PUSH
from marketplace.exports.models import HubPush
from marketplace.jobs.dataset_reader import Reading
from marketplace.jobs.loss_curves import ARCHIVE, StoredLossCurve
from marketplace.jobs.models import Dataset, Job, LossCurve, MetricPoint, Slice, Upload
from marketplace.jobs.services import delete_dataset, receive_upload
from marketplace.jobs.services.readings import INSPECT, READ, ReadUpload, build_dataset
from marketplace.payments.gateway_calls import CallEnd
from marketplace.payments.models import CallKind, Entry, GatewayMovement, WebhookEvent
from marketplace.payments.movements import BOOK_MOVEMENT
from marketplace.payments.outbox import MAKE_CALL, WantedCall, add_calls
from marketplace.payments.webhooks import APPLY_EVENT, Finding
from marketplace.tracking.models import TrackedRun
from marketplace.tracking.sending import SEND
from marketplace.vendors.handed_files import HandOver
from marketplace.vendors.handover import PREPARE, TELL, build_work
from marketplace.vendors.models import DataReport, Preparation, VendorKind
from marketplace.vendors.plan_making import MadePlan
from marketplace.vendors.plans import MAKE, request_plan
from marketplace.vendors.working import MadeData
from marketplace.webhooks.delivery import WAITS, Attempt
from marketplace.webhooks.models import Notice
from marketplace.webhooks.news import News
from marketplace.webhooks.notices import MAIL, add_notices
from marketplace.webhooks.outbox import DELIVER
from marketplace.webhooks.services import create_endpoint, send_test
from scheduler.public_log.days import DayPromise
from tests import builders, job_builders, market_builders, vendor_builders
from tests.builders import NOW
from workers.protocol.job_spec import DataFormat
from workers.protocol.job_terms import PreparationWish
from workers.protocol.wire import to_json


@dataclass(frozen=True)
class Case:
    """A piece of work that waits, due at ``NOW``."""

    #: What ``do`` finds, as the kind's own tests make it do.
    result: Any
    #: What the kind's rows say of it.
    read: Callable[[], Any]
    before: Any
    #: After ``apply``.
    done: Any
    #: After the last attempt failed for a reason that nobody foresaw.
    failed: Any


def _build_push() -> Case:
    owner, zone = builders.organisation(), market_builders.zone()
    push = HubPush.objects.create(
        organisation=owner,
        job=job_builders.job(zone, (0, market_builders.node(zone)), organisation=owner),
        repository="ada/tone",
        token=encrypt_text("hf_secret"),
        created_at=NOW,
    )
    enqueue_work(NewWork(PUSH, push.pk, due_at=NOW))

    def read() -> Any:
        row = HubPush.objects.get()
        return row.status, row.url, row.reason, bool(row.token)

    return Case(
        result="https://hub.example/ada/tone",
        read=read,
        before=("waiting", "", "", True),
        done=("pushed", "https://hub.example/ada/tone", "", False),
        failed=("failed", "", "The market failed. The fault is ours.", False),
    )


def _measure_job(owner: Organisation) -> Job:
    """Make a job with one measurement."""
    zone = market_builders.zone()
    node = market_builders.node(zone)
    job = job_builders.job(zone, (0, node), organisation=owner)
    held = Slice.objects.create(
        job=job, node=node, first_slot=0, last_slot=0, lease_expires_at=NOW, opened_at=NOW
    )
    MetricPoint.objects.create(job=job, slice=held, seq=1, at=NOW, step=4, epoch=0.1)
    return job


def _build_loss_curve() -> Case:
    job = _measure_job(builders.organisation())
    enqueue_work(NewWork(ARCHIVE, job.pk, due_at=NOW))
    return Case(
        result=StoredLossCurve(f"jobs/{job.pk}/loss_curves/1.json.gz", 1, 100),
        read=lambda: (MetricPoint.objects.count(), LossCurve.objects.count()),
        before=(1, 0),
        done=(0, 1),
        # It is tried for as long as it takes.
        failed=(1, 0),
    )


def _build_run() -> Case:
    owner = builders.organisation()
    job = _measure_job(owner)
    run = TrackedRun.objects.create(
        bid_id=job.bid_id, service="wandb", organisation=owner, project="tone", created_at=NOW
    )
    enqueue_work(NewWork(SEND, run.pk, due_at=NOW))

    def read() -> Any:
        row = TrackedRun.objects.get()
        return row.url, row.sent_step, row.reason, row.ended_at is not None

    return Case(
        result="https://runs.example/1",
        read=read,
        before=("", -1, "", False),
        done=("https://runs.example/1", 4, "", False),
        failed=("", -1, "The market failed. The fault is ours.", True),
    )


def _build_message() -> Case:
    owner = builders.organisation()
    endpoint, _ = create_endpoint(
        organisation=owner,
        created_by=builders.owner_of(owner),
        url="https://8.8.8.8/hook",
        events=["job.failed"],
        now=NOW,
    )
    message = send_test(endpoint=endpoint, now=NOW)

    def read() -> Any:
        message.refresh_from_db()
        return message.status, [(entry["status"], entry["error"]) for entry in message.log]

    our_fault = (None, "The market failed. The fault is ours.")
    return Case(
        result=Attempt(200, "", 0.5),
        read=read,
        before=("pending", []),
        done=("delivered", [(200, "")]),
        failed=("failed", [our_fault] * (len(WAITS) + 1)),
    )


def _build_event() -> Case:
    event = WebhookEvent.objects.create(
        pk="evt_1", kind="charge.updated", object_id="ch_1", received_at=NOW
    )
    enqueue_work(NewWork(APPLY_EVENT, event.pk, due_at=NOW))

    def read() -> Any:
        event.refresh_from_db()
        return event.outcome, event.done_at is not None

    return Case(
        result=Finding("nothing to do"),
        read=read,
        before=("", False),
        done=("nothing to do", True),
        # It is tried for as long as it takes.
        failed=("", False),
    )


def _build_movement() -> Case:
    movement = GatewayMovement.objects.create(
        pk="txn_1",
        kind="payout",
        currency="usd",
        rate=1,
        amount_cents=-400,
        fee_cents=25,
        net_cents=-425,
        moved_at=NOW,
    )
    enqueue_work(NewWork(BOOK_MOVEMENT, movement.pk, due_at=NOW))

    def read() -> Any:
        booked = Entry.objects.filter(reference=movement.pk).order_by("kind")
        return list(booked.values_list("kind", flat=True))

    booked = ["bank_payout", "gateway_fee"]
    # It is tried for as long as it takes.
    return Case(result=None, read=read, before=[], done=booked, failed=[])


def _build_deletion() -> Case:
    owner = builders.organisation()
    dataset = market_builders.dataset(owner, market_builders.zone())
    delete_dataset(dataset=dataset, asked_by=None, now=NOW - GRACE)

    def read() -> Any:
        row, asked = Dataset.everything.get(), Deletion.objects.get()
        return bool(row.file), row.name == dataset.name, asked.erased_at is not None

    return Case(
        result=None,
        read=read,
        before=(True, True, False),
        done=(False, False, True),
        failed=(True, True, False),
    )


def _build_reading() -> Case:
    upload = receive_upload(
        organisation=builders.organisation(),
        name="rows.jsonl",
        content=io.BytesIO(b"{}"),
        uploaded_by=None,
        now=NOW,
    )
    reading = Reading(rows=1, format=DataFormat.CHAT)

    def read() -> Any:
        row = Upload.objects.get()
        return Dataset.objects.count(), (row.error or {}).get("code"), bool(row.file)

    return Case(
        result=ReadUpload(reading, build_dataset(upload, reading, now=NOW)),
        read=read,
        before=(0, None, True),
        done=(1, None, False),
        failed=(0, "dataset_unreadable", False),
    )


def _build_report() -> Case:
    dataset = market_builders.dataset(builders.organisation(), market_builders.zone())
    enqueue_work(NewWork(INSPECT, dataset.pk, due_at=NOW))
    counts = ("rows_to_repair", "rows_unusable", "exact_duplicates", "near_duplicates")
    report = dict.fromkeys((*counts, "repetitive_rows"), 0)
    return Case(
        result=report,
        read=lambda: list(DataReport.objects.values_list("report", flat=True)),
        before=[],
        done=[report],
        failed=[{}],
    )


def _open_preparation(**facts: Any) -> Preparation:
    zone = market_builders.zone()
    job = job_builders.job(zone, (0, market_builders.node(zone)))
    return Preparation.objects.create(
        bid_id=job.bid_id,
        job=job,
        source=job.dataset,
        wish=to_json(PreparationWish(kinds=(VendorKind.OUTSIDE,))),
        rows_bound=1,
        vendor=vendor_builders.vendor(zone, kind=VendorKind.OUTSIDE),
        price_micros=1,
        sold_micros=1,
        ready_slot=1,
        due_at=NOW,
        created_at=NOW,
        **facts,
    )


def _build_preparation() -> Case:
    enqueue_work(build_work(_open_preparation(), now=NOW))

    def read() -> Any:
        row = Preparation.objects.get()
        return row.handed_over_at is not None, row.problem

    return Case(
        result=MadeData(HandOver(), None, ExitStack()),
        read=read,
        before=(False, ""),
        done=(True, ""),
        failed=(False, ""),
    )


def _build_assignment() -> Case:
    held = _open_preparation(handed_over_at=NOW)
    enqueue_work(NewWork(TELL, held.pk, due_at=NOW))
    # The vendor knows or does not; no row says so.
    return Case(result=None, read=lambda: None, before=None, done=None, failed=None)


def _build_lock_mail() -> Case:
    person = builders.user()
    enqueue_work(NewWork(LOCK_MAIL, person.pk, due_at=NOW, payload={"address": "192.0.2.7"}))
    # What is sent is sent; the row of the work is all there is.
    return Case(result=None, read=lambda: None, before=None, done=None, failed=None)


def _build_call() -> Case:
    [call] = add_calls([WantedCall(CallKind.DETACH, "card_1")], now=NOW)

    def read() -> Any:
        call.refresh_from_db()
        return call.status, call.ended_at is not None

    return Case(
        result=CallEnd(answer=True),
        read=read,
        before=("waiting", False),
        done=("done", True),
        failed=("waiting", False),
    )


def _build_plan() -> Case:
    owner, zone = builders.organisation(), market_builders.zone()
    data = market_builders.dataset(owner, zone)
    plan = request_plan(dataset=data, zone=zone, wish=PreparationWish(), now=NOW)

    def read() -> Any:
        plan.refresh_from_db()
        return plan.plan, plan.rows, plan.problem

    return Case(
        result=MadePlan({"steps": []}, Reading(rows=3, format=DataFormat.CHAT), b""),
        read=read,
        before=(None, 0, ""),
        done=({"steps": []}, 3, ""),
        failed=(None, 0, "The market failed. The fault is ours."),
    )


def _build_promise() -> Case:
    zone = market_builders.zone()
    Pricing.objects.create(zone=zone)
    promise = DayPromise(1, zone.name, "", witness_key="cd", entry_hash="ab")
    ask_witness(zone, promise, now=NOW)
    return Case(
        result="ef",
        read=lambda: Pricing.objects.values_list("day_promise", "day_signature").get(),
        before=("ab", ""),
        done=("ab", "ef"),
        failed=("ab", ""),
    )


#: By the kind's name.
def _build_notice() -> Case:
    owner = builders.organisation()
    news = News(owner.pk, "job.failed", {"id": "ftjob-1", "message": "It failed."}, name="tone")
    add_notices(news=[news], now=NOW)

    def read() -> Any:
        return [notice.mailed_at is not None for notice in Notice.objects.all()]

    return Case(result=None, read=read, before=[False], done=[True], failed=[False])


CASES: dict[str, Callable[[], Case]] = {
    PUSH: _build_push,
    SEND: _build_run,
    ARCHIVE: _build_loss_curve,
    DELIVER: _build_message,
    MAKE_CALL: _build_call,
    APPLY_EVENT: _build_event,
    BOOK_MOVEMENT: _build_movement,
    ERASE: _build_deletion,
    LOCK_MAIL: _build_lock_mail,
    MAIL: _build_notice,
    READ: _build_reading,
    INSPECT: _build_report,
    PREPARE: _build_preparation,
    TELL: _build_assignment,
    MAKE: _build_plan,
    ASK: _build_promise,
}
