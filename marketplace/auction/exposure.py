"""What the market bears in a day for one organisation, whatever for.

An owner, a provider and a vendor who work together could be paid for failures of their own making:
for the pay of others where a node failed a job, for credits, for what a warm start takes beyond the
work sold, for what a next vendor asks more, and for cells that small data spare as they are to
begin. All that is borne for one of them in a day comes to
``HOUSE_BEARS_USD_PER_DAY`` at most.
"""

from __future__ import annotations

from datetime import UTC, datetime

from django.conf import settings

from marketplace.common.locks import lock_until_commit
from marketplace.payments.selectors import sum_borne
from marketplace.vendors.selectors import sum_extra_pay, sum_unsold_rent
from marketplace.warm.overruns import sum_overruns

#: Namespace of the advisory lock of what is borne for an organisation.
EXPOSURE = "auction.exposure"


def find_exposure_left(*, organisation_id: str, now: datetime) -> int:
    """Find what the market may still bear today, in micro-dollars.

    An organisation is one as an owner, as a provider and as who runs vendors. Nobody else finds it
    until the transaction ends, so that no two can use up the same rest. Call after any other lock
    but those of holds, and for several organisations in the order of their keys.
    """
    lock_until_commit(EXPOSURE, organisation_id)
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    borne = (
        sum_borne(at_fault_id=organisation_id, since=today)
        + sum_overruns(organisation_id=organisation_id, since=today)
        + sum_extra_pay(organisation_id=organisation_id, since=today)
        + sum_unsold_rent(organisation_id=organisation_id, since=today)
    )
    return max(0, settings.HOUSE_BEARS_MICROS_PER_DAY - borne)
