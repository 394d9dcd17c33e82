"""Money after a restore: nothing moves at the gateway before an operator compared and said so.

What moved after the backup is at the gateway and not in the books: earnings that were paid out are
payable again, and what went back to a card is in the wallet again. Both would be paid twice. So
until then the gateway is only looked at: calls that wait are booked where they were made, and
``lost_rows`` writes down again what is in no row. Ever after, every call looks first.
"""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from marketplace.common.errors import Conflict
from marketplace.payments.locks import lock_comparison
from marketplace.payments.models import GatewayComparison

HELD = (
    "No money moves at the payment gateway since the market was put back from a backup: run "
    "manage.py gateway_resume, which books what moved since the backup and says what still differs."
)


@transaction.atomic
def hold_gateway(*, backed_up_at: datetime, now: datetime) -> None:
    """Let no money move from now on; every waiting call may have been made already.

    It may be repeated.
    """
    comparison = lock_comparison()
    comparison.made_at, comparison.problems, comparison.lasting = None, [], []
    comparison.held_at = now
    comparison.lost_since = min(backed_up_at, comparison.lost_since or backed_up_at)
    comparison.lost_until = now
    comparison.save()


def find_lost_span() -> tuple[datetime, datetime] | None:
    """From when to when rows were lost, by one restore or several; ``None``: there was none."""
    spans = GatewayComparison.objects.exclude(lost_since=None)
    return spans.values_list("lost_since", "lost_until").first()


def is_gateway_held() -> bool:
    return GatewayComparison.objects.filter(held_at__isnull=False).exists()


def check_gateway_is_free() -> None:
    """Refuse what would move money at the gateway anew while it is held.

    Raises
    ------
    Conflict
        ``gateway_held``
    """
    if is_gateway_held():
        raise Conflict("gateway_held", "No money leaves now: the market was just put back.")


@transaction.atomic
def resume_gateway(*, despite_differences: bool) -> None:
    """Let calls be made again, after a comparison that found no difference.

    Raises
    ------
    Conflict
        ``not_compared``, or ``gateway_differs`` unless the operator says that it is known.
    """
    comparison = lock_comparison()
    if comparison.held_at is None:
        return
    if comparison.made_at is None or comparison.made_at < comparison.held_at:
        raise Conflict("not_compared", "The gateway was not compared with since the restore.")
    if comparison.problems and not despite_differences:
        raise Conflict("gateway_differs", "They differ: " + "; ".join(comparison.problems))
    comparison.held_at = None
    comparison.save()
