"""The OpenAPI documents of both APIs, as files that are checked in."""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from marketplace.api.openapi import SURFACES, render_schema


class Command(BaseCommand):
    help = "Write the OpenAPI documents of /api and /v1 to docs/api."

    def handle(self, *args: Any, **options: Any) -> None:
        for surface, name in SURFACES.items():
            path = Path(settings.BASE_DIR) / "docs" / "api" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(render_schema(surface) + b"\n")
            self.stdout.write(f"{path} written")
