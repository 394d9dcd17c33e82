"""What labour vendors can do in a slot, and what they have been given to do.

A vendor's work on a task takes ``load`` of its capacity in each slot of its delay, in one run of
slots: the first run, from the slot of the decision on, that has room for it. The paper's vendors
have no limit and begin at once (constraint 4c); offers without a load do so here too.
"""

from __future__ import annotations

from typing import NamedTuple

from scheduler.types import LaborVendor


class VendorHold(NamedTuple):
    """One vendor's work on one task."""

    vendor: str
    #: First slot of the work.
    begin: int
    #: First slot that training may use.
    ready: int
    #: Of the vendor's capacity, in each slot.
    load: int


class VendorBook:
    """Capacity and work of the vendors of one zone; whole numbers, so that sums are exact."""

    def __init__(self) -> None:
        #: Units of work in a slot; a vendor that is not named has no room.
        self.capacity: dict[str, int] = {}
        #: Work that has not ended, by task, in order of admission.
        self.holds: dict[str, VendorHold] = {}
        #: Units given out, by vendor and slot.
        self.used: dict[str, dict[int, int]] = {}

    def copy(self) -> VendorBook:
        """Give a book that can be changed apart from this one."""
        other = VendorBook()
        other.capacity, other.holds = dict(self.capacity), dict(self.holds)
        other.used = {vendor: dict(slots) for vendor, slots in self.used.items()}
        return other

    def find_ready(self, offer: LaborVendor, *, begin: int, last: int) -> int | None:
        """Find the first slot that training may use if a vendor gets the work.

        Parameters
        ----------
        offer : LaborVendor
        begin : int
            First slot in which the vendor may work.
        last : int
            Last slot on sale.

        Returns
        -------
        int or None
            ``None`` when the work does not end before ``last`` does.
        """
        delay = max(offer.delay_slots, 0)
        if begin + delay > last:
            return None
        capacity = self.capacity.get(offer.id, 0)
        used = self.used.get(offer.id, {})
        start = slot = begin
        while slot < start + delay:
            if used.get(slot, 0) + offer.load > capacity:
                start = slot + 1
                if start + delay > last:
                    return None
            slot += 1
        return start + delay

    def find_end(self, task_id: str) -> int | None:
        """Give the first slot that a task's training may use; ``None`` without a vendor at work."""
        hold = self.holds.get(task_id)
        return None if hold is None else hold.ready

    def reserve(self, task_id: str, offer: LaborVendor, *, ready: int) -> None:
        """Give a vendor the work that is done before a slot."""
        begin = ready - max(offer.delay_slots, 0)
        self.holds[task_id] = VendorHold(offer.id, begin, ready, offer.load)
        slots = self.used.setdefault(offer.id, {})
        for slot in range(begin, ready):
            slots[slot] = slots.get(slot, 0) + offer.load

    def end(self, task_id: str, *, slot: int) -> VendorHold | None:
        """End a vendor's work on a task: from a slot on, its capacity is free."""
        hold = self.holds.pop(task_id, None)
        if hold is not None:
            slots = self.used[hold.vendor]
            for at in [at for at in slots if max(slot, hold.begin) <= at < hold.ready]:
                slots[at] -= hold.load
        return hold

    def advance(self, slot: int) -> None:
        """Forget what ended before a slot."""
        for task_id in [task for task, hold in self.holds.items() if hold.ready <= slot]:
            del self.holds[task_id]
        for vendor, slots in self.used.items():
            self.used[vendor] = {at: units for at, units in slots.items() if at >= slot}
