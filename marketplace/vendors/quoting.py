"""What a vendor asks for a data set: free functions of its stored quote function."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from marketplace.vendors.availability import Availability, compute_elapsed_s

#: Most slots that a vendor may take; one that needs more is no offer.
DELAY_SLOTS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class QuoteFunction:
    """A vendor's price and delay by size. Amounts are micro-dollars."""

    minimum_micros: int
    micros_per_1000_rows: int
    micros_per_1000_tokens: int
    #: Seconds of work for any size, and more for each thousand rows.
    base_s: int
    s_per_1000_rows: int
    valid_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class DataSize:
    """What a quote is made from: the data as they are, before any preparation."""

    rows: int
    tokens: int


@dataclass(frozen=True, slots=True)
class VendorOffer:
    """A vendor's quote for one data set, in the slots of one zone."""

    vendor_id: str
    price_micros: int
    delay_slots: int
    #: Rows in each of these slots, of the vendor's capacity.
    load: int

    def to_json(self) -> list[str | int]:
        """Give it as it is stored with a bid."""
        return [self.vendor_id, self.price_micros, self.delay_slots, self.load]


def compute_price(function: QuoteFunction, size: DataSize) -> int:
    """What the vendor asks, in whole micro-dollars, rounded up."""
    by_size = (
        size.rows * function.micros_per_1000_rows + size.tokens * function.micros_per_1000_tokens
    )
    return max(function.minimum_micros, -(-by_size // 1000))


@dataclass(frozen=True, slots=True)
class VendorTime:
    """What a vendor's seconds of work become in a zone's slots."""

    slot_s: int
    rows_per_slot: int
    availability: Availability = field(default_factory=Availability)
    #: Slots that the owner has to look at a delivery, after the work.
    review_slots: int = 0


def make_offer(
    function: QuoteFunction,
    size: DataSize,
    *,
    vendor_id: str,
    time: VendorTime,
    now: datetime,
) -> VendorOffer | None:
    """The vendor's offer; ``None`` when its function holds no longer or the data are too many.

    Work that is more in a slot than the vendor can do is spread over more slots.
    """
    if function.valid_until is not None and function.valid_until <= now:
        return None
    return build_offer(
        size,
        vendor_id=vendor_id,
        price_micros=compute_price(function, size),
        work_s=compute_work_s(function, size),
        time=time,
        now=now,
    )


def compute_work_s(function: QuoteFunction, size: DataSize) -> int:
    """Seconds of work by the stored function."""
    return function.base_s + -(-size.rows * function.s_per_1000_rows // 1000)


def build_offer(
    size: DataSize,
    *,
    vendor_id: str,
    price_micros: int,
    work_s: int,
    time: VendorTime,
    now: datetime,
) -> VendorOffer | None:
    """Give an offer for a number of seconds of work; ``None`` where the data are too many."""
    slot_s = time.slot_s
    if time.rows_per_slot < 1 or size.rows < 1 or work_s > DELAY_SLOTS_MAX * slot_s:
        return None
    elapsed_s = compute_elapsed_s(time.availability, work_s, now=now)
    work_slots = max(1, -(-elapsed_s // slot_s), -(-size.rows // time.rows_per_slot))
    delay_slots = work_slots + time.review_slots
    if delay_slots > DELAY_SLOTS_MAX:
        return None
    return VendorOffer(
        vendor_id=vendor_id,
        price_micros=price_micros,
        delay_slots=delay_slots,
        load=-(-size.rows // work_slots),
    )
