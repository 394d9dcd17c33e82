"""The royalty of a donor's owner: fixed before the bid, and passed to the engine as a vendor's fee.

So a warm start costs its work and the royalty; the bid does not enter. It never costs more than
the cold job: the excess is returned when the job ends.
"""

from __future__ import annotations

from scheduler.types import LaborVendor
from workers.protocol.starts import Start

#: Names the fee in the log; the donor's owner cannot be read from it.
ROYALTY = "royalty"


def list_royalties(start: Start) -> tuple[LaborVendor, ...]:
    """The fee of a start's donor; empty where there is none."""
    if not start.royalty_micros:
        return ()
    return (LaborVendor(ROYALTY, float(start.royalty_micros), 0),)
