"""``manage.py auction_transcript --zone NAME --out FILE``: a zone's log for anyone to replay."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from marketplace.auction.book.transcript import write_transcript
from marketplace.fleet.models import Zone


class Command(BaseCommand):
    help = "Write a zone's log; 'python -m scheduler verify FILE' replays it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--zone", required=True)
        parser.add_argument("--out", required=True, type=Path)
        parser.add_argument(
            "--with-bids", action="store_true", help="with all bids; for the operator"
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        zone = Zone.objects.filter(name=options["zone"]).first()
        if zone is None:
            raise CommandError(f"There is no zone {options['zone']!r}.")
        count = 0
        with options["out"].open("w", encoding="utf-8") as file:
            for line in write_transcript(zone, with_bids=options["with_bids"]):
                file.write(line + "\n")
                count += 1
        self.stdout.write(f"{max(0, count - 1)} entries of {zone.name} in {options['out']}")
