"""``manage.py auction_erratum ZONE POSITION PROBLEM``: name a faulty entry in the log itself."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from marketplace.accounts.operator_command import OperatorCommand
from marketplace.auction.lane.errata import note_erratum
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.fleet.models import Zone


class Command(OperatorCommand):
    help = "Say in a zone's log that one of its entries is wrong; verifiers name it and go on."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("zone", help="name of the zone")
        parser.add_argument("position", type=int, help="of the entry, as auction_verify says it")
        parser.add_argument("problem", help="what is wrong with it and how it came about")

    def handle(self, *_args: Any, **options: Any) -> None:
        zone = Zone.objects.filter(name=options["zone"]).first()
        if zone is None:
            raise CommandError(f"There is no zone {options['zone']!r}.")
        try:
            position = note_erratum(
                zone=zone,
                position=options["position"],
                problem=options["problem"],
                now=clock.now(),
            )
        except UserError as error:
            raise CommandError(error.message) from error
        self.stdout.write(f"Entry {position} of {zone.name} names entry {options['position']}.")
