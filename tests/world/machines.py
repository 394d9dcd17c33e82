"""Machines that the house rents: they boot, die, run without a request, and take jobs over."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from marketplace.tiers import machines, provisioning, services
from marketplace.tiers.machines import give_back_machines, reconcile_machines
from marketplace.tiers.models import Machine, MachineStatus
from tests.unit.marketplace.tiers.backends import MemoryBackend, tiers
from tests.world.actors import Actor, Turn
from tests.world.simulated_nodes import SimulatedNode
from tests.world.world import World


class Machines(Actor):
    def __init__(self, world: World, patch: pytest.MonkeyPatch) -> None:
        super().__init__(world, patch)
        self.backend = MemoryBackend()
        backends = {"memory": lambda: self.backend}
        patch.setattr(provisioning, "BACKENDS", backends)
        for module in (services, machines):
            patch.setattr(module, "BACKENDS", backends)
        tiers(world.zone)
        #: The node of each machine that has one.
        self.nodes: dict[str, SimulatedNode] = {}
        self.died = self.orphans = 0

    def list_turns(self) -> Sequence[Turn]:
        return (
            (5, "tiers are scaled", lambda: self.world.run_task("tiers.tick")),
            (5, "machines are reconciled", self.reconcile),
            (6, "a machine joins", self.join),
            (1, "a machine dies", self.die),
            (1, "a machine runs unasked", self.run_unasked),
            (1, "an offer is gone", self.break_offers),
        )

    def reconcile(self) -> None:
        reconcile_machines(now=self.world.now)

    def join(self) -> None:
        booting = sorted(self.backend.running & self.backend.secrets.keys() - self.nodes.keys())
        if booting:
            machine_id = self.world.rng.choice(booting)
            node = SimulatedNode(self.backend.join(machine_id, now=self.world.now))
            self.nodes[machine_id] = node
            self.world.nodes.append(node)

    def die(self) -> None:
        if self.backend.running:
            machine_id = self.world.rng.choice(sorted(self.backend.running))
            self.backend.running.discard(machine_id)
            self.died += 1
            self._silence(machine_id)

    def _silence(self, machine_id: str) -> None:
        node = self.nodes.get(machine_id)
        if node is not None and node in self.world.nodes:
            self.world.nodes.remove(node)

    def run_unasked(self) -> None:
        self.orphans += 1
        self.backend.running.add(f"machine-unasked-{self.orphans}")

    def break_offers(self) -> None:
        self.backend.broken = not self.backend.broken

    def settle(self) -> None:
        self.backend.broken = False
        give_back_machines(now=self.world.now)
        for machine_id in self.nodes.keys() - self.backend.running:
            self._silence(machine_id)

    def is_at_rest(self) -> bool:
        return not self.backend.running

    def check_rest(self) -> None:
        """No machine runs that nobody uses, and each that ended is known to have."""
        assert not self.backend.running
        left = Machine.objects.exclude(status=MachineStatus.ENDED)
        assert not left.exists(), list(left.values_list("pk", "status", "reason"))

    def describe(self) -> str:
        return (
            f"machines {Machine.objects.count()}, of which {len(self.nodes)} joined, {self.died} "
            f"died and {self.orphans} ran unasked"
        )
