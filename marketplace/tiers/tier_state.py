"""What the market rents in a zone and what is going on there, read at once for a tick.

However many machines there are, this is so many statements; the steps of a tick look things
up here and write down what they change, so that later steps see it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from django.db.models import Min

from marketplace.auction.models import Reservation
from marketplace.fleet.models import Node, NodeStatus, Tier
from marketplace.fleet.selectors import slot_at
from marketplace.jobs.models import Errand, ErrandState, Slice, SliceStatus
from marketplace.tiers.machines import end_machine, measure_boot_s, request_machine
from marketplace.tiers.models import (
    LIVE,
    Booking,
    ListedOffer,
    Machine,
    MachineStatus,
    Stay,
    ZoneTiers,
)
from marketplace.tiers.provisioning import MachineOffer


@dataclass(slots=True)
class TierState:
    tiers: ZoneTiers
    #: Live machines by id, those not yet launched included.
    machines: dict[str, Machine] = field(default_factory=dict[str, Machine])
    #: Open stays.
    stays: list[Stay] = field(default_factory=list[Stay])
    #: Open leases by node and by job.
    leases: dict[str, list[Slice]] = field(default_factory=lambda: defaultdict(list))
    lease_of: dict[str, Slice] = field(default_factory=dict[str, Slice])
    #: Bids that hold cells of a node from the present slot on.
    sold: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    #: Nodes that were asked for an errand and have not answered yet.
    asked: set[str] = field(default_factory=set[str])
    #: Machines and jobs of open bookings.
    booked: set[str] = field(default_factory=set[str])
    booked_jobs: set[str] = field(default_factory=set[str])
    #: Offers that are on sale as nodes, or whose machines boot.
    listed: list[ListedOffer] = field(default_factory=list[ListedOffer])
    #: First slot that is sold, of those that are not rented yet, by node.
    sold_ahead: dict[str, int] = field(default_factory=dict[str, int])
    _boots: dict[str, float] = field(default_factory=dict[str, float])
    _asks: dict[str, int] = field(default_factory=dict[str, int])

    def of_tier(self, *, serverless: bool) -> list[Machine]:
        found = self.machines.values()
        return [one for one in found if (one.tier == Tier.SERVERLESS) == serverless]

    def room(self, *, serverless: bool) -> int:
        """How many further machines the cap allows; below zero when it was lowered."""
        if serverless:
            return self.tiers.serverless_cap - len(self.of_tier(serverless=True))
        # One that is sold already has its place.
        rented = len(self.of_tier(serverless=False)) + len(self.sold_ahead)
        return self.tiers.serverful_cap - rented

    def coming(self, *, serverless: bool) -> int:
        """Machines that were requested or sold ahead and have not joined yet."""
        awaited = (MachineStatus.REQUESTED, MachineStatus.BOOTING)
        asked = sum(one.status in awaited for one in self.of_tier(serverless=serverless))
        return asked if serverless else asked + len(self.sold_ahead)

    def online(self, *, serverless: bool) -> Iterator[tuple[Machine, Node]]:
        """Running machines that have joined, cheapest first."""
        rows = self.of_tier(serverless=serverless)
        for machine in sorted(rows, key=lambda one: (one.price_micros_per_h, one.pk)):
            node = get_loaded_node(machine)
            if node is None or node.status != NodeStatus.ONLINE:
                continue
            if machine.status == MachineStatus.RUNNING:
                yield machine, node

    def unused(self) -> list[Machine]:
        """Serverful workers that run nothing and of which nothing is sold or booked."""
        return [
            machine
            for machine, node in self.online(serverless=False)
            if machine.pk not in self.booked
            and not self.leases.get(node.pk)
            and not self.sold.get(node.pk)
        ]

    def boot_s(self, offer: MachineOffer) -> float:
        if offer.name not in self._boots:
            self._boots[offer.name] = measure_boot_s(self.tiers, offer)
        return self._boots[offer.name]

    def price_micros_per_h(self, node_id: str) -> int:
        """What a node that a stay's job has cells on asks for an hour."""
        if node_id not in self._asks:
            nodes = {node for stay in self.stays for _, node in stay.job.cells}
            asks = Node.objects.filter(pk__in=nodes | {node_id})
            self._asks = dict(asks.values_list("pk", "ask_micros"))
        return round(self._asks[node_id] * 3600 / self.tiers.zone.slot_s)

    def request(self, offer: MachineOffer, *, reason: str, now: datetime) -> Machine:
        machine = request_machine(tiers=self.tiers, offer=offer, reason=reason, now=now)
        self.machines[machine.pk] = machine
        return machine

    def end(self, machine: Machine, *, reason: str, now: datetime) -> None:
        machine.status = end_machine(machine=machine, reason=reason, now=now).status
        if machine.status == MachineStatus.ENDED:
            del self.machines[machine.pk]

    def add_leases(self, leases: Iterable[Slice]) -> None:
        for lease in leases:
            lease.job.zone = self.tiers.zone
            self.leases[lease.node_id].append(lease)
            self.lease_of[lease.job_id] = lease

    def book(self, booking: Booking) -> None:
        self.booked.add(booking.machine_id)
        self.booked_jobs.add(booking.job_id)


