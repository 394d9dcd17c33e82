"""``manage.py gateway_resume``: money moves again after a restore."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from marketplace.accounts.operator_command import OperatorCommand
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.payments.lost_rows import recover_lost_rows
from marketplace.payments.reconciliation import compare_with_gateway
from marketplace.payments.restores import resume_gateway
from marketplace.payments.stripe_client import is_configured


class Command(OperatorCommand):
    help = (
        "After a restore: book what moved at the gateway since the backup, compare, and let money "
        "move again where nothing differs."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--despite-differences", action="store_true", help="they are known")

    def handle(self, *_args: Any, despite_differences: bool, **_options: Any) -> None:
        if not is_configured():
            raise CommandError("This market takes no cards: STRIPE_SECRET_KEY is not set.")
        try:
            self._recover()
            compare_with_gateway(now=clock.now())
            resume_gateway(despite_differences=despite_differences)
        except UserError as error:
            raise CommandError(error.message) from None
        self.stdout.write("The gateway is asked again; waiting calls are retried in turn.")

    def _recover(self) -> None:
        found = recover_lost_rows(now=clock.now())
        self.stdout.write(
            f"Booked what the lost market moved: {found.payments} payments by card, "
            f"{found.refunds} refunds and {found.payouts} payouts."
        )
        for left in found.left:
            self.stdout.write(f"Not booked: {left}")
