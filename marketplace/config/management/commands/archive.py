"""``manage.py archive``: what is old and settled leaves the database for files."""

from typing import Any

from django.core.management.base import CommandError

from marketplace.accounts.operator_command import OperatorCommand
from marketplace.auction.book.log_archiving import archive_log
from marketplace.auction.witnesses.keys import find_signing_key
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.config.database_roles import connect_as_owner
from marketplace.fleet.models import Zone


class Command(OperatorCommand):
    help = (
        "Move entries of the zones' logs that are of closed months, verified and settled into "
        "compressed, signed files beside the uploads; everything reads them there. Run it each "
        "month, as the owner of the tables and where the market's key is."
    )

    def execute(self, *args: Any, **options: Any) -> Any:
        connect_as_owner()
        return super().execute(*args, **options)

    def handle(self, *_args: Any, **_options: Any) -> None:
        key = find_signing_key(now=clock.now())
        if key is None:
            raise CommandError("The market's key is not here. Run this where lane or worker run.")
        failed = False
        for zone in Zone.objects.order_by("name"):
            try:
                done = archive_log(zone=zone, key=key, now=clock.now())
            except UserError as error:
                failed = True
                self.stderr.write(f"{zone.name}: {error.message}")
                continue
            self.stdout.write(
                f"{zone.name}: {done.entries:,} entries into {done.segments} files of "
                f"{done.bytes:,} bytes. {done.until}"
            )
        if failed:
            raise CommandError("Not all could be archived; nothing of that was deleted.")
