"""What is written from the settings of a job, as files that are checked in."""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from marketplace.api.sdk_types import GUIDE, SDK_TERMS, render_sdk_terms, render_settings_guide


class Command(BaseCommand):
    help = "Write the SDK's types of a job's terms and the guide's page of settings."

    def handle(self, *args: Any, **options: Any) -> None:
        for name, text in ((SDK_TERMS, render_sdk_terms()), (GUIDE, render_settings_guide())):
            path = Path(settings.BASE_DIR) / name
            path.write_text(text)
            self.stdout.write(f"{path} written")
