"""Files in a bucket of an S3-compatible server (``S3_BUCKET``), instead of the file system.

A file is there whole or not at all, under a name that no other file ever has: of two processes
that store the same thing, neither can overwrite or delete the other's. Files are read as they are
asked for, from any place on, and are never held in memory or on disk as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from django.core.files import File
from smart_open import s3
from storages.backends.s3 import S3Storage

from marketplace.common.errors import StorageUnavailable
from marketplace.common.file_storage import add_unique_part

_MIB = 1024**2
#: Sent at a time, and how many at once: what an upload holds in memory.
_PART_BYTES, _PARTS_AT_ONCE = 8 * _MIB, 2
_READ_BYTES = _MIB
_MISSING = ("NoSuchKey", "404")


class ObjectStorage(S3Storage):
    """A bucket. Files are opened to be read only; they are never changed."""

    def __init__(self, *, is_path_style: bool = False, **options: Any) -> None:
        super().__init__(
            **options,
            client_config=Config(
                connect_timeout=5,
                read_timeout=60,
                retries={"mode": "standard", "total_max_attempts": 4},
                signature_version="s3v4",
                s3={"addressing_style": "path" if is_path_style else "auto"},
                # Servers that are not Amazon's may not know its newer checksums.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
            transfer_config=TransferConfig(
                multipart_threshold=_PART_BYTES,
                multipart_chunksize=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
                max_io_queue=_PARTS_AT_ONCE,
            ),
        )

    bucket_name: str

    @property
    def _client(self) -> Any:
        """Of this thread."""
        resource: Any = self.connection
        return resource.meta.client

    def get_available_name(self, name: str, max_length: int | None = None) -> str:
        """A name of its own for each file, without asking the server."""
        return add_unique_part(name)

    def _open(self, name: str, mode: str = "rb") -> File:
        """Raise ``FileNotFoundError``, or ``StorageUnavailable``."""
        if mode != "rb":
            raise ValueError(f"files are opened with mode 'rb' only, not {mode!r}")
        return _StoredObject(self, name)

    def open_stream(self, name: str) -> IO[bytes]:
        """The bytes of a file, fetched as they are read; raises as ``open`` does."""
        with _translate_errors(name):
            stream = s3.open(
                self.bucket_name,
                self._normalize_name(name),
                "rb",
                buffer_size=_READ_BYTES,
                client=self._client,
            )
        return cast(IO[bytes], stream)

    def _save(self, name: str, content: File) -> str:
        with _translate_errors(name):
            return super()._save(name, content)

    def delete(self, name: str) -> None:
        with _translate_errors(name):
            super().delete(name)

    def exists(self, name: str) -> bool:
        with _translate_errors(name):
            return super().exists(name)

    def listdir(self, name: str) -> tuple[list[str], list[str]]:
        with _translate_errors(name):
            return super().listdir(name)

    def size(self, name: str) -> int:
        with _translate_errors(name):
            return super().size(name)


class _StoredObject(File):
    """A file that is fetched again where it is opened again, as Django does."""

    def __init__(self, storage: ObjectStorage, name: str) -> None:
        super().__init__(storage.open_stream(name), name)
        self._storage = storage

    def open(self, mode: str | None = None, *_: Any, **__: Any) -> _StoredObject:
        if self.closed:
            self.file = self._storage.open_stream(str(self.name))
        else:
            self.seek(0)
        return self


@contextmanager
def _translate_errors(name: str) -> Iterator[None]:
    try:
        yield
    except (Boto3Error, BotoCoreError, ClientError, OSError) as error:
        # The stream of a file keeps the server's answer behind an error of its own.
        cause = getattr(error, "backend_error", error)
        if isinstance(cause, ClientError) and cause.response["Error"].get("Code") in _MISSING:
            raise FileNotFoundError(name) from error
        if isinstance(cause, Boto3Error | BotoCoreError | ClientError):
            raise StorageUnavailable(f"{type(cause).__name__}: {cause}") from error
        raise
