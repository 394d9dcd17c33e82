"""``manage.py tiers_set ZONE --serverless N --serverful N``: the house's own machines."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from marketplace.common.errors import UserError
from marketplace.fleet.models import Provider
from marketplace.fleet.selectors import zone_by_name
from marketplace.tiers.services import zone_tiers_set


class Command(BaseCommand):
    help = "Let the house rent machines of its own in a zone, up to these counts."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("zone", help="name of the zone")
        parser.add_argument("--provider", required=True, help="name of the house's organisation")
        parser.add_argument("--serverless", type=int, default=1, help="most serverless machines")
        parser.add_argument("--serverful", type=int, default=0, help="most other machines")
        parser.add_argument("--backend", default="local", help="local, skypilot")
        parser.add_argument(
            "--serverless-backend", default=None, help="local, modal (default: as --backend)"
        )
        parser.add_argument("--off", action="store_true", help="rent no more")

    def handle(self, *_args: Any, **options: Any) -> None:
        providers = Provider.objects.filter(organisation__name=options["provider"])
        if providers.count() != 1:
            raise CommandError(f"No one provider is named {options['provider']!r}.")
        try:
            zone_tiers_set(
                zone=zone_by_name(options["zone"]),
                provider=providers.get(),
                serverless_cap=options["serverless"],
                serverful_cap=options["serverful"],
                backend=options["backend"],
                serverless_backend=options["serverless_backend"],
                is_on=not options["off"],
            )
        except UserError as refusal:
            raise CommandError(refusal.message) from refusal
        state = "off" if options["off"] else "on"
        self.stdout.write(f"Tiers of zone {options['zone']}: {state}.")
