"""``manage.py zone_policy NAME [--policy P] [--parameters JSON]``: how a zone's prices are made."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.fleet.models import Policy, Zone
from marketplace.fleet.services import set_zone_policy
from marketplace.fleet.zone_policies import PARAMETERS


class Command(BaseCommand):
    help = "Set a zone's price policy and its parameters; without options, say what they are."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("zone", help="name of the zone")
        parser.add_argument("--policy", help=f"one of {', '.join(Policy.values)}")
        parser.add_argument(
            "--parameters",
            help="an object in JSON that takes the place of the present one; parameters are "
            + ", ".join(f"{name} ({PARAMETERS[name].words})" for name in sorted(PARAMETERS)),
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        zone = Zone.objects.filter(name=options["zone"]).first()
        if zone is None:
            raise CommandError(f"There is no zone {options['zone']!r}.")
        parameters = options["parameters"]
        if options["policy"] is not None or parameters is not None:
            try:
                zone = set_zone_policy(
                    zone=zone,
                    policy=options["policy"] or zone.policy,
                    settings=None if parameters is None else json.loads(parameters),
                    set_by=None,
                    now=clock.now(),
                )
            except UserError as error:
                raise CommandError(error.message) from error
            except json.JSONDecodeError as error:
                raise CommandError(f"The parameters are not JSON: {error}.") from error
        self.stdout.write(f"{zone.name}: {zone.policy}, settings {json.dumps(zone.settings)}")
