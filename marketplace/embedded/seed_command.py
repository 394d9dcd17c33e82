"""A small market for a first look, a demo or a browser test."""

import json
import os
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.common.money import format_usd, to_micros
from marketplace.embedded.seed import SeedTerms, seed_market


class SeedDemo(BaseCommand):
    help = (
        "Make the demo's people, two customers with money, a provider and a zone; run it again and"
        " only what is missing is made. The demo's API keys are replaced each time."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--password",
            default=os.environ.get("DEMO_PASSWORD"),
            help="of all users; or the environment variable DEMO_PASSWORD",
        )
        parser.add_argument("--grant", default="250", help="dollars in the owner's wallet")
        parser.add_argument("--zone", default="finetender-tiny")
        parser.add_argument("--base-model", default="bundled:finetender-tiny")
        parser.add_argument("--slot-s", type=int, default=10, help="seconds per slot")
        parser.add_argument("--horizon-slots", type=int, default=360)
        parser.add_argument("--base-memory-gb", type=float, default=0.1)
        parser.add_argument("--max-sequence-length", type=int, default=512)
        parser.add_argument(
            "--join-asks",
            nargs="*",
            default=[],
            help="dollars a slot that new nodes ask; a join token is made for each",
        )
        parser.add_argument("--json", action="store_true", help="print everything as one object")

    def handle(self, *args: Any, **options: Any) -> None:
        if not options["password"]:
            raise CommandError("Pass --password, or set DEMO_PASSWORD.")
        try:
            seeded = seed_market(
                terms=SeedTerms(
                    password=options["password"],
                    grant_micros=to_micros(options["grant"]),
                    zone=options["zone"],
                    base_model=options["base_model"],
                    slot_s=options["slot_s"],
                    horizon_slots=options["horizon_slots"],
                    base_memory_gb=options["base_memory_gb"],
                    max_sequence_length=options["max_sequence_length"],
                    join_asks_micros=tuple(to_micros(ask) for ask in options["join_asks"]),
                ),
                now=clock.now(),
            )
        except UserError as error:
            raise CommandError(error.message) from error
        if options["json"]:
            self.stdout.write(json.dumps(asdict(seeded)))
            return
        for role, email in seeded.people.items():
            self.stdout.write(f"{role:9} {email}")
        self.stdout.write(f"password  {seeded.password}")
        self.stdout.write(
            f"{seeded.organisation} may bid with {format_usd(seeded.available_micros)}"
            f" in zone {seeded.zone} ({seeded.slot_s} s a slot)."
        )
        self.stdout.write(f"API key   {seeded.api_key}")
        for token in seeded.join_tokens:
            self.stdout.write(f"join with {token}")
