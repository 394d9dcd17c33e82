"""Whatever becomes of a job: its operational cost goes to who did the work, the rest back.

Each example leads one job through a random life on three nodes of three providers, with the
services that production uses. Beside it stands a list that says which node did which step.
"""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

import pytest
from django.db import transaction
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from marketplace.accounts.models import Organisation
from marketplace.auction.cancelling import quote_cancelling
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Bid, WorkShare
from marketplace.auction.settlement import settle_finished
from marketplace.common.errors import Conflict
from marketplace.fleet.models import Node, NodeStatus, Zone
from marketplace.jobs.models import Job, JobStatus, SliceStatus
from marketplace.jobs.services import (
    cancel_job,
    dispatch_slots,
    record_progress,
    replace_job_cells,
    store_checkpoint,
    sweep_leases,
)
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.models import Earning
from marketplace.payments.selectors import (
    find_distribution,
    find_house_fees,
    get_house_balances,
    get_wallet,
)
from scheduler.types import Cell
from tests import builders, job_builders, market_builders
from tests.builders import NOW
from workers.protocol.reports import Fault, ProgressEvent, ProgressReport
from workers.protocol.reports import SliceEnd as Ended

TOTAL_STEPS, NODES = 36, 3
#: Work units of each step: of the 90 rows of an epoch, the last step has two.
UNITS = [2 if (step + 1) % 12 == 0 else 8 for step in range(TOTAL_STEPS)]
START_USD = 10_000_000

actions = st.lists(
    st.one_of(
        st.tuples(st.just("work"), st.integers(1, 20)),
        st.tuples(st.sampled_from(["save", "pause", "lose", "fail"]), st.just(0)),
        st.tuples(st.just("go"), st.integers(0, NODES - 1)),
    ),
    min_size=3,
    max_size=14,
)
endings = st.sampled_from(["finish", "finish", "cancel"])
#: What happens again after a cancellation.
repeats = st.lists(st.sampled_from(["cancel", "settle"]), max_size=4)


@dataclass
class Life:
    """One job, and who did which of its steps."""

    zone: Zone
    owner: Organisation
    nodes: list[Node]
    bid: Bid
    job: Job
    slot: int = 101
    #: The node of each step that is done and not to be done again.
    did: list[str] = field(default_factory=list)

    @property
    def now(self) -> datetime:
        return market_builders.slot_at(self.zone, self.slot)

    @property
    def is_late(self) -> bool:
        """Whether its deadline has passed, or will have when its plan ends."""
        return max(self.now, self.job.finish_planned_at) > self.job.deadline_at

    @property
    def is_leased(self) -> bool:
        return self.job.slices.filter(status=SliceStatus.OPEN).exists()

    def run(self, action: str, number: int) -> None:
        self.job.refresh_from_db()
        if not self.job.is_active:
            return
        if action == "go":
            self.go(self.nodes[number])
        elif self.is_leased:
            getattr(self, action)(number)
        self.job.refresh_from_db()

    def go(self, node: Node) -> None:
        """Plan the job on a node from the next slot on, and let that slot begin."""
        self.slot += 1
        Node.objects.update(last_heartbeat_at=self.now, status=NodeStatus.ONLINE)
        if self.is_leased and market_builders.open_slice(self.job).node_id != node.pk:
            self.pause(0)
        cells = [Cell(slot=self.slot + ahead, node=node.pk) for ahead in range(2)]
        replace_job_cells(job=self.job, cells=cells, reason="Moved.", now=self.now)
        dispatch_slots(now=self.now)

    def work(self, steps: int) -> None:
        held = market_builders.open_slice(self.job)
        steps = min(steps, TOTAL_STEPS - len(self.did))
        self.did += [held.node_id] * steps
        done = len(self.did)
        told = ProgressEvent(
            seq=held.last_seq + 1,
            at=self.now.timestamp(),
            step=done,
            total_steps=TOTAL_STEPS,
            epoch=0.0,
            samples_done=done,
        )
        report = ProgressReport(lease_token=held.lease_token, events=(told,))
        assert record_progress(node=held.node, report=report, now=self.now).keep_running

    def save(self, _: int) -> None:
        held = market_builders.open_slice(self.job)
        store_checkpoint(
            node=held.node,
            lease_token=held.lease_token,
            step=len(self.did),
            content=io.BytesIO(job_builders.safetensors(len(self.did))),
            now=self.now,
        )

    def pause(self, _: int) -> None:
        self.end(Ended.PAUSED)

    def fail(self, _: int) -> None:
        self.end(Ended.FAILED, fault=Fault.SYSTEM)

    def lose(self, _: int) -> None:
        held = market_builders.open_slice(self.job)
        Node.objects.filter(pk=held.node_id).update(status=NodeStatus.OFFLINE)
        assert sweep_leases(now=self.now) == (self.job.pk,)
        self.forget()

    def end(self, status: Ended, fault: Fault | None = None) -> None:
        done = len(self.did)
        market_builders.end_slice(self.job, status=status, now=self.now, step=done, fault=fault)
        if status != Ended.FINISHED:
            self.forget()

    def forget(self) -> None:
        """What no checkpoint holds is to be done again."""
        self.job.refresh_from_db()
        del self.did[self.job.checkpoint_step :]

    def finish(self) -> None:
        if not self.is_leased:
            self.go(self.nodes[0])
        self.work(TOTAL_STEPS)
        self.end(Ended.FINISHED)

    def cancel(self) -> None:
        expected = quote_cancelling(bid=self.bid, job=self.job, now=self.now).refund_micros
        cancel_job(job=self.job, cancelled_by=None, now=self.now)
        self.settle()
        assert self.bid.refund_micros == expected

    def settle(self) -> None:
        settle_finished(now=self.now)
        self.job.refresh_from_db()
        self.bid.refresh_from_db()


