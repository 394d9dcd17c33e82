"""``manage.py storage_check``: whether files can be stored, read and deleted."""

import secrets
from typing import Any

from django.conf import settings
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.core.management.base import BaseCommand, CommandError


class Command(BaseCommand):
    help = "Store, read and delete a small file where the market keeps its files."

    def handle(self, *args: Any, **options: Any) -> None:
        place = f"bucket {settings.S3_BUCKET}" if settings.S3_BUCKET else settings.MEDIA_ROOT
        content = secrets.token_bytes(32)
        try:
            name = default_storage.save("storage-check", ContentFile(content))
            with default_storage.open(name) as file:
                is_same = file.read() == content
            default_storage.delete(name)
        except OSError as error:
            raise CommandError(
                f"{place} cannot be used: {error}. Check S3_BUCKET and the settings that begin "
                "with S3_, or the permissions of DATA_DIR."
            ) from error
        if not is_same:
            raise CommandError(f"{place} gave other bytes than were stored.")
        self.stdout.write(f"Files are stored, read and deleted in {place}.")
