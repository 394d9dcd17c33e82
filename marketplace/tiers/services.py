"""What the tiers do: a tick for every zone that has them, and the operator's switch."""

from __future__ import annotations

import logging
import math
from datetime import datetime

from django.db import transaction

from marketplace.accounts.models import User
from marketplace.accounts.services import organisation_create
from marketplace.common.errors import UserError
from marketplace.common.locks import advisory_lock
from marketplace.fleet.models import Provider, Zone
from marketplace.fleet.providers import approved_check
from marketplace.fleet.services import provider_approve, provider_ensure
from marketplace.tiers import bookings, handover, history, locks, pauses, scaling, stays
from marketplace.tiers.agenda import Agenda, agenda_of
from marketplace.tiers.machines import (
    machines_give_back,
    machines_launch,
    machines_notice,
    machines_reconcile,
    offers_usable,
)
from marketplace.tiers.models import ZoneTiers
from marketplace.tiers.provisioning import (
    BACKENDS,
    ON_THIS_MACHINE,
    BackendFault,
    Offer,
    backend_named,
)
from marketplace.tiers.rented import Rented, rented_now

log = logging.getLogger(__name__)

__all__ = [
    "house_provider_ensure",
    "machines_give_back",
    "machines_reconcile",
    "tiers_tick",
    "zone_tiers_set",
]

#: Name of the organisation that lists the house's machines.
HOUSE = "House machines"


def zone_tiers_set(
    *,
    zone: Zone,
    provider: Provider,
    serverless_cap: int,
    serverful_cap: int,
    backend: str = ON_THIS_MACHINE,
    serverless_backend: str | None = None,
    is_on: bool = True,
    figures: dict[str, float] | None = None,
) -> ZoneTiers:
    """Let the house run its own machines in a zone, up to these counts; 0 for none.

    Serverless machines come from the same backend unless another is named.

    Parameters
    ----------
    figures
        What else to set, by field: pauses and times in seconds, dollars an hour of delay.

    Raises
    ------
    UserError
        ``unknown_backend``, ``invalid_cap``, ``invalid_figure`` or ``provider_not_approved``.
    """
    approved_check(provider)
    serverless_backend = serverless_backend or backend
    for named in (backend, serverless_backend):
        if named not in BACKENDS:
            raise UserError(
                "unknown_backend",
                f"There is no backend {named!r}; choose {', '.join(sorted(BACKENDS))}.",
                param="backend",
            )
    if min(serverless_cap, serverful_cap) < 0:
        raise UserError("invalid_cap", "A number of machines is 0 or more.", param="cap")
    for name, value in (figures or {}).items():
        if not 0 <= value < math.inf:
            raise UserError("invalid_figure", f"{name} must be 0 or more.", param=name)
    tiers, _ = ZoneTiers.objects.update_or_create(
        zone=zone,
        defaults={
            "provider": provider,
            "backend": backend,
            "serverless_backend": serverless_backend,
            "serverless_cap": serverless_cap,
            "serverful_cap": serverful_cap,
            "is_on": is_on,
        }
        | (figures or {}),
    )
    return tiers


def house_provider_ensure(*, now: datetime) -> Provider:
    """The house as a provider: an organisation of its own, made on first use.

    Raises
    ------
    UserError
        ``no_operator``: there is nobody yet to own it.
    """
    found = Provider.objects.filter(organisation__name=HOUSE).order_by("created_at").first()
    if found is not None:
        return found
    operator = User.objects.filter(is_operator=True, is_active=True).order_by("pk").first()
    if operator is None:
        raise UserError("no_operator", "Make an operator first, or name a provider.")
    with transaction.atomic():
        organisation = organisation_create(name=HOUSE, created_by=operator, now=now)
        provider = provider_ensure(organisation=organisation, now=now)
        return provider_approve(provider=provider, approved_by=operator, now=now)


