"""Whether the books balance; for a person, a monitor or the demo's end."""

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from marketplace.payments.ledger_checks import check_ledger, check_recent


class Command(BaseCommand):
    help = (
        "Check what came after the ledger's last seal, or all of it; exit with 1 when anything"
        " is off."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="print the check as JSON")
        parser.add_argument(
            "--whole", action="store_true", help="recompute every posting and every seal"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        check = check_ledger() if options["whole"] else check_recent()
        if options["json"]:
            self.stdout.write(json.dumps(asdict(check)))
        else:
            self.stdout.write(f"{check.entries} entries, {check.postings} postings")
        if not check.balanced:
            raise CommandError(f"The books do not balance: {check}")
        if not options["json"]:
            self.stdout.write("The books balance.")
