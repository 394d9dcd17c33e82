"""``manage.py restored --as-of MOMENT``: a database that is back at an earlier moment goes on."""

from argparse import ArgumentParser
from datetime import datetime
from typing import Any

from django.core.management.base import CommandError
from django.db import transaction

from marketplace.accounts.operator_command import OperatorCommand
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane.errata import note_restore
from marketplace.auction.models import MarketHead
from marketplace.auction.witnesses.heads import explain_lost_heads
from marketplace.common import clock
from marketplace.config.database_roles import connect_as_owner
from marketplace.fleet.models import Zone
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.restores import hold_gateway


class Command(OperatorCommand):
    help = (
        "Before a market goes on from an earlier moment of its database (PostgreSQL's log, a "
        "snapshot of its disk): ask nothing of the payment gateway, verify books and logs, and "
        "say it in the logs. manage.py restore does so itself."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--as-of",
            required=True,
            type=datetime.fromisoformat,
            help="the moment, such as 2026-11-28T02:00:00+00:00",
        )

    def execute(self, *args: Any, **options: Any) -> Any:
        connect_as_owner()
        return super().execute(*args, **options)

    def handle(self, *_args: Any, as_of: datetime, **_options: Any) -> None:
        if as_of.tzinfo is None:
            raise CommandError("Say the moment with its time zone: 2026-11-28T02:00:00+00:00.")
        hold_gateway(backed_up_at=as_of, now=clock.now())
        problems: list[str] = []
        if not check_ledger().balanced:
            problems.append("the books do not balance: run ledger_check --whole")
        with_faults = False
        for zone in Zone.objects.order_by("name"):
            found = verify_zone(zone)
            self.stdout.write(
                f"{zone.name}: {found.verdict}, {found.entries} entries, head {found.head_hash}"
            )
            with_faults = with_faults or bool(found.faults)
            problems += [f"{zone.name}: {problem}" for problem in found.problems]
        if problems:
            raise CommandError("\n".join(["Books or logs are not whole.", *problems]))
        self._note_restore(as_of)
        self.stdout.write(f"Heads of the ledger: {explain_lost_heads(as_of, clock.now())}")
        but = " but for entries that the logs name as wrong" if with_faults else ""
        self.stdout.write(
            f"Restored as of {as_of.isoformat()}; the books balance and every log verifies{but}. "
            "The logs say so, for those who have later heads. Now empty Redis (FLUSHALL) and "
            "start the market. Nothing is asked of the payment gateway until gateway_resume."
        )

    @transaction.atomic
    def _note_restore(self, backed_up_at: datetime) -> None:
        """Say it in all logs or in none."""
        now = clock.now()
        for head in MarketHead.objects.select_related("zone").order_by("zone_id"):
            note_restore(zone=head.zone, backed_up_at=backed_up_at, now=now)
