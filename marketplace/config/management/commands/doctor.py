"""``manage.py doctor``: what works and what does not, and why jobs are late, in sentences."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from marketplace.auction.lateness import explain_lateness
from marketplace.auction.models import LogSegment
from marketplace.auction.probes import run_probes
from marketplace.auction.witnesses.heads import explain_lost_heads
from marketplace.common import clock
from marketplace.common.archive_files import list_lost_files
from marketplace.config.database_roles import find_excess_rights
from marketplace.jobs.models import EventFile
from marketplace.payments.restores import find_lost_span

#: Below that share of free space, files and the database's log may soon have no room.
FREE_LEAST = 0.1


class Command(BaseCommand):
    help = "Say what works and what does not; exit with 1 where anything does not."

    def handle(self, *_args: Any, **_options: Any) -> None:
        broken = 0
        for is_ok, label, text in self._look():
            self.stdout.write(f"{'ok ' if is_ok else 'BAD'}  {label}: {text}")
            broken += not is_ok
        if broken:
            raise CommandError(f"{broken} of these do not work.")

    def _look(self) -> Iterator[tuple[bool, str, str]]:
        executor = MigrationExecutor(connection)
        waiting = executor.migration_plan(executor.loader.graph.leaf_nodes())
        yield not waiting, "Tables", "run manage.py migrate" if waiting else "are of this version"
        if waiting:
            return
        excess = find_excess_rights()
        yield not excess, "Database role", ", ".join(excess) or "owns nothing"
        disk = shutil.disk_usage(settings.DATA_DIR)
        free = disk.free / disk.total
        yield free >= FREE_LEAST, "Disk", f"{free:.0%} of {settings.DATA_DIR} is free"
        yield _look_at_archive()
        if (lost := find_lost_span()) is not None:
            yield True, "Heads of the ledger", explain_lost_heads(*lost)
        for probe in run_probes(now=clock.now()):
            where = f"{probe.label} of {probe.zone.name}" if probe.zone else probe.label
            since = f" Since {probe.since:%Y-%m-%d %H:%M} UTC." if probe.since else ""
            yield probe.is_ok, where, probe.text + since
        lateness = explain_lateness(now=clock.now())
        yield all(stage.is_ok for stage in lateness.stages), "Late jobs", lateness.answer
        for stage in lateness.stages:
            if not stage.is_ok:
                longest = "" if stage.longest is None else f", the longest {stage.longest}"
                behind = f"{stage.behind:,} of {stage.there:,} behind{longest}: {stage.text}"
                yield False, stage.label, behind
        for late in lateness.jobs:
            yield True, f"Job {late.job.pk} of {late.job.zone.name}", late.why


def _look_at_archive() -> tuple[bool, str, str]:
    """Whether the storage has all files that took the place of rows."""
    try:
        lost = list_lost_files(LogSegment) + list_lost_files(EventFile)
    except OSError as error:
        return False, "Archive", f"the storage does not answer: {error}"
    if not lost:
        return True, "Archive", "has all of its files"
    return False, "Archive", f"{len(lost)} files are lost, such as {lost[0]}: restore them"
