"""How a payee stands: its account at the gateway, what waits, and when it leaves."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings

from marketplace.accounts.models import Organisation
from marketplace.payments.freezes import list_freezes
from marketplace.payments.models import Freeze, PayoutAccount
from marketplace.payments.payouts import refresh_payout_account
from marketplace.payments.reserves import compute_reserve
from marketplace.payments.selectors import Earnings, get_earnings
from marketplace.payments.stripe_client import GatewayFault, is_configured, is_test_money

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PayoutOverview:
    """What a payee may know before its next payout."""

    #: The market has a gateway, and whether that moves test money only.
    is_configured: bool
    is_test_money: bool
    #: ``None``: it was never set up.
    account: PayoutAccount | None
    #: Why nothing is paid out for now.
    freezes: Sequence[Freeze]
    earnings: Earnings
    #: What stays payable of a new payee's, and for how long.
    reserve_micros: int
    reserve_days: int
    #: The least that leaves, how often, and how long what was earned waits first.
    threshold_micros: int
    every_days: int
    delay_days: int


def load_payout_overview(*, organisation: Organisation, now: datetime) -> PayoutOverview:
    """How a payee stands; call outside transactions, for the gateway may be asked.

    It is asked about an account that is not ready: somebody may come from its pages just now.
    """
    account = PayoutAccount.objects.filter(organisation=organisation).first()
    if account is not None and not account.is_ready:
        try:
            account = refresh_payout_account(organisation.pk)
        except GatewayFault:
            log.warning("the gateway could not be asked about %s", organisation.pk)
    return PayoutOverview(
        is_configured=is_configured(),
        is_test_money=is_test_money(),
        account=account,
        freezes=list_freezes([organisation.pk]),
        earnings=get_earnings(organisation=organisation),
        reserve_micros=compute_reserve(organisation_id=organisation.pk, now=now),
        reserve_days=settings.PAYOUT_RESERVE_DAYS,
        threshold_micros=settings.PAYOUT_THRESHOLD_MICROS,
        every_days=settings.PAYOUT_EVERY_DAYS,
        delay_days=settings.PAYOUT_DELAY_DAYS,
    )