def tiers_tick(*, now: datetime) -> None:
    """One turn of both scalers in every zone; then the backends are asked for what it decided.

    A second tick at the same time finds the zone taken and does nothing there.
    """
    machines_notice(now=now)
    for tiers in ZoneTiers.objects.select_related("zone").order_by("pk"):
        try:
            # Backends are asked, and lanes entered, outside the tick's own lock.
            offers = _offers(tiers) if tiers.is_on else []
            agenda = agenda_of(tiers=tiers, now=now)
            if agenda.releases:
                stays.needless_cells_release(tiers=tiers, now=now)
            if agenda.bookings and tiers.is_on:
                handover.bookings_hand_over(tiers=tiers, now=now)
            with advisory_lock("tiers.tick", tiers.zone_id, wait=False) as held:
                if held:
                    locked = locks.zone_tiers_lock(tiers.zone_id)
                    # Another tick may have rented meanwhile: only what is seen from here on
                    # can be counted against the caps.
                    agenda = agenda_of(tiers=locked, now=now)
                    if tiers.is_on:
                        _zone_tick(locked, agenda, offers, now)
                    else:
                        _zone_wind_down(locked, agenda, now)
        except Exception:
            # A zone that is broken must not stop the others.
            log.exception("tiers of zone %s could not be ticked", tiers.zone_id)
    machines_launch(now=now)


def _offers(tiers: ZoneTiers) -> list[Offer]:
    """What can be rented now for either tier; a backend that is away offers nothing."""
    found: list[Offer] = []
    for name in sorted({tiers.backend, tiers.serverless_backend}):
        try:
            offered = backend_named(name).offers()
        except BackendFault as fault:
            # Jobs that already run, and machines to be ended, must not wait for it.
            log.warning("backend %s offers nothing: %s", name, fault)
            continue
        found += [offer for offer in offered if tiers.backend_of(offer.tier) == name]
    return found


def _zone_tick(tiers: ZoneTiers, agenda: Agenda, offers: list[Offer], now: datetime) -> None:
    before = _figures(tiers)
    if agenda.failures:
        offers = offers_usable(tiers=tiers, offers=offers, now=now)
    if agenda.endings:
        history.ended_jobs_learn(tiers=tiers, now=now)
    rented = _looked_over(tiers, agenda, now)
    if rented.machines:
        tables = history.learned(tiers=tiers, now=now)
        stays.stays_extend(rented=rented, tables=tables, now=now)
        stays.stays_begin(rented=rented, offers=offers, now=now)
        bookings.bookings_make(rented=rented, offers=offers, tables=tables, now=now)
        bookings.moves_on_make(rented=rented, offers=offers, tables=tables, now=now)
    else:
        stays.stays_begin(rented=rented, offers=offers, now=now)
    measured = scaling.gauge(rented=rented, nodes=agenda.nodes, now=now)
    # Algorithm 1 moves F once a minute, however often the tiers are looked at.
    tick_s = tiers.rules.tick_s
    due = tiers.ticked_at is None or (now - tiers.ticked_at).total_seconds() >= tick_s
    tiers.pressure = measured.pressure
    if due:
        tiers.threshold_s = scaling.threshold_next(tiers=tiers, measured=measured)
        tiers.ticked_at = now
        scaling.sample_take(rented=rented, now=now)
    scaling.machines_scale(rented=rented, measured=measured, offers=offers, now=now)
    scaling.serverless_release(rented=rented, now=now)
    _changed_save(tiers, before)


def _zone_wind_down(tiers: ZoneTiers, agenda: Agenda, now: datetime) -> None:
    """Tiers that were switched off: what runs goes on to its end, then costs nothing more."""
    before = _figures(tiers)
    rented = _looked_over(tiers, agenda, now)
    _changed_save(tiers, before)
    for machine in scaling.idle_machines(rented, now=now):
        rented.end(machine, reason="Idle, and the zone's tiers are off.", now=now)
    scaling.serverless_release(rented=rented, now=now)


def _looked_over(tiers: ZoneTiers, agenda: Agenda, now: datetime) -> Rented:
    """What is rented, once bookings and stays that came to their end are closed."""
    if agenda.bookings:
        handover.bookings_close(tiers=tiers, now=now)
    rented = Rented(tiers=tiers)
    if agenda.machines or agenda.stays:
        rented = rented_now(tiers=tiers, now=now)
        stays.stays_close(rented=rented, now=now)
    if agenda.pauses:
        pauses.stays_pauses_note(tiers=tiers, now=now)
    return rented


#: What a tick changes of a zone's row.
_FIGURES = (
    *("threshold_s", "pressure", "ticked_at", "surplus"),
    *("deaths", "exposure_s", "learned_at"),
)


def _figures(tiers: ZoneTiers) -> dict[str, object]:
    return {name: getattr(tiers, name) for name in _FIGURES}


def _changed_save(tiers: ZoneTiers, before: dict[str, object]) -> None:
    changed = [name for name in _FIGURES if getattr(tiers, name) != before[name]]
    if changed:
        tiers.save(update_fields=changed)
