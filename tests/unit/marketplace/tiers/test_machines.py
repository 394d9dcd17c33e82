"""Machines from request to release, and what the reconcile loop finds."""

from __future__ import annotations

from datetime import timedelta

import pytest

from marketplace.common.errors import UserError
from marketplace.fleet.models import Node, NodeStatus, Tier, Zone
from marketplace.fleet.selectors import build_node_spec, slot_at
from marketplace.tiers.machines import (
    BOOT_LIMIT,
    LAUNCH_GRACE,
    compute_ask_micros,
    compute_rent_micros,
    end_machine,
    launch_machines,
    reconcile_machines,
    request_machine,
)
from marketplace.tiers.models import Machine, MachineStatus, ZoneTiers
from marketplace.tiers.provisioning import BackendFault
from marketplace.tiers.services import TierSettings, run_tier_tick, set_zone_tiers
from tests import job_builders, market_builders
from tests.builders import NOW
from tests.job_builders import at
from tests.unit.marketplace.tiers.backends import CHEAP, SERVERLESS, MemoryBackend, tiers

pytestmark = pytest.mark.django_db


@pytest.fixture
def house(zone: Zone, backend: MemoryBackend) -> ZoneTiers:
    return tiers(zone)


def launched(house: ZoneTiers, *, offer=CHEAP) -> Machine:
    machine = request_machine(tiers=house, offer=offer, reason="wanted", now=NOW)
    assert launch_machines(now=NOW) == 1
    return fresh(machine)


def fresh(machine: Machine) -> Machine:
    return Machine.objects.select_related("join_token").get(pk=machine.pk)


def test_rent_is_by_the_second_and_rounded_up() -> None:
    assert compute_rent_micros(3_600_000, NOW, at(1)) == 1000
    assert compute_rent_micros(740_000, NOW, at(1)) == 206
    assert compute_rent_micros(740_000, at(1), NOW) == 0