#: What a tick reads; nodes and jobs have much more.
_OF_MACHINES = (
    *("zone_id", "backend", "tier", "offer", "price_micros_per_h", "status", "idle_since_at"),
    *("join_token__node__status",),
)
_OF_LEASES = (
    *("node_id", "acknowledged_at", "job__bid_id", "job__zone_id", "job__status"),
    *("job__needs_replan", "job__eta_at", "job__deadline_at", "job__started_at"),
)


def load_tier_state(*, tiers: ZoneTiers, now: datetime) -> TierState:
    """All of it as of now."""
    found = TierState(tiers=tiers)
    rows = Machine.objects.filter(zone=tiers.zone, status__in=LIVE).order_by("pk")
    rows = rows.select_related("join_token__node").only(*_OF_MACHINES)
    found.machines = {row.pk: row for row in rows}
    stays = Stay.objects.filter(ended_at__isnull=True, machine__zone=tiers.zone).order_by("pk")
    found.stays = list(stays.select_related("job").defer("job__terms"))
    for stay in found.stays:
        stay.job.zone = tiers.zone
        # One row, one object: what a step notes of a machine, the next one reads.
        stay.machine = found.machines.get(stay.machine_id) or stay.machine
    _load_listed(found, now)
    if not found.machines and not found.stays:
        return found
    for machine_id, job_id in Booking.objects.filter(
        closed_at__isnull=True, machine__zone=tiers.zone
    ).values_list("machine_id", "job_id"):
        found.booked.add(machine_id)
        found.booked_jobs.add(job_id)
    nodes = [
        node.pk for one in found.machines.values() if (node := get_loaded_node(one)) is not None
    ]
    errands = Errand.objects.filter(node__in=nodes, state=ErrandState.ASKED)
    found.asked = {node_id for node_id in errands.values_list("node_id", flat=True) if node_id}
    held = Slice.objects.filter(status=SliceStatus.OPEN).order_by("pk")
    held = held.select_related("job").only(*_OF_LEASES)
    found.add_leases(held.filter(node__in=nodes))
    away = [stay.job_id for stay in found.stays if stay.job_id not in found.lease_of]
    if away:
        found.add_leases(held.filter(job__in=away))
    sold = Reservation.objects.filter(
        node__in=nodes, slot__gte=slot_at(tiers.zone, now), released_at__isnull=True
    )
    for node_id, bid_id in sold.values_list("node_id", "bid_id").distinct():
        found.sold[node_id].add(bid_id)
    return found


def _load_listed(found: TierState, now: datetime) -> None:
    listed = ListedOffer.objects.filter(tiers=found.tiers, closed_at=None).order_by("pk")
    found.listed = list(listed.select_related("node"))
    not_rented = [one.node_id for one in found.listed if one.machine_id is None]
    if not_rented:
        held = Reservation.objects.filter(
            node__in=not_rented,
            slot__gte=slot_at(found.tiers.zone, now),
            released_at__isnull=True,
        )
        first = held.values("node_id").annotate(first=Min("slot"))
        found.sold_ahead = dict(first.values_list("node_id", "first"))


def get_loaded_node(machine: Machine) -> Node | None:
    """The node a machine became, as it was read with the machine."""
    return None if machine.join_token is None else machine.join_token.node


def filter_offers(offers: Iterable[MachineOffer], *, serverless: bool) -> list[MachineOffer]:
    """Offers of serverless machines, or of the others; the cheapest first."""
    found = [offer for offer in offers if (offer.tier == Tier.SERVERLESS) == serverless]
    return sorted(found, key=lambda offer: (offer.price_micros_per_h, offer.name))
