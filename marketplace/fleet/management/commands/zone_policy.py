"""``manage.py zone_policy NAME [--parameters JSON]``: how a zone's prices are made."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from marketplace.accounts.operator_command import OperatorCommand
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.fleet.models import Zone
from marketplace.fleet.policy_settings import PARAMETERS
from marketplace.fleet.services import set_policy_settings


class Command(OperatorCommand):
    help = "Set the parameters of a zone's price policy; without options, say what they are."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("zone", help="name of the zone")
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
        if parameters is not None:
            try:
                zone = set_policy_settings(
                    zone=zone, settings=json.loads(parameters), now=clock.now()
                )
            except UserError as error:
                raise CommandError(error.message) from error
            except json.JSONDecodeError as error:
                raise CommandError(f"The parameters are not JSON: {error}.") from error
        self.stdout.write(f"{zone.name}: {json.dumps(zone.settings)}")
