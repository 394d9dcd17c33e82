"""``manage.py restore FOLDER``: a backup into an empty database, verified."""

from argparse import ArgumentParser
from datetime import datetime
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane.errata import note_restore
from marketplace.auction.models import MarketHead
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.config.backups import compare_with_manifest, restore_backup
from marketplace.config.database_roles import connect_as_owner, grant_rights
from marketplace.fleet.models import Zone
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.restores import hold_gateway


class Command(BaseCommand):
    help = "Put a backup into an empty database and DATA_DIR, and verify books and logs."
    # The database is still empty.
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("folder", type=Path)

    def execute(self, *args: Any, **options: Any) -> Any:
        connect_as_owner()
        return super().execute(*args, **options)

    def handle(self, *_args: Any, folder: Path, **_options: Any) -> None:
        try:
            made = restore_backup(folder.resolve(), now=clock.now())
            grant_rights()
        except UserError as error:
            raise CommandError(error.message) from None
        problems = compare_with_manifest(made)
        hold_gateway(now=clock.now())
        if not check_ledger().balanced:
            problems.append("the books do not balance: run ledger_check --whole")
        with_faults = False
        for zone in Zone.objects.order_by("name"):
            found = verify_zone(zone)
            self.stdout.write(
                f"{zone.name}: {found.state}, {found.entries} entries, head {found.head_hash}"
            )
            with_faults = with_faults or bool(found.known_faults)
            problems += [f"{zone.name}: {problem}" for problem in found.problems]
        for problem in problems:
            self.stdout.write(f"  {problem}")
        if problems:
            raise CommandError("What was restored is not what was backed up.")
        self._note_restore(datetime.fromisoformat(made.made_at))
        but = " but for entries that the logs name as wrong" if with_faults else ""
        self.stdout.write(
            f"Restored as of {made.made_at}; the books balance and every log verifies{but}. "
            "The logs say so, for those who have later heads. Now empty Redis (FLUSHALL) and "
            "start the market. Nothing is asked of the payment gateway until gateway_resume."
        )

    @transaction.atomic
    def _note_restore(self, backed_up_at: datetime) -> None:
        """Say it in all logs or in none."""
        now = clock.now()
        for head in MarketHead.objects.select_related("zone").order_by("zone_id"):
            note_restore(zone=head.zone, backed_up_at=backed_up_at, now=now)
