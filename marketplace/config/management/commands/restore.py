"""``manage.py restore FOLDER``: a backup into an empty database, verified."""

from argparse import ArgumentParser
from datetime import datetime
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.config.backups import compare_with_manifest, restore_backup
from marketplace.config.database_roles import connect_as_owner, grant_rights
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
        hold_gateway(backed_up_at=datetime.fromisoformat(made.made_at), now=clock.now())
        if problems:
            then = f"Mend it, and run manage.py restored --as-of={made.made_at}."
            raise CommandError("\n".join(["This is not what was backed up.", *problems, then]))
        call_command("restored", f"--as-of={made.made_at}", stdout=self.stdout)
