"""What bidders and the operator see of the tiers."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
import time_machine
from django.test import Client
from django.urls import reverse

from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.fleet.models import Node, Zone
from marketplace.fleet.selectors import slot_at
from marketplace.jobs.models import Job
from marketplace.jobs.services import dispatch_slots
from marketplace.tiers.machines import launch_machines, reconcile_machines, request_machine
from marketplace.tiers.models import Booking, BookingOutcome, Machine, Stay, ZoneTiers
from marketplace.tiers.selectors import ORPHANS_SHOWN, list_machines
from marketplace.tiers.services import run_tier_tick
from tests import builders, job_builders, market_builders
from tests.builders import NOW
from tests.job_builders import at
from tests.pages import read_page
from tests.unit.marketplace.tiers.backends import CHEAP, DEAR, SERVERLESS, MemoryBackend, tiers
from workers.protocol.reports import SliceEnd as Ended

pytestmark = pytest.mark.django_db


def tick(seconds: float) -> None:
    run_tier_tick(now=at(seconds))
    reconcile_machines(now=at(seconds))
    dispatch_slots(now=at(seconds))


def page(client: Client, name: str, *terms: str, seconds: float) -> str:
    with time_machine.travel(at(seconds), tick=False):
        answer = client.get(reverse(name, args=terms))
    assert answer.status_code == 200
    return read_page(answer)


def test_a_job_s_page_shows_its_stay_on_serverless_and_its_move(
    zone: Zone, backend: MemoryBackend
) -> None:
    tiers(zone, serverful_cap=0)
    ZoneTiers.objects.update(checkpoint_s=2.0, restore_s=2.0)
    # On sale from the third slot on.
    reserved = market_builders.node(zone, available_from_at=at(30))
    owner = builders.organisation(usd="100")
    bid = market_builders.bid(owner, zone, epochs=4)
    decide_pending_bids(zone=zone, now=NOW)
    job = Job.objects.get(bid_id=bid.pk)
    begins_s = (job.cells[0][0] - slot_at(zone, NOW)) * zone.slot_s
    tick(0)
    [machine_id] = backend.running
    fast = backend.join(machine_id, now=at(1))
    reconcile_machines(now=at(1))
    tick(1)
    assert Stay.objects.get().job_id == job.pk
    client = Client()
    client.force_login(builders.owner_of(owner))

    during = page(client, "job_detail", job.pk, seconds=5)
    assert blocks(during) == [("serverless", "cur"), ("marketplace", "next")]
    assert "at $2.10 an hour paid by the house" in during
    assert f"Serverless {fast.name[-4:]}" in during

    Node.objects.update(last_heartbeat_at=at(begins_s))
    tick(begins_s)
    Job.objects.update(checkpoint_step=5)
    market_builders.end_slice(job, status=Ended.PAUSED, now=at(begins_s + 1), step=5)
    tick(begins_s + 1)
    after = page(client, "job_detail", job.pk, seconds=begins_s + 2)
    assert blocks(after) == [("serverless", "past"), ("marketplace", "cur")]
    assert f"<title>Moves to {reserved.name}</title>" in after
    # The loss chart marks the step at which it went on there.
    assert f'"moves": [[5, "{reserved.name}"]]' in after
    assert re.search(r"It left serverless after \d+ s; the house paid \$0\.\d+ for it\.", after)


def blocks(html: str) -> list[tuple[str, str]]:
    """Tier and state of each block of the large ribbon."""
    return re.findall(
        r'height="54" class="(serverless|marketplace|conventional) (past|cur|next)"', html
    )


def test_machines_are_listed_by_tier_and_state_with_paid_but_unknown_ones_on_top(
    zone: Zone, backend: MemoryBackend
) -> None:
    house = tiers(zone)
    serverful = request_machine(tiers=house, offer=CHEAP, reason="wanted", now=NOW)
    fast = request_machine(tiers=house, offer=SERVERLESS, reason="wanted", now=NOW)
    assert launch_machines(now=NOW) == 2
    backend.join(fast.pk, now=NOW)
    reconcile_machines(now=NOW)
    later = request_machine(tiers=house, offer=SERVERLESS, reason="wanted", now=NOW)
    asked = request_machine(tiers=house, offer=DEAR, reason="wanted", now=NOW)
    backend.running.add("mach_stranger")
    reconcile_machines(now=at(10))

    shown = list_machines(now=at(36))
    assert [(one.machine.pk, one.is_alarming, one.cost_micros) for one in shown] == [
        ("mach_stranger", True, None),
        (asked.pk, False, 0),
        (serverful.pk, False, 7400),
        (later.pk, False, 0),
        (fast.pk, False, 21_000),
    ]
    client = Client()
    client.force_login(builders.operator())
    html = page(client, "operator", seconds=36)
    listed = html[html.index("Rented machines") :]
    places = [listed.index(one.machine.pk) for one in shown]
    assert places == sorted(places)
    assert "Runs unasked" in listed
    assert "Found running without a request" in listed


def test_an_orphan_stays_in_the_list_for_a_day_after_it_was_ended(
    zone: Zone, backend: MemoryBackend
) -> None:
    tiers(zone)
    backend.running.add("mach_stranger")
    reconcile_machines(now=NOW)
    reconcile_machines(now=at(10))
    ended_at = Machine.objects.get().ended_at
    assert ended_at == at(10)
    shown = list_machines(now=ended_at + ORPHANS_SHOWN - timedelta(seconds=1))
    assert [(one.machine.pk, one.is_alarming) for one in shown] == [("mach_stranger", False)]
    assert list_machines(now=ended_at + ORPHANS_SHOWN) == []


def test_without_rented_machines_the_operator_sees_no_list(zone: Zone) -> None:
    client = Client()
    client.force_login(builders.operator())
    job_builders.joined(zone)
    assert "Rented machines" not in page(client, "operator", seconds=1)


def test_the_page_of_machines_tells_states_costs_moves_and_the_last_day(
    zone: Zone, backend: MemoryBackend
) -> None:
    house = tiers(zone, serverful_cap=3)
    gone = request_machine(tiers=house, offer=CHEAP, reason="wanted", now=NOW)
    fast = request_machine(tiers=house, offer=SERVERLESS, reason="wanted", now=NOW)
    launch_machines(now=NOW)
    backend.join(fast.pk, now=NOW)
    backend.running.discard(gone.pk)
    backend.running.add("mach_stranger")
    reconcile_machines(now=at(40))
    job = job_builders.job(zone, (0, market_builders.node(zone)))
    Booking.objects.create(
        job=job,
        machine=fast,
        origin=fast,
        made_at=NOW,
        closed_at=at(40),
        outcome=BookingOutcome.MOVED,
        saved_micros=123_456,
        pause_s=2.5,
    )
    for minute in range(3):
        Node.objects.update(last_heartbeat_at=at(60 * minute))
        run_tier_tick(now=at(60 * minute))
    client = Client()
    client.force_login(builders.operator())
    html = page(client, "operator_machines", seconds=130)
    assert "1 machine runs unasked." in html
    assert re.search(r"serverless \d of 2 from memory, others \d of 3 from memory", html)
    running, ended = html[html.index('id="machines"') :].split('id="ended"')
    assert "mach_stranger" in running
    assert fast.pk in running
    assert "Never came up" in ended
    assert gone.pk in ended
    assert "$0.008223" in ended
    moves = running[running.index('id="moves"') :]
    assert ("2.5 s" in moves, "$0.123456" in moves) == (True, True)
    # Three charts of steps: pressure with a line at 1, F, and both kinds of machines.
    assert len(re.findall(r'<path class="line c\d" d="M0.0 [0-9.]+H', html)) == 4
    assert "0.00 now" in html

    stranger = Client()
    stranger.force_login(builders.owner_of(builders.organisation()))
    assert stranger.get(reverse("operator_machines")).status_code == 403


def test_without_tiers_the_page_of_machines_says_how_to_begin(zone: Zone) -> None:
    client = Client()
    client.force_login(builders.operator())
    html = page(client, "operator_machines", seconds=1)
    assert "The house rents no machines" in html
    assert "manage.py tiers_set" in html
