"""What owners do: give and take back their keys, and ask for a job's runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from django.conf import settings
from django.db import transaction

from marketplace.accounts.models import Organisation, User
from marketplace.common.durable.services import NewWork, enqueue_work
from marketplace.common.encryption import encrypt_text
from marketplace.common.errors import Conflict, UserError
from marketplace.common.outbound import FetchFailed, check_address
from marketplace.tracking.models import TrackedRun, TrackingKey, TrackingService
from marketplace.tracking.sending import SEND
from marketplace.tracking.trackers import TRACKERS

#: A run's address is longer, and is stored too.
ADDRESS_CHARS = 300


def set_tracking_key(
    *,
    organisation: Organisation,
    service: TrackingService,
    key: str,
    address: str = "",
    set_by: User,
    now: datetime,
) -> None:
    """Store the key of a service, in place of an earlier one. Runs that still send use it from now.

    Raises
    ------
    UserError
        ``invalid_key``: it cannot be a key; ``invalid_url``: nothing is sent to such an address.
        Whether they are right shows when the first run is sent.
    Conflict
        ``tracking_not_installed``.
    """
    tracker = TRACKERS[service]
    if not tracker.is_installed():
        raise Conflict(
            "tracking_not_installed",
            f"This market cannot send to {service.label}. Its operator has to install the market "
            'with the extra "tracking".',
        )
    key, address = key.strip(), address.strip()
    if re.fullmatch(tracker.key_pattern, key) is None:
        raise UserError("invalid_key", tracker.key_hint, param="key")
    if tracker.has_address:
        _check_server(address)
    TrackingKey.objects.update_or_create(
        organisation=organisation,
        service=service,
        defaults={
            "key": encrypt_text(key) if key else "",
            "address": address if tracker.has_address else "",
            "set_by": set_by,
            "set_at": now,
        },
    )


def _check_server(address: str) -> None:
    try:
        parts = check_address(address, allows_private=settings.TRACKING_PRIVATE)
    except FetchFailed as error:
        raise UserError("invalid_url", f"{error}.", param="address") from None
    is_plain = len(address) <= ADDRESS_CHARS and address.isascii() and address.isprintable()
    if not is_plain or parts.query or parts.fragment or " " in address:
        raise UserError(
            "invalid_url",
            f"Give the address of the server as https://host/path, in {ADDRESS_CHARS} plain "
            "characters at most.",
            param="address",
        )


def remove_tracking_key(*, organisation: Organisation, service: TrackingService) -> None:
    """Forget the key. Runs that are not sent whole end where they are."""
    TrackingKey.objects.filter(organisation=organisation, service=service).delete()


def find_tracking_key(organisation: Organisation, service: TrackingService) -> TrackingKey | None:
    stored = TrackingKey.objects.filter(organisation=organisation, service=service)
    return stored.select_related("set_by").first()


def track_bid(
    *,
    bid_id: str,
    organisation_id: str,
    service: TrackingService,
    project: str,
    entity: str = "",
    name: str = "",
    tags: Sequence[str] = (),
    now: datetime,
) -> bool:
    """Have what is measured of the bid's job sent to a service; whether there is a key for it.

    Twice is once. A bid that is refused has no job, so nothing is sent.
    """
    keys = TrackingKey.objects.filter(organisation=organisation_id, service=service)
    if not TRACKERS[service].is_installed() or not keys.exists():
        return False
    with transaction.atomic():
        run, is_new = TrackedRun.objects.get_or_create(
            bid_id=bid_id,
            service=service,
            defaults={
                "organisation_id": organisation_id,
                "project": project,
                "entity": entity,
                "name": name,
                "tags": list(tags),
                "created_at": now,
            },
        )
        if is_new:
            enqueue_work(NewWork(SEND, run.pk, due_at=now, owner=organisation_id))
    return True


def list_bid_runs(bid_id: str) -> list[TrackedRun]:
    return list(TrackedRun.objects.filter(bid_id=bid_id).order_by("service"))


def list_tracked_runs(organisation: Organisation, *, limit: int) -> list[TrackedRun]:
    """The latest, those without a job left out by having no address and no reason."""
    runs = TrackedRun.objects.filter(organisation=organisation)
    return list(runs.exclude(url="", reason="").order_by("-created_at")[:limit])
