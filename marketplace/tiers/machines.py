"""The life of a rented machine: requested, launched, running, ended; and what really runs.

A row is committed before its backend is asked, and a backend is asked outside any
transaction. A crash in between leaves a row without a machine or a machine whose row
says nothing; ``reconcile_machines`` finds both.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet

from marketplace.auction.models import Reservation
from marketplace.fleet.models import GONE, Node, NodeStatus, Tier, Zone
from marketplace.fleet.offered_nodes import note_rental
from marketplace.fleet.selectors import slot_at
from marketplace.fleet.services import (
    ListingTerms,
    ask_node_to_leave,
    create_join_token,
    retire_node,
    set_node_ask,
)
from marketplace.jobs.models import Slice, SliceStatus
from marketplace.payments.services import record_rent
from marketplace.tiers import locks
from marketplace.tiers.models import LIVE, ListedOffer, Machine, MachineStatus, ZoneTiers
from marketplace.tiers.provisioning import (
    BACKENDS,
    ON_THIS_MACHINE,
    Backend,
    BackendFault,
    MachineOffer,
    get_backend,
)
from marketplace.tiers.reconcile_input import OFFER_PAUSE

log = logging.getLogger(__name__)

#: A launch may take this long to show in its backend's list.
LAUNCH_GRACE = timedelta(seconds=30)
#: A machine is given up if its node has not joined by then. The market bears its cost.
BOOT_LIMIT = timedelta(minutes=10)
#: Boots of an offer's machines from which the time of the next one is estimated.
BOOTS_REMEMBERED = 5
#: Serverless machines are the market's own and never on sale: available so far from now.
NEVER = timedelta(days=36_500)


def request_machine(
    *, tiers: ZoneTiers, offer: MachineOffer, reason: str, now: datetime
) -> Machine:
    """Decide to rent a machine; ``launch_machines`` does it once this is committed."""
    return Machine.objects.create(
        zone=tiers.zone,
        backend=tiers.backend_of(offer.tier),
        tier=offer.tier,
        offer=offer.name,
        price_micros_per_h=offer.price_micros_per_h,
        requested_at=now,
        reason=reason[:255],
    )


def find_usable_offers(
    *, tiers: ZoneTiers, offers: Sequence[MachineOffer], now: datetime
) -> list[MachineOffer]:
    """The offers whose machines did come up lately."""
    failed = set(
        Machine.objects.filter(
            zone=tiers.zone, ready_at=None, failed_at__gt=now - OFFER_PAUSE
        ).values_list("backend", "offer")
    )
    return [one for one in offers if (tiers.backend_of(one.tier), one.name) not in failed]


def measure_boot_s(tiers: ZoneTiers, offer: MachineOffer) -> float:
    """Seconds from request to a node in the market: as its last boots took, else as offered."""
    ready = Machine.objects.filter(
        zone=tiers.zone, offer=offer.name, backend=tiers.backend_of(offer.tier)
    ).exclude(ready_at=None)
    times = ready.order_by("-requested_at").values_list("requested_at", "ready_at")
    took = [
        (up - asked).total_seconds() for asked, up in times[:BOOTS_REMEMBERED] if up is not None
    ]
    return sum(took) / len(took) if took else offer.boot_s


def launch_machines(*, now: datetime) -> int:
    """Ask the backends for what was requested; how many machines were started."""
    started = 0
    requested = Machine.objects.filter(status=MachineStatus.REQUESTED).order_by("pk")
    for machine_id in list(requested.values_list("pk", flat=True)):
        started += _launch_machine(machine_id, now)
    return started


def _launch_machine(machine_id: str, now: datetime) -> bool:
    with transaction.atomic():
        machine = locks.lock_machine(machine_id)
        if machine.status != MachineStatus.REQUESTED or machine.zone is None:
            return False
        tiers = ZoneTiers.objects.select_related("provider").get(pk=machine.zone_id)
        serverless = machine.tier == Tier.SERVERLESS
        if not serverless and not _has_room(tiers):
            if not _paid_machines(tiers).filter(status=MachineStatus.ENDING).exists():
                _close_machine(
                    machine, reason="The cap leaves no room for it.", now=now, billed=False
                )
            # Else it waits for the one whose place it is to take.
            return False
        node = find_machine_node(machine)
        token, secret = create_join_token(
            zone=machine.zone,
            provider=tiers.provider if node is None else node.provider,
            created_by=None,
            node=node,
            terms=ListingTerms(
                ask_micros=compute_ask_micros(machine.zone, machine.price_micros_per_h),
                tier=machine.tier,
                available_from_at=now + NEVER if serverless else None,
            ),
            now=now,
        )
        machine.join_token = token  # pyright: ignore[reportAttributeAccessIssue]
        machine.status = MachineStatus.BOOTING
        machine.requested_at = now
        machine.save(update_fields=["join_token", "status", "requested_at"])
        if node is not None:
            note_rental(node=node, at=now)
    try:
        get_backend(machine.backend).launch(
            machine_id=machine.pk,
            offer=machine.offer,
            market_url=settings.PUBLIC_URL,
            join_secret=secret,
        )
    except BackendFault as fault:
        with transaction.atomic():
            machine = locks.lock_machine(machine_id)
            machine.failed_at = now
            if node is not None:
                note_rental(node=node, at=None)
            _close_machine(machine, reason=str(fault), now=now, billed=False)
        return False
    return True


def _paid_machines(tiers: ZoneTiers) -> QuerySet[Machine]:
    """Serverful machines of a zone that cost money now."""
    live = Machine.objects.filter(zone=tiers.zone, status__in=LIVE).exclude(tier=Tier.SERVERLESS)
    return live.exclude(status=MachineStatus.REQUESTED)


def _has_room(tiers: ZoneTiers) -> bool:
    return _paid_machines(tiers).count() < tiers.serverful_cap


def compute_ask_micros(zone: Zone, price_micros_per_h: int) -> int:
    """What a machine's node asks for one slot: its rent, rounded up."""
    return -(-price_micros_per_h * zone.slot_s // 3600)


def compute_rent_micros(price_micros_per_h: int, since: datetime, until: datetime) -> int:
    """Rent from request to release, by the second, rounded up."""
    micros = max(0, (until - since) // timedelta(microseconds=1))
    return -(-price_micros_per_h * micros // 3_600_000_000)


def note_ready_machines(*, now: datetime) -> int:
    """Note which booting machines have their nodes in the market by now; how many.

    Asks no backend, so that a job waits for its machine no longer than for the next tick.
    """
    up = Machine.objects.filter(
        status=MachineStatus.BOOTING, join_token__node__status=NodeStatus.ONLINE
    )
    noticed = list(up.order_by("pk").values_list("pk", flat=True))
    for machine_id in noticed:
        _check_boot(machine_id, now)
    return len(noticed)


def end_machine(*, machine: Machine, reason: str, now: datetime) -> Machine:
    """Begin to end a machine: nothing more is sold on its node. Twice is no error."""
    with transaction.atomic():
        machine = locks.lock_machine(machine.pk)
        if machine.status == MachineStatus.REQUESTED:
            _close_machine(machine, reason=reason, now=now, billed=False)
        elif machine.status in (MachineStatus.BOOTING, MachineStatus.RUNNING):
            machine.status = MachineStatus.ENDING
            machine.reason = reason[:255]
            machine.save(update_fields=["status", "reason"])
            node = find_machine_node(machine)
            if node is not None and node.status == NodeStatus.OFFERED:
                # What was sold of it is planned again at once.
                retire_node(node=node, now=now)
            elif node is not None and node.status == NodeStatus.ONLINE:
                ask_node_to_leave(node=node, now=now)
    return machine


def reconcile_machines(*, now: datetime) -> None:
    """Bring what is known in line with what runs, in every backend.

    Machines that run and are not known are shown to the operator and ended; known ones
    that run no more are ended here; those being ended are asked again.
    """
    for name in sorted(BACKENDS):
        if not _is_backend_used(name):
            continue
        try:
            _reconcile_backend(get_backend(name), now)
        except Exception:
            # A backend that is away must not hide what runs in the others.
            log.exception("backend %s could not be reconciled", name)


def give_back_machines(*, now: datetime) -> tuple[str, ...]:
    """Rent no more and end every machine, with or without a job; the ids of those that still run.

    Their nodes hand over checkpoints as they stop; call again until none is left.
    """
    ZoneTiers.objects.filter(is_on=True).update(is_on=False)
    for machine in Machine.objects.filter(status__in=LIVE).order_by("pk"):
        end_machine(machine=machine, reason="The house gives its machines back.", now=now)
    left: set[str] = set()
    for name in sorted(BACKENDS):
        if _is_backend_used(name):
            backend = get_backend(name)
            for seen in backend.machines():
                backend.terminate(seen.machine_id)
            _reconcile_backend(backend, now)
            left |= {seen.machine_id for seen in backend.machines()}
    left |= set(Machine.objects.filter(status__in=LIVE).values_list("pk", flat=True))
    return tuple(sorted(left))


def _is_backend_used(backend: str) -> bool:
    """Whether machines were ever, or may now be, rented there; others need not be installed."""
    zones = ZoneTiers.objects.filter(Q(backend=backend) | Q(serverless_backend=backend))
    return (
        backend == ON_THIS_MACHINE
        or zones.exists()
        or Machine.objects.filter(backend=backend).exists()
    )


def _reconcile_backend(backend: Backend, now: datetime) -> None:
    seen = {one.machine_id: one for one in backend.machines()}
    known = {row.pk: row for row in Machine.objects.filter(backend=backend.name, status__in=LIVE)}
    for machine_id in sorted(seen.keys() - known.keys()):
        _record_orphan(backend.name, machine_id, now)
        backend.terminate(machine_id)
    for machine_id, machine in sorted(known.items()):
        if machine_id not in seen:
            if _close_missing_machine(machine, now):
                # What a backend keeps of a machine that is gone goes too.
                backend.terminate(machine_id)
        elif machine.status == MachineStatus.ENDING:
            if not _is_busy(machine, now):
                backend.terminate(machine_id)
        elif machine.status == MachineStatus.BOOTING:
            _check_boot(machine_id, now)


def _record_orphan(backend: str, machine_id: str, now: datetime) -> None:
    """A row for a machine that was not requested, so that the operator sees it being ended."""
    with transaction.atomic():
        _, made = Machine.objects.get_or_create(
            pk=machine_id,
            defaults={
                "backend": backend,
                "tier": Tier.MARKETPLACE,
                "offer": "unknown",
                "price_micros_per_h": 0,
                "status": MachineStatus.ENDING,
                "is_orphan": True,
                "requested_at": now,
                "reason": "Found running without a request; ended.",
            },
        )
        if not made:
            # It was ended on our side and runs on.
            row = locks.lock_machine(machine_id)
            row.status, row.ended_at = MachineStatus.ENDING, None
            row.reason = "Found running after its end; ended again."
            row.save(update_fields=["status", "ended_at", "reason"])
    log.warning("machine %s of backend %s runs unasked; ending it", machine_id, backend)


def _is_busy(machine: Machine, now: datetime) -> bool:
    """Whether its node still serves what was sold or leased on it."""
    node = find_machine_node(machine)
    if node is None or node.status in GONE:
        return False
    leased = Slice.objects.filter(node=node, status=SliceStatus.OPEN).exists()
    return leased or has_sold_cells(node, now=now)


def has_sold_cells(node: Node, *, now: datetime) -> bool:
    """Whether cells of the node, from the present slot on, are sold."""
    return Reservation.objects.filter(
        node=node, slot__gte=slot_at(node.zone, now), released_at__isnull=True
    ).exists()


def _close_missing_machine(machine: Machine, now: datetime) -> bool:
    """Close a machine that its backend does not run; whether it was closed."""
    with transaction.atomic():
        machine = locks.lock_machine(machine.pk)
        if machine.status == MachineStatus.ENDING:
            _close_machine(machine, reason=machine.reason, now=now)
        elif machine.status == MachineStatus.RUNNING or (
            machine.status == MachineStatus.BOOTING and now - machine.requested_at > LAUNCH_GRACE
        ):
            machine.failed_at = now
            _close_machine(machine, reason="It is gone: its backend no longer runs it.", now=now)
    return machine.status == MachineStatus.ENDED


def _check_boot(machine_id: str, now: datetime) -> None:
    with transaction.atomic():
        machine = locks.lock_machine(machine_id)
        node = find_machine_node(machine)
        if machine.status != MachineStatus.BOOTING:
            return
        if node is not None and node.status == NodeStatus.ONLINE:
            machine.status, machine.ready_at = MachineStatus.RUNNING, now
            machine.idle_since_at = now
            machine.save(update_fields=["status", "ready_at", "idle_since_at"])
            if ListedOffer.objects.filter(machine=machine).update(closed_at=now):
                # It is there: who buys from now on pays no boot.
                ask_micros = compute_ask_micros(node.zone, machine.price_micros_per_h)
                set_node_ask(node=node, ask_micros=ask_micros, set_by=None, now=now)
        elif now - machine.requested_at > BOOT_LIMIT:
            machine.failed_at = now
            machine.save(update_fields=["failed_at"])
            end_machine(machine=machine, reason="It did not come up; paid all the same.", now=now)


def _close_machine(machine: Machine, *, reason: str, now: datetime, billed: bool = True) -> None:
    """Close a machine and its node. Call while holding the machine."""
    machine.status, machine.ended_at, machine.reason = MachineStatus.ENDED, now, reason[:255]
    if billed:
        machine.cost_micros = compute_rent_micros(
            machine.price_micros_per_h, machine.requested_at, now
        )
        record_rent(machine_id=machine.pk, amount_micros=machine.cost_micros, now=now)
    machine.save(update_fields=["status", "ended_at", "reason", "cost_micros", "failed_at"])
    ListedOffer.objects.filter(machine=machine, closed_at=None).update(closed_at=now)
    node = find_machine_node(machine)
    if node is not None and node.status != NodeStatus.LEFT:
        # The sweep of leases takes its jobs back and re-plans them.
        retire_node(node=node, now=now)


def find_machine_node(machine: Machine) -> Node | None:
    """The node a machine became, once it has joined, or the one that it was rented for."""
    if machine.join_token is None or machine.join_token.node_id is None:
        listed = ListedOffer.objects.select_related("node__zone").filter(machine=machine)
        return next((one.node for one in listed), None)
    return Node.objects.select_related("zone").get(pk=machine.join_token.node_id)
