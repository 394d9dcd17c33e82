"""How an organisation lists itself as a vendor, and what an operator says to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.conf import settings
from django.db import transaction

from marketplace.accounts.models import Organisation, User
from marketplace.accounts.policy import Right, check_right
from marketplace.common.errors import NotAllowed, UserError
from marketplace.common.outbound import FetchFailed, check_address
from marketplace.fleet.models import Zone
from marketplace.vendors.availability import HOURS_A_DAY, Availability
from marketplace.vendors.locks import lock_vendor
from marketplace.vendors.models import Listing, Vendor, VendorKind
from marketplace.vendors.quoting import QuoteFunction
from marketplace.vendors.signatures import create_secret
from marketplace.vendors.skills import Skill

NAME_CHARS_MAX = 64
ENDPOINT_CHARS_MAX = 300
#: Amounts and times above these are typing errors.
MICROS_MAX = 10**12
SECONDS_MAX = 10**8
ROWS_PER_SLOT_MAX = 10**8
VENDORS_MAX = 20
#: So that a delay that cannot be kept is not quoted for nothing.
LATE_PERCENT_MIN = 20


@dataclass(frozen=True, slots=True)
class VendorTerms:
    """What a vendor says of itself."""

    name: str
    kind: VendorKind
    skills: Sequence[str]
    quotes: QuoteFunction
    rows_per_slot: Mapping[Zone, int]
    availability: Availability = field(default_factory=Availability)
    late_percent: int = 0
    endpoint: str = ""


def list_vendor(
    *,
    organisation: Organisation,
    listed_by: User,
    terms: VendorTerms,
    vendor: Vendor | None = None,
    now: datetime,
) -> Vendor:
    """List an organisation as a vendor, or change the terms of one of its vendors.

    A change of who gets to see data, or where they go, needs another approval.

    Raises
    ------
    NotAllowed
        ``owners_only``.
    UserError
        ``invalid_vendor``, with the field at fault.
    """
    check_right(organisation=organisation, user=listed_by, right=Right.OWN)
    if not terms.kind.is_listed_by_all:
        raise _invalid("kind", "Only this market's own program is an automatic vendor.")
    check_terms(terms)
    if terms.late_percent < LATE_PERCENT_MIN:
        raise _invalid(
            "late_percent",
            f"A late delivery costs a vendor at least {LATE_PERCENT_MIN} percent of its price.",
        )
    with transaction.atomic():
        if vendor is None:
            if Vendor.objects.filter(organisation=organisation).count() >= VENDORS_MAX:
                raise _invalid("name", f"An organisation lists at most {VENDORS_MAX} vendors.")
            _check_name_is_free(organisation, terms.name)
            return register_vendor(organisation=organisation, terms=terms, now=now)
        held = lock_vendor(vendor.pk)
        if held.name != terms.name:
            _check_name_is_free(organisation, terms.name)
        if (held.kind, held.endpoint) != (terms.kind, terms.endpoint):
            held.approved_at = held.approved_by = None
        _set_terms(held, terms)
        held.save()
        _set_listings(held, terms)
    return held


def _check_name_is_free(organisation: Organisation, name: str) -> None:
    if Vendor.objects.filter(organisation=organisation, name=name).exists():
        raise _invalid("name", f"{organisation.name} lists a vendor of this name already.")


def register_vendor(*, organisation: Organisation, terms: VendorTerms, now: datetime) -> Vendor:
    """Store a vendor, or its new terms; it gets work once an operator approves it."""
    with transaction.atomic():
        found = Vendor.objects.filter(organisation=organisation, name=terms.name).first()
        vendor = found or Vendor(organisation=organisation, created_at=now)
        _set_terms(vendor, terms)
        vendor.save()
        _set_listings(vendor, terms)
    return vendor


def _set_terms(vendor: Vendor, terms: VendorTerms) -> None:
    vendor.name, vendor.kind, vendor.skills = terms.name, terms.kind, list(terms.skills)
    vendor.minimum_micros = terms.quotes.minimum_micros
    vendor.micros_per_1000_rows = terms.quotes.micros_per_1000_rows
    vendor.micros_per_1000_tokens = terms.quotes.micros_per_1000_tokens
    vendor.base_s, vendor.s_per_1000_rows = terms.quotes.base_s, terms.quotes.s_per_1000_rows
    vendor.valid_until = terms.quotes.valid_until
    vendor.days = sorted(set(terms.availability.days))
    vendor.from_hour, vendor.to_hour = terms.availability.from_hour, terms.availability.to_hour
    vendor.late_percent, vendor.endpoint = terms.late_percent, terms.endpoint
    if (vendor.endpoint or vendor.facts.has_secret) and not vendor.endpoint_secret:
        vendor.endpoint_secret = create_secret()


def _set_listings(vendor: Vendor, terms: VendorTerms) -> None:
    for zone, rows in terms.rows_per_slot.items():
        Listing.objects.update_or_create(vendor=vendor, zone=zone, defaults={"rows_per_slot": rows})


def check_terms(terms: VendorTerms) -> None:
    """Refuse terms that no vendor can mean.

    Raises
    ------
    UserError
        ``invalid_vendor``.
    """
    if not 1 <= len(terms.name) <= NAME_CHARS_MAX or not terms.name.isprintable():
        raise _invalid("name", f"Give a name of 1 to {NAME_CHARS_MAX} letters.")
    if not terms.skills or any(skill not in Skill.values for skill in terms.skills):
        raise _invalid("skills", "Choose at least one skill of the list.")
    quotes = terms.quotes
    amounts = (quotes.minimum_micros, quotes.micros_per_1000_rows, quotes.micros_per_1000_tokens)
    if any(not 0 <= amount <= MICROS_MAX for amount in amounts):
        raise _invalid("minimum", "Prices are 0 to a million dollars.")
    if any(not 0 <= seconds <= SECONDS_MAX for seconds in (quotes.base_s, quotes.s_per_1000_rows)):
        raise _invalid("base_s", f"Times are 0 to {SECONDS_MAX:,} seconds.")
    if any(not 0 <= rows <= ROWS_PER_SLOT_MAX for rows in terms.rows_per_slot.values()):
        raise _invalid("rows_per_slot", f"Rows of a slot are 0 to {ROWS_PER_SLOT_MAX:,}.")
    hours = terms.availability
    if not 0 <= hours.from_hour < hours.to_hour <= HOURS_A_DAY:
        raise _invalid("to_hour", "The working hours end after they begin, from 0 to 24.")
    if any(day not in range(7) for day in hours.days):
        raise _invalid("days", "Days are 0, Monday, to 6, Sunday.")
    if not 0 <= terms.late_percent <= 100:
        raise _invalid("late_percent", "What a late delivery costs is 0 to 100 percent.")
    if terms.endpoint:
        _check_endpoint(terms.endpoint)


def _check_endpoint(url: str) -> None:
    if len(url) > ENDPOINT_CHARS_MAX:
        raise _invalid("endpoint", f"An address has at most {ENDPOINT_CHARS_MAX} signs.")
    try:
        check_address(url, allows_private=settings.VENDOR_ENDPOINTS_PRIVATE)
    except FetchFailed as error:
        raise _invalid("endpoint", f"{str(error)[:200]}.") from error


def renew_secret(*, vendor: Vendor, renewed_by: User) -> Vendor:
    """Sign messages with another secret from now on.

    Raises
    ------
    NotAllowed
        ``owners_only``.
    """
    check_right(organisation=vendor.organisation, user=renewed_by, right=Right.OWN)
    with transaction.atomic():
        vendor = lock_vendor(vendor.pk)
        vendor.endpoint_secret = create_secret()
        vendor.save(update_fields=["endpoint_secret"])
    return vendor


def approve_vendor(*, vendor: Vendor, approved_by: User | None, now: datetime) -> Vendor:
    """Let a vendor get work; twice changes nothing. ``None``: the market approves its own.

    Raises
    ------
    NotAllowed
        ``operators_only``.
    """
    if approved_by is not None:
        _check_operator(approved_by)
    with transaction.atomic():
        vendor = lock_vendor(vendor.pk)
        if vendor.approved_at is None:
            vendor.approved_at, vendor.approved_by = now, approved_by
            vendor.save(update_fields=["approved_at", "approved_by"])
    return vendor


def pause_vendor(*, vendor: Vendor, paused_by: User, now: datetime) -> Vendor:
    """Give a vendor no new work; what it has goes on. Twice changes nothing.

    An operator's pause is a suspension, which its owner cannot lift.

    Raises
    ------
    NotAllowed
        Neither an operator nor an owner of the vendor: ``owners_only``.
    """
    if not paused_by.is_operator:
        check_right(organisation=vendor.organisation, user=paused_by, right=Right.OWN)
    with transaction.atomic():
        vendor = lock_vendor(vendor.pk)
        vendor.paused_at = vendor.paused_at or now
        vendor.is_suspended = vendor.is_suspended or paused_by.is_operator
        vendor.save(update_fields=["paused_at", "is_suspended"])
    return vendor


def resume_vendor(*, vendor: Vendor, resumed_by: User) -> Vendor:
    """Let a paused vendor get work again.

    Raises
    ------
    NotAllowed
        ``owners_only``, or ``operators_only`` for one that an operator suspended.
    """
    if not resumed_by.is_operator:
        check_right(organisation=vendor.organisation, user=resumed_by, right=Right.OWN)
    with transaction.atomic():
        vendor = lock_vendor(vendor.pk)
        if vendor.is_suspended:
            _check_operator(resumed_by)
        vendor.paused_at, vendor.is_suspended = None, False
        vendor.save(update_fields=["paused_at", "is_suspended"])
    return vendor


def _check_operator(user: User) -> None:
    if not user.is_operator:
        raise NotAllowed("operators_only", "Only an operator approves and suspends vendors.")


def _invalid(field_name: str, message: str) -> UserError:
    return UserError("invalid_vendor", message, param=field_name)