def begin() -> Life:
    zone = market_builders.zone()
    nodes = [
        market_builders.node(zone, ask_micros=(4 + number) * market_builders.CELL_MICROS)
        for number in range(NODES)
    ]
    owner = builders.organisation(usd="10")
    bid = market_builders.bid(owner, zone, epochs=3, slots=50)
    decide_pending_bids(zone=zone, now=NOW)
    bid.refresh_from_db()
    life = Life(zone, owner, nodes, bid, Job.objects.get(bid_id=bid.pk))
    dispatch_slots(now=life.now)
    return life


def check_pay(sequence: list[tuple[str, int]], ending: str) -> Life:
    life = begin()
    for action, number in sequence:
        life.run(action, number)
    if life.job.is_active:
        getattr(life, ending)()
    life.settle()
    bid, job = life.bid, life.job
    assert job.settled_at is not None
    event(f"{job.status}, {len(set(life.did))} nodes")

    asks = bid.payment_micros
    assert asks is not None
    paid = {e.organisation_id: e.amount_micros for e in Earning.objects.all()}
    split = find_distribution(hold_reference=bid.hold_reference)
    assert split is not None
    assert split.asks_micros == asks
    unpaid = split.asks_returned_micros + split.asks_kept_micros
    assert asks + split.borne_pay_micros == sum(paid.values()) + unpaid
    fee = find_house_fees(hold_reference=bid.hold_reference).get("congestion", 0)
    if job.status != JobStatus.FAILED:
        assert split.borne_pay_micros == 0
        assert asks == sum(paid.values()) + bid.refund_micros + fee
    # Each node's part of the work is its part of the pay, to the micro-dollar.
    steps = Counter(life.did)
    units: Counter[str] = Counter()
    for node_id, of_step in zip(life.did, UNITS, strict=False):
        units[node_id] += of_step
    shares = list(WorkShare.objects.filter(bid=bid))
    assert {share.node_id: share.steps for share in shares} == steps
    assert {share.node_id: share.units for share in shares} == units
    executed = sum(share.earned_micros for share in shares)
    done, whole = units.total(), sum(UNITS)
    assert asks - executed == asks * (whole - done) // whole
    for share in shares:
        assert abs(share.earned_micros - executed * share.units / done) < 1
    if job.status == JobStatus.SUCCEEDED:
        assert len(life.did) == TOTAL_STEPS
        assert executed == asks
    # Nothing is made or lost on the way.
    returned = START_USD - get_wallet(organisation=life.owner).available_micros
    assert returned == asks - bid.refund_micros
    balances = get_house_balances()
    assert (balances["revenue"], balances["congestion"]) == (0, fee)
    assert check_ledger().balanced
    return life


def check_cancelled(sequence: list[tuple[str, int]], again: list[str]) -> None:
    """Lead a job through a life that its owner ends, and cancel and settle it as often as told."""
    life = begin()
    asks = life.bid.payment_micros
    assert asks is not None
    for action, number in sequence:
        life.run(action, number)
    life.job.refresh_from_db()
    failed, late = not life.job.is_active, life.is_late
    for action in ["cancel", *again, "settle"]:
        if action == "settle":
            life.settle()
        elif not failed:
            cancel_job(job=life.job, cancelled_by=None, now=life.now)
        else:
            with pytest.raises(Conflict):
                cancel_job(job=life.job, cancelled_by=None, now=life.now)
    paid = START_USD - get_wallet(organisation=life.owner).available_micros
    done = sum(share.earned_micros for share in WorkShare.objects.filter(bid=life.bid))
    event("failed" if failed else "late" if late else "in time")
    if failed:
        assert paid == 0
    elif late:
        assert paid == done
    else:
        # A fiftieth of the rest is kept at least, but for cells that the market had taken away.
        assert done <= paid <= asks
    assert get_house_balances()["congestion"] == max(0, paid - done)
    assert check_ledger().balanced


@pytest.mark.django_db
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(sequence=actions, ending=endings)
def test_the_operational_cost_goes_to_the_executors_and_the_rest_back_to_the_owner(
    sequence: list[tuple[str, int]], ending: str
) -> None:
    with transaction.atomic():
        check_pay(sequence, ending)
        transaction.set_rollback(True)


@pytest.mark.django_db
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(sequence=st.lists(actions.map(lambda of: of[0]), max_size=6), again=repeats)
def test_who_reserves_and_cancels_pays_for_it_in_every_order_of_events(
    sequence: list[tuple[str, int]], again: list[str]
) -> None:
    with transaction.atomic():
        check_cancelled(sequence, again)
        transaction.set_rollback(True)


@pytest.mark.nightly
@pytest.mark.django_db
@settings(
    max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(sequence=actions, ending=endings)
def test_so_it_is_over_many_lives(sequence: list[tuple[str, int]], ending: str) -> None:
    with transaction.atomic():
        check_pay(sequence, ending)
        transaction.set_rollback(True)
