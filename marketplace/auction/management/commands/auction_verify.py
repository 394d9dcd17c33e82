"""``manage.py auction_verify [--zone NAME] [--since-last]``: replay the log, compare all with it.

It begins at the first entry. With ``--since-last`` it begins where the last one ended whose result
the market's key signed, if there is one, and reads nothing from before. It ends with 0 where
everything agrees, with 1 where anything does not, and with 3 where all agrees but for entries that
the log itself names as wrong.
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from marketplace.auction.book.log_checks import find_verified_state, store_verified_state
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.book.verify_report import PROBLEMS_SHOWN
from marketplace.auction.witnesses.keys import find_signing_key
from marketplace.common import clock
from marketplace.fleet.models import Zone
from scheduler.auction.audit.command import EXIT_KNOWN_FAULTS


class Command(BaseCommand):
    help = "Replay every decision, price, solve and hash from the log; fails when anything differs."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--zone", help="name of one zone; all zones without it")
        parser.add_argument(
            "--since-last",
            action="store_true",
            help="begin where the last check ended; what is verified already is not read again",
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        zones = Zone.objects.order_by("name")
        if options["zone"]:
            zones = zones.filter(name=options["zone"])
            if not zones:
                raise CommandError(f"There is no zone {options['zone']!r}.")
        failed = excused = False
        now = clock.now()
        key = find_signing_key(now=now)
        for zone in zones:
            since = (
                find_verified_state(zone=zone, key=key) if key and options["since_last"] else None
            )
            found = verify_zone(zone, since=since)
            if key is not None and found.state is not None:
                store_verified_state(zone=zone, found=found, key=key, now=now)
            after = f" after {found.begins_at}" if since else ""
            self.stdout.write(
                f"{zone.name}: {found.verdict}, {found.entries} entries{after}, "
                f"{found.decisions} decisions, "
                f"{found.solved_again} solves run again, {found.taken_as_logged} taken as logged, "
                f"head {found.head_hash or 'none'}"
            )
            if found.beats_missed or found.beats_late or found.unwitnessed:
                self.stdout.write(
                    f"  {found.beats_missed} beats without prices, {found.beats_late} entries "
                    f"past a beat, {found.unwitnessed} days without a witness"
                )
            for fault in found.faults:
                self.stdout.write(f"  {fault}")
            for problem in found.problems[:PROBLEMS_SHOWN]:
                self.stdout.write(f"  {problem}")
            failed, excused = failed or not found.ok, excused or bool(found.faults)
        if failed:
            raise CommandError("The stored auction is not what its log replays to.")
        if excused:
            raise CommandError(
                "All agrees but for entries that the logs name as wrong.",
                returncode=EXIT_KNOWN_FAULTS,
            )
