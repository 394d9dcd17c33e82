"""Machines rented to measure results in a zone where only their own provider has nodes."""

from __future__ import annotations

from typing import Any

import pytest

from marketplace.accounts.models import Membership, Role
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.settlement import settle_finished
from marketplace.checks import scores
from marketplace.checks.models import SpotCheck
from marketplace.fleet.models import Node, NodeStatus, Provider, Tier, Zone
from marketplace.jobs.errands import hand_out_errands
from marketplace.jobs.models import ErrandState, Job
from marketplace.jobs.services import dispatch_slots
from marketplace.tiers.models import Machine, MachineStatus, ZoneTiers
from marketplace.tiers.services import run_tier_tick
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from tests.errand_builders import answer_errand
from tests.job_builders import at
from tests.unit.marketplace.tiers.backends import MemoryBackend, tiers
from workers.protocol.checks import CheckResult
from workers.protocol.reports import SliceEnd

pytestmark = pytest.mark.django_db


@pytest.fixture
def house(zone: Zone, backend: MemoryBackend) -> Provider:
    made = market.provider()
    made.verified_at = NOW
    made.save()
    tiers(zone, provider=made, serverless_cap=0)
    ZoneTiers.objects.update(idle_s=5.0)
    return made


@pytest.fixture
def job(zone: Zone, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job whose result is to be measured, of the zone's only node."""
    market.node(zone)
    bid = market.bid(builders.organisation(usd="10"), zone)
    decide_pending_bids(zone=zone, now=NOW)
    dispatch_slots(now=at(11))
    made = Job.objects.get(bid_id=bid.pk)
    market.end_slice(
        made, status=SliceEnd.FINISHED, now=at(12), valid_loss_before=2.0, valid_loss_after=1.0
    )
    settings.SPOT_CHECK_SHARE = 1.0
    monkeypatch.setattr(scores, "RENTED_FROM_MICROS", made.price_micros)
    return made


def test_a_result_that_nobody_else_could_measure_gets_a_machine_of_the_house(
    house: Provider, backend: MemoryBackend, job: Job
) -> None:
    assert settle_finished(now=at(13)) == 0
    for seconds in (14, 15, 16):
        run_tier_tick(now=at(seconds))
    machine = Machine.objects.get()
    assert (machine.tier, machine.offer) == (Tier.MARKETPLACE, "cheap")
    node = backend.join(backend.only(), now=at(20))
    assert hand_out_errands(now=at(21)) == 1
    check = SpotCheck.objects.get()
    assert (check.state, check.node) == (ErrandState.ASKED, node)
    # However long it measures, it is not given back.
    for seconds in (22, 30):
        run_tier_tick(now=at(seconds))
    assert settle_finished(now=at(30)) == 0
    assert Machine.objects.get().status == MachineStatus.RUNNING
    answer_errand(node, check.token, CheckResult(score=1.0), now=at(31))
    assert settle_finished(now=at(32)) == 1
    for seconds in (33, 39):
        run_tier_tick(now=at(seconds))
    assert Machine.objects.get().status == MachineStatus.ENDING


def test_a_result_waits_for_no_machine_that_may_not_be_rented(
    house: Provider, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores, "RENTED_A_DAY", 0)
    assert settle_finished(now=at(13)) == 1
    run_tier_tick(now=at(14))
    assert not Machine.objects.exists()
    assert SpotCheck.objects.get().state == ErrandState.FAILED


@pytest.mark.parametrize("change", [{"is_on": False}, {"serverful_cap": 0}])
def test_a_house_that_rents_nothing_measures_nothing(
    house: Provider, job: Job, change: dict[str, Any]
) -> None:
    ZoneTiers.objects.update(**change)
    assert settle_finished(now=at(13)) == 1


def test_a_job_that_costs_less_than_a_machine_gets_none(
    house: Provider, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores, "RENTED_FROM_MICROS", job.price_micros + 1)
    assert settle_finished(now=at(13)) == 1


@pytest.mark.parametrize("whose", ["owner", "provider"])
def test_no_machine_is_rented_for_friends_of_the_house(
    house: Provider, job: Job, whose: str
) -> None:
    party = job.organisation if whose == "owner" else job.zone.nodes.get().provider.organisation
    member = builders.owner_of(party)
    Membership.objects.create(organisation=house.organisation, user=member, role=Role.MEMBER)
    assert settle_finished(now=at(13)) == 1


def test_who_is_judged_lists_no_machine_that_judges(house: Provider, job: Job) -> None:
    ZoneTiers.objects.update(provider=job.zone.nodes.get().provider)
    Provider.objects.update(verified_at=NOW)
    assert settle_finished(now=at(13)) == 1


def test_a_checker_that_falls_silent_brings_no_machine(
    house: Provider, backend: MemoryBackend, job: Job
) -> None:
    other = market.node(job.zone)
    assert settle_finished(now=at(13)) == 0
    Node.objects.filter(pk=other.pk).update(status=NodeStatus.OFFLINE)
    for seconds in (14, 15, 16):
        run_tier_tick(now=at(seconds))
    assert SpotCheck.objects.get().state == ErrandState.WAITING
    assert not Machine.objects.exists()


def test_a_machine_that_never_comes_lets_the_money_go(house: Provider, job: Job) -> None:
    assert settle_finished(now=at(13)) == 0
    late = at(14) + scores.RENTED_WITHIN
    hand_out_errands(now=late)
    assert settle_finished(now=late) == 1
