"""``manage.py machines_end``: nothing is left that costs money."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from marketplace.fleet.models import Node, NodeStatus, Zone
from marketplace.jobs.services import dispatch_slots
from marketplace.tiers.machines import launch_machines, reconcile_machines, request_machine
from marketplace.tiers.models import Machine, MachineStatus, ZoneTiers
from tests import job_builders
from tests.builders import NOW
from tests.unit.marketplace.tiers.backends import CHEAP, SERVERLESS, MemoryBackend, tiers

pytestmark = pytest.mark.django_db


def end_all(**options: float) -> str:
    out = StringIO()
    call_command("machines_end", stdout=out, **options)
    return out.getvalue().strip()


def test_every_machine_is_given_back_whatever_it_runs(zone: Zone, backend: MemoryBackend) -> None:
    house = tiers(zone)
    for offer in (CHEAP, SERVERLESS):
        request_machine(tiers=house, offer=offer, reason="wanted", now=NOW)
    launch_machines(now=NOW)
    busy = backend.join(sorted(backend.running)[0], now=NOW)
    reconcile_machines(now=NOW)
    job = job_builders.job(zone, (0, busy), (1, busy))
    dispatch_slots(now=NOW)
    request_machine(tiers=house, offer=CHEAP, reason="wanted", now=NOW)
    backend.running.add("mach_stranger")

    assert end_all() == "No rented machine runs."
    assert backend.running == set()
    assert {machine.status for machine in Machine.objects.all()} == {MachineStatus.ENDED}
    assert not ZoneTiers.objects.get().is_on
    assert Node.objects.get(pk=busy.pk).status == NodeStatus.LEFT
    job.refresh_from_db()
    assert job.is_active
    assert end_all() == "No rented machine runs."


def test_a_machine_that_does_not_end_is_named(
    zone: Zone, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = request_machine(tiers=tiers(zone), offer=CHEAP, reason="wanted", now=NOW)
    launch_machines(now=NOW)
    monkeypatch.setattr(MemoryBackend, "terminate", lambda *_: None)
    with pytest.raises(CommandError, match=f"Still running: {machine.pk}"):
        end_all(within_s=0.0)
