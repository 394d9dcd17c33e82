"""``manage.py zone_retain ZONE DAYS``: delete results of a zone's jobs after a number of days."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from marketplace.accounts.erasure import RETAIN_DAYS_MAX, RETAIN_DAYS_MIN
from marketplace.accounts.operator_command import OperatorCommand
from marketplace.fleet.models import Zone


class Command(OperatorCommand):
    help = "Delete results of a zone's jobs, and data sets counted for it, after some days."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("zone", help="name of the zone")
        parser.add_argument("days", help="days without use, or 'never'")

    def handle(self, *, zone: str, days: str, **options: Any) -> None:
        number = int(days) if days.isascii() and days.isdigit() else None
        if days != "never" and not RETAIN_DAYS_MIN <= (number or 0) <= RETAIN_DAYS_MAX:
            raise CommandError(f"Give {RETAIN_DAYS_MIN} to {RETAIN_DAYS_MAX:,} days, or never.")
        if not Zone.objects.filter(name=zone).update(retain_days=number):
            raise CommandError(f"There is no zone {zone!r}.")
        self.stdout.write(f"{zone}: {days if number is None else f'{number} days'}.")
