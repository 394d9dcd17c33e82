"""``manage.py backup FOLDER``: database, files and keys as of one moment."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.config.backups import make_backup


class Command(BaseCommand):
    help = "Write database, files and keys into a new folder, while the market runs."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("folder", type=Path)

    def handle(self, *_args: Any, folder: Path, **_options: Any) -> None:
        try:
            made = make_backup(folder.resolve(), now=clock.now())
        except UserError as error:
            raise CommandError(error.message) from None
        self.stdout.write(
            f"{folder}: {sum(made.rows.values()):,} rows, {made.files:,} files of "
            f"{made.file_bytes:,} bytes."
        )
        if made.bucket:
            self.stdout.write(f"Files lie in the bucket {made.bucket}: keep its versions.")
        for name in made.missing:
            self.stdout.write(f"  {name} was deleted while it was copied.")
        self.stdout.write("Keep SECRET_KEY apart from it: without it sealed secrets stay sealed.")
