import logging

from celery import shared_task

from marketplace.common import clock
from marketplace.payments.caps import send_cap_notices
from marketplace.payments.chargebacks import collect_lost_payments
from marketplace.payments.ledger_checks import check_recent
from marketplace.payments.maturity import mature_earnings
from marketplace.payments.payout_calls import retry_failed_payouts
from marketplace.payments.payouts import start_due_payouts
from marketplace.payments.reconciliation import compare_with_gateway
from marketplace.payments.stripe_client import GatewayFault, is_configured
from marketplace.payments.top_ups import watch_wallets
from marketplace.payments.webhooks import fetch_missed_events

log = logging.getLogger(__name__)


@shared_task(name="payments.earnings_mature")
def mature_all_earnings() -> None:
    mature_earnings(now=clock.now())


@shared_task(name="payments.events_fetch")
def fetch_events() -> None:
    if is_configured():
        fetch_missed_events(now=clock.now())


@shared_task(name="payments.wallets_watch")
def check_wallets() -> None:
    now = clock.now()
    collect_lost_payments(now=now)
    watch_wallets(now=now)
    send_cap_notices(now=now)


@shared_task(name="payments.payouts_start")
def start_payouts() -> None:
    now = clock.now()
    start_due_payouts(now=now)
    retry_failed_payouts(now=now)


class BooksUnbalanced(Exception):
    """The heartbeat of the check says so until the books balance again."""


@shared_task(name="payments.books_check")
def check_books() -> None:
    check = check_recent()
    if not check.balanced:
        log.error("The books do not balance: %s", check)
        raise BooksUnbalanced(
            "The books do not balance. Stop sales and run manage.py ledger_check."
        )


@shared_task(name="payments.gateway_compare")
def compare_gateway() -> None:
    if not is_configured():
        return
    try:
        comparison = compare_with_gateway(now=clock.now())
    except GatewayFault as fault:
        log.warning("the gateway could not be compared with: %s", fault)
        return
    if comparison.lasting:
        log.error("The gateway has other money than the ledger: %s", comparison.lasting)
