"""``manage.py machines_end``: give every rented machine back, and wait until none runs."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from marketplace.accounts.operator_command import OperatorCommand
from marketplace.common import clock
from marketplace.tiers.services import give_back_machines

#: Between two looks.
LOOK_EVERY_S = 0.5


class Command(OperatorCommand):
    help = (
        "Rent no more and give every machine back, for example before the market is shut down. "
        "Machines hand over checkpoints first; their jobs are re-planned."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--within-s", type=float, default=90.0, help="most seconds to wait")

    def handle(self, *_args: Any, **options: Any) -> None:
        until = time.monotonic() + options["within_s"]
        while left := give_back_machines(now=clock.now()):
            if time.monotonic() > until:
                raise CommandError(f"Still running: {', '.join(left)}.")
            time.sleep(LOOK_EVERY_S)
        self.stdout.write("No rented machine runs.")
