"""Who saw an owner's data: written down when it happens, and shown to the owner."""

from __future__ import annotations

from datetime import datetime

from marketplace.accounts.models import WORKERS, Membership, User
from marketplace.vendors.models import DataAccess, Preparation, Vendor
from marketplace.vendors.wishes import parse_wish


def is_of_vendor(user: User, vendor: Vendor) -> bool:
    """Whether a person works in a vendor's organisation; who only looks or pays sees no data."""
    mine = Membership.objects.filter(user=user, organisation_id=vendor.organisation_id)
    return mine.filter(role__in=WORKERS).exists()


def has_trust(vendor: Vendor) -> bool:
    """Whether an operator lets a vendor see data."""
    return vendor.approved_at is not None and not vendor.is_suspended


def note_access(
    *,
    preparation: Preparation,
    kind: DataAccess.Kind,
    person: User | None,
    now: datetime,
    address: str = "",
) -> None:
    """Note that a vendor sees the data, and when it saw them first."""
    DataAccess.objects.create(
        preparation=preparation,
        vendor_id=preparation.vendor_id,
        kind=kind,
        person=person,
        address=address[:64],
        is_masked=parse_wish(preparation.wish).mask_personal_data,
        at=now,
    )
    if kind != DataAccess.Kind.LINK:
        Preparation.objects.filter(pk=preparation.pk, begun_at__isnull=True).update(begun_at=now)


def note_first_look(preparation: Preparation, user: User, *, now: datetime) -> None:
    """Note for the owner that a person saw rows; once for each person."""
    seen = DataAccess.objects.filter(
        preparation=preparation, person=user, kind=DataAccess.Kind.ROWS
    )
    if not seen.exists():
        note_access(preparation=preparation, kind=DataAccess.Kind.ROWS, person=user, now=now)
