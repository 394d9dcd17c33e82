"""``manage.py auction_verify [--zone NAME]``: replay the log and compare everything with it.

It ends with 0 where everything agrees, with 1 where anything does not, and with 3 where all agrees
but for entries that the log itself names as wrong.
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from marketplace.auction.book.verify import verify_zone
from marketplace.auction.book.verify_report import PROBLEMS_SHOWN
from marketplace.fleet.models import Zone
from scheduler.auction.audit.command import EXIT_KNOWN_FAULTS


class Command(BaseCommand):
    help = "Replay every decision, price, solve and hash from the log; fails when anything differs."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--zone", help="name of one zone; all zones without it")

    def handle(self, *_args: Any, **options: Any) -> None:
        zones = Zone.objects.order_by("name")
        if options["zone"]:
            zones = zones.filter(name=options["zone"])
            if not zones:
                raise CommandError(f"There is no zone {options['zone']!r}.")
        failed = excused = False
        for zone in zones:
            found = verify_zone(zone)
            self.stdout.write(
                f"{zone.name}: {found.state}, {found.entries} entries, "
                f"{found.decisions} decisions, "
                f"{found.solved_again} solves run again, {found.taken_as_logged} taken as logged, "
                f"head {found.head_hash or 'none'}"
            )
            for fault in found.known_faults:
                self.stdout.write(f"  {fault}")
            for problem in found.problems[:PROBLEMS_SHOWN]:
                self.stdout.write(f"  {problem}")
            failed, excused = failed or not found.ok, excused or bool(found.known_faults)
        if failed:
            raise CommandError("The stored auction is not what its log replays to.")
        if excused:
            raise CommandError(
                "All agrees but for entries that the logs name as wrong.",
                returncode=EXIT_KNOWN_FAULTS,
            )
