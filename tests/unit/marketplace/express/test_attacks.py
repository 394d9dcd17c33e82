"""Clocks that differ, floods, frozen owners, and logs that were written again."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from marketplace.accounts.models import Organisation
from marketplace.auction.book.proofs import build_bid_proof
from marketplace.auction.book.row_checks import compare_answer, find_shared_seats
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.book.verify_report import VerifyReport
from marketplace.auction.models import Bid, LogEntry
from marketplace.auction.settlement import settle_finished
from marketplace.common.errors import Conflict, NotAllowed, UserError
from marketplace.express.bank import name_base_model, record_finished_jobs
from marketplace.express.models import BankPrompt, ExpressLane, ExpressRequest, RequestStatus
from marketplace.express.requests import PENDING_MAX
from marketplace.express.task_features import WIDTH
from marketplace.jobs.models import CandidatePrompts, Job
from marketplace.jobs.services import cancel_job, dispatch_slots
from marketplace.payments.caps import set_cap
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.models.cards import Freeze
from marketplace.payments.selectors import get_wallet
from scheduler.auction.log.chain import ChainEntry
from scheduler.auction.log.codec import event_from_json
from scheduler.auction.log.outcomes import GridChange
from tests import builders
from tests import market_builders as market
from tests.express_builders import (
    ADAPTER,
    OPEN_AT,
    answered,
    ask,
    customer,
    finish,
    job_of,
    open_lane,
)
from tests.pages import read_page

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("ahead_s", [-3.0, -0.5, 0.5, 3.0])
def test_a_request_by_a_clock_that_differs_has_its_slo_from_its_own_moment(zone, lane, ahead_s):
    asked_at = OPEN_AT + timedelta(seconds=ahead_s)
    request = answered(ask(customer(), zone, slo_s=60.0, now=asked_at))
    assert request.status == RequestStatus.ADMITTED
    job = job_of(request)
    assert job.deadline_at == asked_at + timedelta(seconds=60)
    # It begins by the lane's clock, and in no slot that is past there.
    assert job.cells[0][0] == 103
    assert verify_zone(zone).problems == []


def test_a_request_that_is_answered_after_its_slo_gets_everything_back(zone, lane):
    owner = customer()
    before = get_wallet(organisation=owner)
    request = answered(ask(owner, zone, slo_s=10.0), now=OPEN_AT + timedelta(seconds=60))
    assert request.status == RequestStatus.REFUSED
    assert get_wallet(organisation=owner) == before
    assert not Job.objects.exists()


def test_a_flood_without_answers_is_refused_and_leaves_no_trace(zone, lane, owner):
    data = market.dataset(owner, zone, rows=20)
    for _ in range(PENDING_MAX):
        ask(owner, zone, dataset=data)
    wallet = get_wallet(organisation=owner)
    with pytest.raises(UserError) as refused:
        ask(owner, zone, dataset=data)
    assert (refused.value.code, refused.value.status) == ("too_many_requests", 429)
    assert ExpressRequest.objects.count() == PENDING_MAX
    assert get_wallet(organisation=owner) == wallet


def test_a_new_organisation_has_no_more_jobs_by_the_lane_either(zone, lane, settings):
    settings.NEW_ACCOUNT_DAYS, settings.NEW_ACCOUNT_JOBS = 14, 2
    newcomer = customer()
    Organisation.objects.filter(pk=newcomer.pk).update(created_at=OPEN_AT)
    data = market.dataset(newcomer, zone, rows=20)
    market.bid(newcomer, zone, data=data, now=OPEN_AT)
    ask(newcomer, zone, dataset=data)
    wallet = get_wallet(organisation=newcomer)
    with pytest.raises(UserError) as refused:
        ask(newcomer, zone, dataset=data)
    assert (refused.value.code, refused.value.status) == ("new_account_jobs", 429)
    assert ExpressRequest.objects.count() == 1
    assert get_wallet(organisation=newcomer) == wallet


def lend_prompt(zone, *, job_id):
    """A prompt in the shared bank that any job with four virtual tokens may start from."""
    values = np.full((4, market.SHAPE.hidden_size), 0.5, "<f4").tobytes()
    return BankPrompt.objects.create(
        organisation=customer(),
        job_id=job_id,
        is_shared=True,
        base_model=name_base_model(zone),
        virtual_tokens=4,
        width=market.SHAPE.hidden_size,
        values=values,
        sha256=hashlib.sha256(values).hexdigest(),
        features=bytes(4 * WIDTH),
        created_at=OPEN_AT,
    )


def test_a_job_that_is_cancelled_while_it_looks_up_pays_for_its_seat_and_leaves_no_candidates(
    zone, lane, owner
):
    prompt = lend_prompt(zone, job_id="lent")
    request = answered(ask(owner, zone, adapter=ADAPTER | {"looks_up": True}))
    assert request.answer["looks_up"]
    job = job_of(request)
    assert CandidatePrompts.objects.filter(job=job).exists()
    dispatch_slots(now=OPEN_AT)
    cancel_job(job=job, cancelled_by=None, now=OPEN_AT + timedelta(seconds=1))
    settle_finished(now=OPEN_AT + timedelta(seconds=2))
    price = request.answer["price_micros"]
    assert get_wallet(organisation=owner).available_micros == 1_000_000_000 - -(-price // 4)
    record_finished_jobs(now=OPEN_AT + timedelta(seconds=3))
    assert not CandidatePrompts.objects.exists()
    prompt.refresh_from_db()
    assert (prompt.offered, prompt.hits) == (1, 0)
    assert check_ledger().balanced
    assert verify_zone(zone).problems == []


def test_a_rate_that_changes_while_a_job_looks_up_changes_nothing_of_what_it_pays(
    zone, lane, owner
):
    lend_prompt(zone, job_id="lent")
    request = ask(owner, zone, adapter=ADAPTER | {"looks_up": True})
    ExpressLane.objects.update(rate_micros=10**9, urgency_percent=90)
    answered(request)
    dispatch_slots(now=OPEN_AT)
    ExpressLane.objects.update(rate_micros=1)
    finish(job_of(request), now=OPEN_AT + timedelta(seconds=4))
    settle_finished(now=OPEN_AT + timedelta(seconds=5))
    price = request.answer["price_micros"]
    assert price == request.limit_micros
    assert get_wallet(organisation=owner).available_micros == 1_000_000_000 - price
    assert check_ledger().balanced
    assert verify_zone(zone).problems == []


def read_answer(request):
    """The log's entry of an answer, as ``verify`` reads it."""
    row = LogEntry.objects.get(zone=request.zone, position=request.position)
    event = event_from_json(json.loads(row.event))
    return ChainEntry(row.position, event, GridChange(), row.prev_hash, row.hash)


