"""Whether the payment gateway has the money that the ledger says."""

from typing import Any

from django.core.management.base import CommandError

from marketplace.accounts.operator_command import OperatorCommand
from marketplace.common import clock
from marketplace.common.money import format_usd_exact
from marketplace.payments.reconciliation import reconcile
from marketplace.payments.stripe_client import is_configured


class Command(OperatorCommand):
    help = "Compare the ledger with the gateway's balance transactions; exit with 1 if they part."

    def handle(self, *args: Any, **options: Any) -> None:
        if not is_configured():
            raise CommandError("This market takes no cards: STRIPE_SECRET_KEY is not set.")
        found = reconcile(now=clock.now())
        for difference in found.differences:
            self.stdout.write(
                f"{difference.reference}: {difference.what};"
                f" ledger {format_usd_exact(difference.ledger_micros)},"
                f" gateway {format_usd_exact(difference.gateway_micros)}"
            )
        ledger, gateway = map(format_usd_exact, (found.ledger_micros, found.gateway_micros))
        if not found.is_right:
            raise CommandError(f"The ledger says {ledger}, the gateway {gateway}.")
        self.stdout.write(f"{found.movements} movements; both say {ledger}.")
        if found.exchange_micros:
            worth, change = map(format_usd_exact, (found.worth_micros, found.exchange_micros))
            self.stdout.write(f"Exchange: worth {worth} at the last rates, {change} of change.")
