"""``manage.py zone_remeasure ZONE NODE``: work's costs from another node than the first."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from marketplace.accounts.operator_command import OperatorCommand
from marketplace.auction.zone_costs import remeasure_zone
from marketplace.common.errors import UserError


class Command(OperatorCommand):
    help = "Take the costs of a zone's work from the self-test of a node that you trust."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("zone", help="name of the zone, in which no bid was placed yet")
        parser.add_argument("node", help="id of one of its nodes")

    def handle(self, *, zone: str, node: str, **options: Any) -> None:
        try:
            costs = remeasure_zone(zone_name=zone, node_id=node)
        except UserError as error:
            raise CommandError(error.message) from error
        self.stdout.write(f"{zone}: {costs}")
