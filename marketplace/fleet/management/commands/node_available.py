"""``manage.py node_available NODE... --in-s SECONDS``: from when nodes' cells are on sale."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError
from django.db.models import Q

from marketplace.accounts.operator_command import OperatorCommand
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.fleet.models import Node, NodeStatus
from marketplace.fleet.services import set_node_availability


class Command(OperatorCommand):
    help = "Take nodes off sale for a while; what was sold on them is still served."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("nodes", nargs="+", metavar="node", help="name or id of a node")
        parser.add_argument(
            "--in-s", type=float, default=0.0, help="seconds until they are on sale (default: now)"
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        now = clock.now()
        from_at = now + timedelta(seconds=options["in_s"]) if options["in_s"] > 0 else None
        when = "now" if from_at is None else f"from {from_at:%H:%M:%S} UTC"
        for found in [_find_node(name) for name in options["nodes"]]:
            try:
                node = set_node_availability(
                    node=found, available_from_at=from_at, available_until_at=None, now=now
                )
            except UserError as refusal:
                raise CommandError(refusal.message) from refusal
            self.stdout.write(f"Node {node.name} is on sale {when}.")


def _find_node(name: str) -> Node:
    # One that is silent comes back, and is then on sale as is set here.
    by_name_or_id = Node.objects.filter(Q(name=name) | Q(pk=name))
    found = list(by_name_or_id.exclude(status=NodeStatus.LEFT)[:2])
    if not found:
        raise CommandError(f"There is no node named {name!r}. See the names under Nodes.")
    if len(found) > 1:
        raise CommandError(
            f"Several nodes are named {name!r}. Set it on their pages in the console."
        )
    return found[0]
