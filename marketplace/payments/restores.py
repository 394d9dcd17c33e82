"""Money after a restore: nothing is asked of the gateway before an operator compared and said so.

What moved after the backup is at the gateway and not in the books: earnings that were paid out are
payable again, and what went back to a card is in the wallet again. Both would be paid twice.
"""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from marketplace.common.errors import Conflict
from marketplace.payments.locks import lock_comparison
from marketplace.payments.models import CallStatus, GatewayCall, GatewayComparison

HELD = (
    "Nothing is asked of the payment gateway since the market was put back from a backup: compare "
    "(manage.py reconcile_stripe), book what moved since, then run manage.py gateway_resume."
)


@transaction.atomic
def hold_gateway(*, now: datetime) -> None:
    """Ask nothing of the gateway from now on; every waiting call may have been made already.

    It may be repeated.
    """
    comparison = lock_comparison()
    comparison.made_at, comparison.problems, comparison.lasting = None, [], []
    comparison.held_at = now
    comparison.save()
    # A second attempt looks first for what the one before did.
    never = GatewayCall.objects.filter(status=CallStatus.WAITING, attempts=0)
    never.update(attempts=1)


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
