"""What is written from the settings of a job and the operations, as files that are checked in."""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from marketplace.api.sdk_types import WRITTEN


class Command(BaseCommand):
    help = "Write the SDK's types of a job's terms, its operations, and the page of settings."

    def handle(self, *args: Any, **options: Any) -> None:
        for name, render in WRITTEN.items():
            path = Path(settings.BASE_DIR) / name
            path.write_text(render())
            self.stdout.write(f"{path} written")
