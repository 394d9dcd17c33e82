"""The kinds of vendor, a module each behind one protocol."""

from __future__ import annotations

from collections.abc import Mapping

from marketplace.vendors.kinds.automatic import AutomaticWork
from marketplace.vendors.kinds.outside import OutsideWork
from marketplace.vendors.kinds.people import PeoplesWork
from marketplace.vendors.kinds.protocol import VendorWork
from marketplace.vendors.models import Vendor, VendorKind

WORK: Mapping[str, VendorWork] = {
    VendorKind.AUTOMATIC: AutomaticWork(),
    VendorKind.HUMAN: PeoplesWork(),
    VendorKind.OUTSIDE: OutsideWork(),
}


def get_work(vendor: Vendor) -> VendorWork:
    """How a vendor's kind works."""
    return WORK[vendor.kind]