def test_a_node_asks_its_rent_for_a_slot(zone: Zone) -> None:
    assert compute_ask_micros(zone, 740_000) == -(-740_000 * 10 // 3600)


def test_a_machine_boots_joins_and_runs(house: ZoneTiers, backend: MemoryBackend) -> None:
    machine = launched(house)
    assert machine.status == MachineStatus.BOOTING
    reconcile_machines(now=at(5))
    assert fresh(machine).status == MachineStatus.BOOTING
    node = backend.join(machine.pk, now=at(6))
    reconcile_machines(now=at(7))
    machine = fresh(machine)
    assert (machine.status, machine.ready_at) == (MachineStatus.RUNNING, at(7))
    assert (machine.node_id, node.tier) == (node.pk, Tier.MARKETPLACE)
    assert node.ask_micros == compute_ask_micros(house.zone, CHEAP.price_micros_per_h)


def test_launching_again_starts_nothing_more(house: ZoneTiers, backend: MemoryBackend) -> None:
    launched(house)
    assert launch_machines(now=at(1)) == 0
    assert len(backend.running) == 1


def test_a_serverless_node_is_never_on_sale(house: ZoneTiers, backend: MemoryBackend) -> None:
    machine = launched(house, offer=SERVERLESS)
    node = backend.join(machine.pk, now=NOW)
    first = build_node_spec(house.zone, node).available_from
    assert first is not None
    assert first > slot_at(house.zone, NOW) + house.zone.horizon_slots


def test_an_offer_that_is_gone_costs_nothing(house: ZoneTiers, backend: MemoryBackend) -> None:
    backend.broken = True
    machine = request_machine(tiers=house, offer=CHEAP, reason="wanted", now=NOW)
    assert launch_machines(now=at(3)) == 0
    machine = fresh(machine)
    assert (machine.status, machine.cost_micros) == (MachineStatus.ENDED, 0)
    assert machine.reason == "The offer 'cheap' is gone."


def test_a_machine_that_never_comes_up_is_paid_and_given_up(
    house: ZoneTiers, backend: MemoryBackend
) -> None:
    machine = launched(house)
    late = NOW + BOOT_LIMIT + timedelta(seconds=1)
    reconcile_machines(now=late)
    assert fresh(machine).status == MachineStatus.ENDING
    reconcile_machines(now=late)
    reconcile_machines(now=late)
    machine = fresh(machine)
    assert machine.status == MachineStatus.ENDED
    assert machine.cost_micros == compute_rent_micros(740_000, NOW, late)
    assert backend.running == set()


def test_an_orphan_is_shown_and_ended(house: ZoneTiers, backend: MemoryBackend) -> None:
    backend.running.add("mach_stranger")
    reconcile_machines(now=NOW)
    row = Machine.objects.get(pk="mach_stranger")
    assert (row.is_orphan, row.status) == (True, MachineStatus.ENDING)
    assert backend.terminated == ["mach_stranger"]
    reconcile_machines(now=at(10))
    row.refresh_from_db()
    assert (row.status, row.ended_at) == (MachineStatus.ENDED, at(10))


def test_a_machine_that_runs_after_its_end_is_ended_again(
    house: ZoneTiers, backend: MemoryBackend
) -> None:
    machine = launched(house)
    end_machine(machine=machine, reason="enough", now=at(1))
    reconcile_machines(now=at(2))
    reconcile_machines(now=at(3))
    assert fresh(machine).status == MachineStatus.ENDED
    backend.running.add(machine.pk)
    reconcile_machines(now=at(4))
    assert fresh(machine).status == MachineStatus.ENDING
    assert backend.running == set()


def test_a_known_machine_that_is_gone_is_closed_and_its_node_leaves(
    house: ZoneTiers, backend: MemoryBackend
) -> None:
    machine = launched(house)
    node = backend.join(machine.pk, now=NOW)
    reconcile_machines(now=at(1))
    backend.running.clear()
    reconcile_machines(now=at(40))
    machine = fresh(machine)
    assert (machine.status, machine.ended_at) == (MachineStatus.ENDED, at(40))
    assert "gone" in machine.reason
    assert machine.cost_micros == compute_rent_micros(740_000, NOW, at(40))
    assert Node.objects.get(pk=node.pk).status == NodeStatus.LEFT


def test_a_launch_is_given_time_to_show_in_the_list(
    house: ZoneTiers, backend: MemoryBackend
) -> None:
    machine = launched(house)
    backend.running.clear()
    reconcile_machines(now=NOW + LAUNCH_GRACE)
    assert fresh(machine).status == MachineStatus.BOOTING
    reconcile_machines(now=NOW + LAUNCH_GRACE + timedelta(seconds=1))
    assert fresh(machine).status == MachineStatus.ENDED


def test_a_machine_is_not_ended_under_a_job(house: ZoneTiers, backend: MemoryBackend) -> None:
    machine = launched(house)
    node = backend.join(machine.pk, now=NOW)
    reconcile_machines(now=NOW)
    job = job_builders.job(house.zone, (0, node), (1, node))
    from marketplace.jobs.services import cancel_job, dispatch_slots

    dispatch_slots(now=NOW)
    end_machine(machine=machine, reason="enough", now=at(1))
    reconcile_machines(now=at(2))
    assert backend.terminated == []
    assert Node.objects.get(pk=node.pk).status == NodeStatus.DRAINING
    cancel_job(job=job, cancelled_by=None, now=at(3))
    reconcile_machines(now=at(4))
    assert backend.terminated == [machine.pk]


def test_a_request_that_is_taken_back_never_starts(
    house: ZoneTiers, backend: MemoryBackend
) -> None:
    machine = request_machine(tiers=house, offer=CHEAP, reason="wanted", now=NOW)
    end_machine(machine=machine, reason="not needed", now=at(1))
    end_machine(machine=fresh(machine), reason="again", now=at(2))
    assert launch_machines(now=at(3)) == 0
    machine = fresh(machine)
    assert (machine.status, machine.cost_micros, machine.reason) == (
        MachineStatus.ENDED,
        0,
        "not needed",
    )


def test_one_broken_backend_does_not_hide_the_others(
    house: ZoneTiers, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> MemoryBackend:
        raise OSError("away")

    backends = {"away": broken, "memory": lambda: backend}
    monkeypatch.setattr("marketplace.tiers.machines.BACKENDS", backends)
    monkeypatch.setattr("marketplace.tiers.provisioning.BACKENDS", backends)
    backend.running.add("mach_stranger")
    reconcile_machines(now=NOW)
    assert backend.terminated == ["mach_stranger"]


def test_a_backend_nobody_uses_is_not_asked(
    house: ZoneTiers, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    backends = {name: lambda name=name: asked.append(name) or backend for name in ("a", "b")}
    monkeypatch.setattr("marketplace.tiers.machines.BACKENDS", backends)
    monkeypatch.setattr("marketplace.tiers.provisioning.BACKENDS", backends)
    reconcile_machines(now=NOW)
    assert asked == []
    ZoneTiers.objects.update(serverless_backend="b")
    reconcile_machines(now=NOW)
    assert asked == ["b"]


def test_each_tier_is_rented_from_its_own_backend(house: ZoneTiers) -> None:
    house.serverless_backend = "modal"
    for offer, name in ((SERVERLESS, "modal"), (CHEAP, "memory")):
        assert request_machine(tiers=house, offer=offer, reason="", now=NOW).backend == name


def test_a_backend_that_is_away_offers_nothing_and_stops_no_tick(
    house: ZoneTiers, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> MemoryBackend:
        raise BackendFault("away")

    backends = {"away": away, "memory": lambda: backend}
    monkeypatch.setattr("marketplace.tiers.provisioning.BACKENDS", backends)
    ZoneTiers.objects.update(serverless_backend="away")
    run_tier_tick(now=NOW)
    assert ZoneTiers.objects.get().ticked_at == NOW
    assert backend.running == set()


@pytest.mark.parametrize(
    ("terms", "code"),
    [
        ({"backend": "moon"}, "unknown_backend"),
        ({"serverless_backend": "moon"}, "unknown_backend"),
        ({"serverful_cap": -1}, "invalid_cap"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    zone: Zone, backend: MemoryBackend, terms: dict, code: str
) -> None:
    caps = {"serverless_cap": 1, "serverful_cap": 1}
    settings = TierSettings(**{"backend": "memory", **caps, **terms})
    with pytest.raises(UserError) as refusal:
        set_zone_tiers(zone=zone, provider=market_builders.provider(), settings=settings)
    assert refusal.value.code == code
    assert not ZoneTiers.objects.exists()
