"""``manage.py express_lane ZONE --buyer NAME``: open, change or close a zone's express lane."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from marketplace.accounts.models import Organisation
from marketplace.accounts.operator_command import OperatorCommand
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.common.money import to_micros
from marketplace.express.lanes import LaneTerms, set_lane
from marketplace.express.seat_autoscaler import run_ticks
from marketplace.fleet.selectors import get_open_zone


class Command(OperatorCommand):
    help = "Open a zone's express lane with these bounds, or change or close it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("zone")
        parser.add_argument("--buyer", required=True, help="organisation that pays for the seats")
        parser.add_argument("--least-seats", type=int, default=1, help="floor at least")
        parser.add_argument("--most-seats", type=int, default=4, help="with bursts")
        parser.add_argument("--seat-limit", default="1", help="most dollars a slot of a seat")
        parser.add_argument("--budget", default="50", help="most dollars an hour for the floor")
        parser.add_argument("--longest-slo-s", type=float, default=180.0, help="seconds")
        parser.add_argument(
            "--verified-only",
            action="store_true",
            help="buy seats on nodes of verified providers only, and take jobs that ask for them",
        )
        parser.add_argument("--close", action="store_true", help="buy no more seats")

    def handle(self, *_args: Any, **options: Any) -> None:
        buyer = Organisation.objects.filter(name=options["buyer"]).order_by("pk").first()
        if buyer is None:
            raise CommandError(f"There is no organisation named {options['buyer']}.")
        try:
            terms = LaneTerms(
                is_open=not options["close"],
                least_seats=options["least_seats"],
                most_seats=options["most_seats"],
                seat_limit_micros=to_micros(options["seat_limit"]),
                budget_micros_per_h=to_micros(options["budget"]),
                slo_max_s=options["longest_slo_s"],
                verified_only=options["verified_only"],
            )
            lane = set_lane(zone=get_open_zone(options["zone"]), organisation=buyer, terms=terms)
        except UserError as refusal:
            raise CommandError(refusal.message) from refusal
        # Its first seats are bid for at once.
        run_ticks(now=clock.now())
        self.stdout.write(
            f"The express lane of {options['zone']} is {'open' if lane.is_open else 'closed'}: "
            f"{lane.least_seats} to {lane.most_seats} seats, SLOs up to {lane.slo_max_s:g} s, "
            f"paid by {buyer.name}."
        )
