"""Whether the books balance; for a person, a monitor or the demo's end."""

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from marketplace.payments.ledger_checks import check_ledger


class Command(BaseCommand):
    help = "Recompute the ledger from its postings; exit with 1 when anything is off."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="print the check as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        check = check_ledger()
        if options["json"]:
            self.stdout.write(json.dumps(asdict(check)))
        else:
            self.stdout.write(f"{check.entries} entries, {check.postings} postings")
        if not check.balanced:
            raise CommandError(f"The books do not balance: {check}")
        if not options["json"]:
            self.stdout.write("The books balance.")
