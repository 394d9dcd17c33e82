"""An opening balance, until cards are taken."""

from typing import Any

from django.core.management.base import CommandError, CommandParser

from marketplace.accounts.models import Organisation, User
from marketplace.accounts.operator_command import OperatorCommand
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.common.money import format_usd_exact, to_micros
from marketplace.payments.selectors import get_wallet
from marketplace.payments.services import grant_money


class Command(OperatorCommand):
    help = "Grant a wallet an amount of dollars in an operator's name."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("organisation", help="the organisation's slug or id")
        parser.add_argument("dollars", help="such as 250 or 12.50")
        parser.add_argument("--operator", required=True, help="the operator's email address")
        parser.add_argument(
            "--reference", required=True, help="names the grant; the same one grants once"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        name = options["organisation"]
        organisation = (
            Organisation.objects.filter(slug=name).first()
            or Organisation.objects.filter(pk=name).first()
        )
        if organisation is None:
            raise CommandError(f"There is no organisation {name}.")
        operator = User.objects.filter(email=options["operator"].lower()).first()
        if operator is None:
            raise CommandError(f"There is no person {options['operator']}.")
        try:
            grant_money(
                organisation=organisation,
                amount_micros=to_micros(options["dollars"]),
                granted_by=operator,
                reference=options["reference"],
                now=clock.now(),
            )
        except UserError as error:
            raise CommandError(error.message) from error
        available = format_usd_exact(get_wallet(organisation=organisation).available_micros)
        self.stdout.write(f"{organisation.name} may now bid with {available}.")
