"""What owners do: give and take back their key, and ask for a job's run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from importlib.util import find_spec

from django.db import transaction

from marketplace.accounts.models import Organisation, User
from marketplace.common.durable.services import NewWork, enqueue_work
from marketplace.common.encryption import encrypt_text
from marketplace.common.errors import Conflict, UserError
from marketplace.tracking.models import TrackedRun, TrackingKey
from marketplace.tracking.sending import SEND

#: Letters and digits, with an instance's own prefix before a dash.
KEY_PATTERN = r"[\x21-\x7e]{20,200}"


def is_installed() -> bool:
    """Whether this market has the client that sends."""
    return find_spec("wandb") is not None


def set_tracking_key(*, organisation: Organisation, key: str, set_by: User, now: datetime) -> None:
    """Store the key, in place of an earlier one. Runs that still send use it from now on.

    Raises
    ------
    UserError
        ``invalid_key``: it cannot be a key. Whether it is one shows when the first run is sent.
    Conflict
        ``tracking_not_installed``.
    """
    if not is_installed():
        raise Conflict(
            "tracking_not_installed",
            "This market cannot send to Weights & Biases. Its operator has to install the market "
            'with the extra "tracking".',
        )
    key = key.strip()
    if re.fullmatch(KEY_PATTERN, key) is None:
        raise UserError(
            "invalid_key",
            "A key of Weights & Biases has 20 characters or more and no spaces. Copy it from "
            "your settings there.",
            param="key",
        )
    TrackingKey.objects.update_or_create(
        organisation=organisation,
        defaults={"key": encrypt_text(key), "set_by": set_by, "set_at": now},
    )


def remove_tracking_key(*, organisation: Organisation) -> None:
    """Forget the key. Runs that are not sent whole end where they are."""
    TrackingKey.objects.filter(organisation=organisation).delete()


def find_tracking_key(organisation: Organisation) -> TrackingKey | None:
    return TrackingKey.objects.filter(organisation=organisation).select_related("set_by").first()


def track_bid(
    *,
    bid_id: str,
    organisation_id: str,
    project: str,
    entity: str = "",
    name: str = "",
    tags: Sequence[str] = (),
    now: datetime,
) -> bool:
    """Have what is measured of the bid's job sent; whether there is a key for it.

    Twice is once. A bid that is refused has no job, so nothing is sent.
    """
    if not is_installed() or not TrackingKey.objects.filter(organisation=organisation_id).exists():
        return False
    with transaction.atomic():
        _, is_new = TrackedRun.objects.get_or_create(
            bid_id=bid_id,
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
            enqueue_work(NewWork(SEND, bid_id, due_at=now, owner=organisation_id))
    return True


def find_tracked_run(bid_id: str) -> TrackedRun | None:
    return TrackedRun.objects.filter(bid_id=bid_id).first()


def list_tracked_runs(organisation: Organisation, *, limit: int) -> list[TrackedRun]:
    """The latest, those without a job left out by having no address and no reason."""
    runs = TrackedRun.objects.filter(organisation=organisation)
    return list(runs.exclude(url="", reason="").order_by("-created_at")[:limit])
