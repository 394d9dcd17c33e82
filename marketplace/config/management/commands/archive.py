"""``manage.py archive``: what is old and settled leaves the database for files."""

from collections.abc import Iterator
from typing import Any

from django.core.management.base import CommandError

from marketplace.accounts.operator_command import OperatorCommand
from marketplace.auction.book.log_archiving import READ_FOR, archive_log
from marketplace.auction.witnesses.keys import SigningKey, find_signing_key
from marketplace.common import clock
from marketplace.common.archive_files import ArchiveUnreadable
from marketplace.common.errors import UserError
from marketplace.config.database_roles import connect_as_owner
from marketplace.fleet.models import Zone
from marketplace.jobs.event_files import archive_events
from marketplace.payments.closed_months import list_closed_months


class Command(OperatorCommand):
    help = (
        "Move entries of the zones' logs that are of closed months, verified and settled, and "
        "events of jobs that were settled then, into compressed, signed files beside the uploads; "
        "everything reads them there. Run it each month, as the owner of the tables and where the "
        "market's key is."
    )

    def execute(self, *args: Any, **options: Any) -> Any:
        connect_as_owner()
        return super().execute(*args, **options)

    def handle(self, *_args: Any, **_options: Any) -> None:
        key = find_signing_key(now=clock.now())
        if key is None:
            raise CommandError("The market's key is not here. Run this where lane or worker run.")
        failed = self._archive_events(key) + sum(self._archive_logs(key))
        if failed:
            raise CommandError("Not all could be archived; nothing of that was deleted.")

    def _archive_logs(self, key: SigningKey) -> Iterator[bool]:
        """Whether that of each zone failed."""
        for zone in Zone.objects.order_by("name"):
            try:
                done = archive_log(zone=zone, key=key, now=clock.now())
            except (UserError, ArchiveUnreadable, OSError) as error:
                self.stderr.write(f"{zone.name}: {error}")
                yield True
                continue
            self.stdout.write(
                f"{zone.name}: {done.entries:,} entries into {done.segments} files of "
                f"{done.bytes:,} bytes. {done.until}"
            )

    def _archive_events(self, key: SigningKey) -> bool:
        """Whether that of the jobs' events failed."""
        now, months = clock.now(), list_closed_months()
        if not months:
            self.stdout.write("Events of jobs stay: no month is closed.")
            return False
        before = min(months[0].ends_at, now - READ_FOR)
        try:
            done = archive_events(before=before, public_key=key.public_key, sign=key.sign, now=now)
        except (UserError, ArchiveUnreadable, OSError) as error:
            self.stderr.write(f"Events of jobs: {error}")
            return True
        self.stdout.write(
            f"{done.events:,} events of {done.jobs:,} jobs into {done.files} files of "
            f"{done.bytes:,} bytes."
        )
        return False