def list_problems(entry, zone):
    found = VerifyReport(zone=zone.name)
    compare_answer(entry, found)
    return found.problems


@pytest.mark.parametrize(
    "forged",
    [
        {"price_micros": 1},
        {"slo_s": 30.0},
        {"answer": "full"},
        {"start_s": 5.0},
        {"seat": "bid_another@103"},
        {"seats": ["bid_another@103", "bid_second@103"]},
        {"looks_up": True},
    ],
)
def test_an_answer_that_was_forged_with_all_hashes_is_found(zone, lane, owner, forged):
    request = answered(ask(owner, zone))
    entry = read_answer(request)
    assert list_problems(entry, zone) == []
    event = replace(entry.event, answer=dict(entry.event.answer) | forged)
    problems = list_problems(replace(entry, event=event), zone)
    assert any("the question has another answer" in problem for problem in problems)


def test_two_jobs_that_are_made_to_sit_on_one_seat_are_found(zone):
    open_lane(zone, least_seats=2, most_seats=2)
    first, second = (answered(ask(customer(), zone)) for _ in range(2))
    assert verify_zone(zone).problems == []
    entry = LogEntry.objects.get(zone=zone, position=second.position)
    event = json.loads(entry.event)
    theirs = json.loads(LogEntry.objects.get(zone=zone, position=first.position).event)
    event["seats"] = theirs["seats"]
    found = VerifyReport(zone=zone.name)
    for one in (theirs, event):
        forged = event_from_json(one)
        found.express[forged.job_id] = forged.seats
    [problem, *_] = find_shared_seats({first.bid_id, second.bid_id}, found, first_slot=0)
    assert "sit on one seat" in problem


def test_a_cap_and_a_freeze_stop_express_jobs_as_they_stop_bids(zone, lane, owner):
    set_cap(organisation=owner, member_id=None, period="day", amount_micros=1)
    with pytest.raises(NotAllowed) as capped:
        ask(owner, zone)
    other = customer()
    Freeze.objects.create(
        organisation=other, reference="dp_1", reason="A payment is disputed.", since_at=OPEN_AT
    )
    with pytest.raises(NotAllowed) as frozen:
        ask(other, zone)
    assert (capped.value.code, frozen.value.code) == ("spending_cap", "organisation_frozen")
    assert not ExpressRequest.objects.exists()


def test_a_certified_request_has_a_receipt_and_says_that_no_bid_was_sealed(
    zone, lane, owner, client
):
    request = answered(ask(owner, zone))
    client.force_login(builders.owner_of(owner))
    shown = read_page(client.get(f"/bids/{request.bid_id}"))
    assert "The posted express price for 100 s." in shown
    assert "decided whether you won" not in shown
    proof = client.get(f"/bids/{request.bid_id}/proof")
    assert proof.status_code == 409
    with pytest.raises(Conflict) as refused:
        build_bid_proof(bid=Bid.objects.get(pk=request.bid_id))
    assert refused.value.code == "answered_by_the_lane"
