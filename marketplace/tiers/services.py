"""What the tiers do: a tick for every zone that has them, and the operator's switch."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from django.db import transaction

from marketplace.accounts.models import User
from marketplace.accounts.services import create_organisation
from marketplace.common.errors import UserError
from marketplace.common.locks import advisory_lock
from marketplace.fleet.models import Provider, Zone
from marketplace.fleet.providers import check_may_list
from marketplace.fleet.services import approve_provider, ensure_provider, set_provider_verified
from marketplace.tiers import (
    bookings,
    check_machines,
    direct_starts,
    handoff,
    hazard_tables,
    lane_machines,
    locks,
    offer_inventory,
    scaling,
    serverless_runs,
    switch_latency,
)
from marketplace.tiers.machines import (
    find_usable_offers,
    give_back_machines,
    launch_machines,
    note_ready_machines,
    reconcile_machines,
)
from marketplace.tiers.models import ZoneTiers
from marketplace.tiers.provisioning import (
    BACKENDS,
    ON_THIS_MACHINE,
    BackendFault,
    MachineOffer,
    get_backend,
)
from marketplace.tiers.reconcile_input import TickWork, find_tick_work
from marketplace.tiers.tier_state import TierState, load_tier_state

log = logging.getLogger(__name__)

__all__ = [
    "ensure_own_provider",
    "give_back_machines",
    "reconcile_machines",
    "run_tier_tick",
    "set_zone_tiers",
]

#: Name of the organisation that lists the market's machines.
HOUSE = "House machines"


@dataclass(frozen=True, slots=True)
class TierSettings:
    """What the market may rent in a zone, and how it does."""

    #: Most machines of each tier; 0 for none.
    serverless_cap: int
    serverful_cap: int
    backend: str = ON_THIS_MACHINE
    #: ``None``: serverless machines come from ``backend`` as well.
    serverless_backend: str | None = None
    is_on: bool = True
    #: Whether a job may begin on a worker, without serverless.
    starts_directly: bool = True
    #: Whether what could be rented is on sale before it is, up to the cap.
    sells_offers: bool = False
    #: What else to set, by field: pauses and times in seconds, dollars an hour of delay.
    figures: Mapping[str, float] = field(default_factory=dict[str, float])

    def check(self) -> None:
        """Refuse settings that cannot be.

        Raises
        ------
        UserError
            ``unknown_backend``, ``invalid_cap`` or ``invalid_figure``.
        """
        for named in (self.backend, self.serverless_backend or self.backend):
            if named not in BACKENDS:
                raise UserError(
                    "unknown_backend",
                    f"There is no backend {named!r}; choose {', '.join(sorted(BACKENDS))}.",
                    param="backend",
                )
        if min(self.serverless_cap, self.serverful_cap) < 0:
            raise UserError("invalid_cap", "A number of machines is 0 or more.", param="cap")
        for name, value in self.figures.items():
            if not 0 <= value < math.inf:
                raise UserError("invalid_figure", f"{name} must be 0 or more.", param=name)


def set_zone_tiers(*, zone: Zone, provider: Provider, settings: TierSettings) -> ZoneTiers:
    """Let the market run its own machines in a zone, listed by ``provider``.

    Raises
    ------
    UserError
        ``provider_not_approved``, or as ``TierSettings.check``.
    """
    check_may_list(provider)
    settings.check()
    tiers, _ = ZoneTiers.objects.update_or_create(
        zone=zone,
        defaults={
            "provider": provider,
            "backend": settings.backend,
            "serverless_backend": settings.serverless_backend or settings.backend,
            "serverless_cap": settings.serverless_cap,
            "serverful_cap": settings.serverful_cap,
            "is_on": settings.is_on,
            "starts_directly": settings.starts_directly,
            "sells_offers": settings.sells_offers,
            **settings.figures,
        },
    )
    return tiers


def ensure_own_provider(*, now: datetime) -> Provider:
    """The market as a provider: an organisation of its own, made on first use.

    Raises
    ------
    UserError
        ``no_operator``: there is no operator yet to own it.
    """
    found = Provider.objects.filter(organisation__name=HOUSE).order_by("created_at").first()
    if found is not None:
        return found
    operator = User.objects.filter(is_operator=True, is_active=True).order_by("pk").first()
    if operator is None:
        raise UserError("no_operator", "Make an operator first, or name a provider.")
    with transaction.atomic():
        organisation = create_organisation(name=HOUSE, created_by=operator, now=now)
        provider = ensure_provider(organisation=organisation, now=now)
        provider = approve_provider(provider=provider, approved_by=operator, now=now)
        # The market knows itself.
        return set_provider_verified(provider=provider, is_verified=True, set_by=operator, now=now)


def run_tier_tick(*, now: datetime) -> None:
    """One turn of both scalers in every zone; then the backends are asked for what it decided.

    A second tick at the same time finds the zone taken and does nothing there.
    """
    note_ready_machines(now=now)
    for tiers in ZoneTiers.objects.select_related("zone").order_by("pk"):
        try:
            _tick(tiers, now)
        except Exception:
            # A zone that is broken must not stop the others.
            log.exception("tiers of zone %s could not be ticked", tiers.zone_id)
    launch_machines(now=now)


def _tick(tiers: ZoneTiers, now: datetime) -> None:
    # Backends are asked, and lanes entered, outside the tick's own lock.
    offers = _list_offers(tiers) if tiers.is_on else []
    work = find_tick_work(tiers=tiers, now=now)
    if work.releases:
        serverless_runs.release_unneeded_cells(tiers=tiers, now=now)
    if work.bookings and tiers.is_on:
        handoff.hand_off_bookings(tiers=tiers, now=now)
    with advisory_lock("tiers.tick", tiers.zone_id, wait=False) as held:
        if not held:
            return
        locked = locks.lock_zone_tiers(tiers.zone_id)
        # Another tick may have rented since: only what is read from here on can be counted
        # against the caps.
        work = find_tick_work(tiers=locked, now=now)
        if tiers.is_on:
            _tick_zone(locked, work, offers, now)
        else:
            _wind_down_zone(locked, work, now)


def _list_offers(tiers: ZoneTiers) -> list[MachineOffer]:
    """What can be rented now for either tier; a backend that is away offers nothing."""
    found: list[MachineOffer] = []
    for name in sorted({tiers.backend, tiers.serverless_backend}):
        try:
            offered = get_backend(name).offers()
        except BackendFault as fault:
            # Jobs that already run, and machines to be ended, must not wait for it.
            log.warning("backend %s offers nothing: %s", name, fault)
            continue
        found += [offer for offer in offered if tiers.backend_of(offer.tier) == name]
    return found


def _tick_zone(tiers: ZoneTiers, work: TickWork, offers: list[MachineOffer], now: datetime) -> None:
    before = _read_figures(tiers)
    if work.failures:
        offers = find_usable_offers(tiers=tiers, offers=offers, now=now)
    if work.endings:
        hazard_tables.learn_from_ended_jobs(tiers=tiers, now=now)
    rented = _load_current_state(tiers, work, now)
    offer_inventory.rent_sold_offers(rented=rented, offers=offers, now=now)
    if rented.machines:
        tables = hazard_tables.build_hazard_tables(tiers=tiers, now=now)
        serverless_runs.extend_stays(rented=rented, tables=tables, now=now)
        _begin_waiting_jobs(rented, offers, tables, now)
        bookings.book_workers(rented=rented, offers=offers, tables=tables, now=now)
        bookings.book_cheaper_workers(rented=rented, offers=offers, tables=tables, now=now)
    else:
        _begin_waiting_jobs(rented, offers, None, now)
    measured = scaling.measure_pressure(rented=rented, nodes=work.nodes, now=now)
    # Algorithm 1 moves F once a minute, however often the tiers are looked at.
    tick_s = tiers.rules.tick_s
    due = tiers.ticked_at is None or (now - tiers.ticked_at).total_seconds() >= tick_s
    tiers.pressure = measured.pressure
    if due:
        tiers.threshold_s = scaling.compute_threshold(tiers=tiers, measured=measured)
        tiers.ticked_at = now
        scaling.record_sample(rented=rented, now=now)
    scaling.scale_machines(rented=rented, measured=measured, offers=offers, now=now)
    if work.shortage:
        lane_machines.rent_for_lane(rented=rented, offers=offers, now=now)
    if work.checks:
        check_machines.rent_for_checks(rented=rented, offers=offers, now=now)
    offer_inventory.list_offers(rented=rented, offers=offers, now=now)
    scaling.release_serverless(rented=rented, now=now)
    _save_changes(tiers, before)


def _begin_waiting_jobs(
    rented: TierState,
    offers: list[MachineOffer],
    tables: hazard_tables.HazardTables | None,
    now: datetime,
) -> None:
    """Begin jobs whose reserved cells are far away: on a worker, or on serverless until then."""
    waiting = serverless_runs.find_waiting_jobs(rented=rented, now=now)
    if not waiting:
        return
    if rented.tiers.starts_directly:
        direct_starts.book_direct_starts(
            rented=rented,
            waiting=waiting,
            offers=offers,
            tables=tables or hazard_tables.build_hazard_tables(tiers=rented.tiers, now=now),
            now=now,
        )
    serverless_runs.begin_stays(rented=rented, waiting=waiting, offers=offers, now=now)


def _wind_down_zone(tiers: ZoneTiers, work: TickWork, now: datetime) -> None:
    """Tiers that were switched off: what runs goes on to its end, then costs nothing more."""
    before = _read_figures(tiers)
    rented = _load_current_state(tiers, work, now)
    offer_inventory.rent_sold_offers(rented=rented, offers=(), now=now)
    offer_inventory.close_unsold_offers(rented=rented, now=now)
    _save_changes(tiers, before)
    for machine in scaling.find_idle_machines(rented, now=now):
        rented.end(machine, reason="Idle, and the zone's tiers are off.", now=now)
    scaling.release_serverless(rented=rented, now=now)


def _load_current_state(tiers: ZoneTiers, work: TickWork, now: datetime) -> TierState:
    """What is rented, once bookings and stays that came to their end are closed."""
    if work.bookings:
        handoff.close_bookings(tiers=tiers, now=now)
    rented = TierState(tiers=tiers)
    if work.machines or work.stays or work.listed:
        rented = load_tier_state(tiers=tiers, now=now)
        serverless_runs.close_stays(rented=rented, now=now)
    if work.pauses and switch_latency.record_stay_pauses(tiers=tiers, now=now):
        switch_latency.measure_pauses(tiers=tiers)
    return rented


#: What a tick changes of a zone's row.
_FIGURES = (
    *("threshold_s", "pressure", "ticked_at", "surplus"),
    *("deaths", "exposure_s", "learned_at"),
    *("checkpoint_s", "restore_s"),
)


def _read_figures(tiers: ZoneTiers) -> dict[str, object]:
    return {name: getattr(tiers, name) for name in _FIGURES}


def _save_changes(tiers: ZoneTiers, before: dict[str, object]) -> None:
    changed = [name for name in _FIGURES if getattr(tiers, name) != before[name]]
    if changed:
        tiers.save(update_fields=changed)
