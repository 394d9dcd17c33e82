"""The market's own automatic vendor: the program of ``workers.preparation`` on its CPUs."""

from __future__ import annotations

from datetime import datetime

from marketplace.accounts.models import Organisation
from marketplace.fleet.models import Zone
from marketplace.vendors.listing import VendorTerms, approve_vendor, register_vendor
from marketplace.vendors.models import Vendor, VendorKind
from marketplace.vendors.quoting import QuoteFunction
from marketplace.vendors.skills import Skill

AUTOMATIC_NAME = "Tidy"
SKILLS = (
    Skill.FORMAT_REPAIR,
    Skill.DEDUPLICATION,
    Skill.MASKING,
    Skill.LANGUAGE_FILTER,
    Skill.LENGTH_FILTER,
    Skill.SPLITTING,
)
#: A cent for every 10,000 rows, a tenth of a cent at least.
QUOTES = QuoteFunction(
    minimum_micros=1_000,
    micros_per_1000_rows=1_000,
    micros_per_1000_tokens=0,
    # Two processes start, and a worker may be busy; a thousand rows take half a second.
    base_s=30,
    s_per_1000_rows=2,
)
#: Rows a second, all data sets together, that the market's workers are relied on for.
ROWS_PER_S = 200


def ensure_automatic_vendor(
    *, organisation: Organisation, zones: list[Zone], now: datetime
) -> Vendor:
    """List the automatic vendor in zones, approved; again, its terms are put in place."""
    terms = VendorTerms(
        name=AUTOMATIC_NAME,
        kind=VendorKind.AUTOMATIC,
        skills=[skill.value for skill in SKILLS],
        quotes=QUOTES,
        rows_per_slot={zone: ROWS_PER_S * zone.slot_s for zone in zones},
    )
    vendor = register_vendor(organisation=organisation, terms=terms, now=now)
    return approve_vendor(vendor=vendor, approved_by=None, now=now)
