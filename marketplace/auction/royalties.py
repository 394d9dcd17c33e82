"""What a donor's owner gets of a price: fixed before the bid, and to the engine a vendor's fee.

So the price of a warm start is that of its work and the royalty, whatever is bid. It is never above
the price without the warm start: what would be is returned when the job ends.
"""

from __future__ import annotations

from marketplace.jobs.starts import Start
from scheduler.types import LaborVendor

#: Names the fee in the log; nothing tells whose adapter it is for.
ROYALTY = "royalty"


def list_royalties(start: Start) -> tuple[LaborVendor, ...]:
    """The fee of a start's donor; empty where there is none."""
    if not start.royalty_micros:
        return ()
    return (LaborVendor(ROYALTY, float(start.royalty_micros), 0),)
