"""The market's own automatic vendor, listed in every open zone."""

from typing import Any

from django.core.management.base import CommandError, CommandParser

from marketplace.accounts.models import Organisation
from marketplace.accounts.operator_command import OperatorCommand
from marketplace.common import clock
from marketplace.fleet.selectors import list_open_zones
from marketplace.vendors.registration import ensure_automatic_vendor


class Command(OperatorCommand):
    help = "List the automatic vendor in every open zone; its earnings go to an organisation."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("organisation", help="id of the house's own organisation")

    def handle(self, *args: Any, **options: Any) -> None:
        organisation = Organisation.objects.filter(pk=options["organisation"]).first()
        if organisation is None:
            raise CommandError(f"There is no organisation {options['organisation']}.")
        zones = list(list_open_zones())
        vendor = ensure_automatic_vendor(organisation=organisation, zones=zones, now=clock.now())
        names = ", ".join(zone.name for zone in zones) or "no zone yet"
        self.stdout.write(f"{vendor.name} prepares data in {names}.")
