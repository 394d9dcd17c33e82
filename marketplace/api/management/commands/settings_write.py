"""What is written from the settings of a job, as files that are checked in."""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from marketplace.api.sdk_types import SDK_TERMS, render_sdk_terms


class Command(BaseCommand):
    help = "Write the SDK's types of a job's terms."

    def handle(self, *args: Any, **options: Any) -> None:
        path = Path(settings.BASE_DIR) / SDK_TERMS
        path.write_text(render_sdk_terms())
        self.stdout.write(f"{path} written")
