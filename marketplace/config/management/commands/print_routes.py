"""Every route with who may use it, as the table of a guide."""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from marketplace.config.routes import write_route_table

HEAD = "## Every route"


class Command(BaseCommand):
    help = "Print who may use which route; --write puts the table into docs/guides/roles.md."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--write", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        if not options["write"]:
            self.stdout.write(write_route_table())
            return
        guide = Path(settings.BASE_DIR) / "docs" / "guides" / "roles.md"
        prose = guide.read_text().split(HEAD)[0]
        guide.write_text(f"{prose}{HEAD}\n\n{write_route_table()}")
