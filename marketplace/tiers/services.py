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
from marketplace.fleet.services import provider_ensure
from marketplace.tiers import bookings, handover, history, locks, pauses, scaling, stays
from marketplace.tiers.machines import (
    machine_end,
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
from scheduler.tiers.rules import TierRules

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
        ``unknown_backend``, ``invalid_cap`` or ``invalid_figure``.
    """
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
        return provider_ensure(organisation=organisation, now=now)


def tiers_tick(*, now: datetime) -> None:
    """One turn of both scalers in every zone; then the backends are asked for what it decided.

    A second tick at the same time finds the zone taken and does nothing there.
    """
    machines_notice(now=now)
    for tiers in ZoneTiers.objects.select_related("zone").order_by("pk"):
        try:
            # Backends are asked, and lanes entered, outside the tick's own lock.
            offers = _offers(tiers) if tiers.is_on else []
            stays.needless_cells_release(tiers=tiers, now=now)
            if tiers.is_on:
                handover.bookings_hand_over(tiers=tiers, now=now)
            with advisory_lock("tiers.tick", tiers.zone_id, wait=False) as held:
                if held and tiers.is_on:
                    _zone_tick(locks.zone_tiers_lock(tiers.zone_id), offers, now)
                elif held:
                    _zone_wind_down(locks.zone_tiers_lock(tiers.zone_id), now)
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


def _zone_tick(tiers: ZoneTiers, offers: list[Offer], now: datetime) -> None:
    rules = TierRules(checkpoint_s=tiers.checkpoint_s, restore_s=tiers.restore_s)
    offers = offers_usable(tiers=tiers, offers=offers, now=now)
    history.ended_jobs_learn(tiers=tiers, now=now)
    handover.bookings_close(tiers=tiers, now=now)
    stays.stays_close(tiers=tiers, now=now)
    pauses.stays_pauses_note(tiers=tiers, now=now)
    tables = history.learned(tiers=tiers, now=now)
    stays.stays_extend(tiers=tiers, tables=tables, now=now)
    stays.stays_begin(tiers=tiers, offers=offers, now=now)
    bookings.bookings_make(tiers=tiers, offers=offers, tables=tables, now=now)
    bookings.moves_on_make(tiers=tiers, offers=offers, tables=tables, now=now)
    measured = scaling.gauge(tiers=tiers, rules=rules, now=now)
    # Algorithm 1 moves F once a minute, however often the tiers are looked at.
    due = tiers.ticked_at is None or (now - tiers.ticked_at).total_seconds() >= rules.tick_s
    tiers.pressure = measured.pressure
    if due:
        tiers.threshold_s = scaling.threshold_next(tiers=tiers, rules=rules, measured=measured)
        tiers.ticked_at = now
        scaling.sample_take(tiers=tiers, now=now)
    tiers.save(
        update_fields=[
            *("threshold_s", "pressure", "ticked_at", "surplus"),
            *("deaths", "exposure_s", "learned_at"),
        ]
    )
    scaling.machines_scale(tiers=tiers, rules=rules, measured=measured, offers=offers, now=now)
    scaling.serverless_release(tiers=tiers, now=now)


def _zone_wind_down(tiers: ZoneTiers, now: datetime) -> None:
    """Tiers that were switched off: what runs goes on to its end, then costs nothing more."""
    handover.bookings_close(tiers=tiers, now=now)
    stays.stays_close(tiers=tiers, now=now)
    pauses.stays_pauses_note(tiers=tiers, now=now)
    tiers.save(update_fields=["surplus"])
    for machine in scaling.idle_machines(tiers, now=now):
        machine_end(machine=machine, reason="Idle, and the zone's tiers are off.", now=now)
    scaling.serverless_release(tiers=tiers, now=now)
