"""Training data from other places than a file of rows, written as JSON lines to be uploaded.

Rows are read and written one after another, so that data larger than memory can be sent. Packages
that read a kind of source are extras of this one, and imported once it is asked for.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, cast

import httpx

from finetender.errors import UsageError

#: A file, an address (``hf://``, ``s3://``, ``https://``), or rows: a ``datasets.Dataset``, a list.
Rows = str | os.PathLike[str] | Iterable[Mapping[str, Any]]
_CHUNK_BYTES = 1 << 20
_ROWS_AT_ONCE = 1000
_SCHEME = re.compile(r"(hf|s3|https?)://")
#: ``hf://owner/set`` or ``hf://owner/set/split``.
_SET = re.compile(r"hf://(?!datasets/)([^/@]+/[^/@]+)(?:/([\w.-]+))?")
#: Where the hub keeps each of its data sets as Parquet.
_AS_PARQUET = "datasets/{name}@~parquet/default/{split}/*.parquet"


@contextmanager
def open_source(source: Rows) -> Generator[tuple[Path, str]]:
    """Give a file with the rows of a source, and a name for it; a file of its own is deleted after.

    Raises
    ------
    UsageError
        It cannot be read, a package is missing, or a row is no JSON.
    """
    if isinstance(source, (str, os.PathLike)):
        text = os.fspath(source)
        if not is_address(text):
            _check_file(Path(text))
            if not text.endswith(".parquet"):
                yield Path(text), Path(text).name
                return
        name = text.rstrip("/").partition("?")[0].rpartition("/")[2]
    else:
        text, name = "", "rows.jsonl"
    with tempfile.TemporaryDirectory(prefix="finetender-rows-") as folder:
        file = Path(folder) / "rows"
        write = _choose_writer(source)
        try:
            with file.open("wb") as rows:
                is_table = write(rows)
        except (OSError, httpx.HTTPError) as error:
            raise UsageError(f"{text or 'The rows'} cannot be read: {error}.") from None
        name = f"{Path(name).stem}.jsonl" if is_table else name
        yield file.rename(file.with_name(name)), name


def is_address(text: str) -> bool:
    """Whether data are somewhere else than in a file of this machine."""
    return _SCHEME.match(text) is not None


def _check_file(path: Path) -> None:
    """Refuse what is no file that ends, such as a pipe or ``/dev/zero``, before it is opened."""
    try:
        is_plain = stat.S_ISREG(path.stat().st_mode)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise UsageError(f"{str(path)!r} is no name of a file.") from None
    if not is_plain:
        raise UsageError(f"{path} cannot be read: it is no plain file. Write the rows into one.")


def _choose_writer(source: Rows) -> Callable[[BinaryIO], bool]:
    """What writes the rows into a file, and says whether it made JSON lines of them."""
    if not isinstance(source, (str, os.PathLike)):
        return lambda file: _write_rows(file, source)
    text = os.fspath(source)
    if text.startswith("hf://"):
        return lambda file: _write_hub_files(file, text)
    if not is_address(text):
        return lambda file: _write_parquet(file, text)
    fetch = _read_bucket if text.startswith("s3://") else _read_link

    def write(file: BinaryIO) -> bool:
        if not text.partition("?")[0].endswith(".parquet"):
            file.writelines(fetch(text))
            return False
        # Its index stands at the end.
        with tempfile.TemporaryFile() as whole:
            whole.writelines(fetch(text))
            return _write_parquet(file, whole)

    return write


def _write_rows(file: BinaryIO, rows: Iterable[Mapping[str, Any]]) -> bool:
    for number, row in enumerate(rows, start=1):
        try:
            line = json.dumps(dict(row), ensure_ascii=False, allow_nan=False)
            file.write(line.encode() + b"\n")
        except (TypeError, ValueError) as error:
            raise UsageError(f"Row {number} is no JSON: {error}.") from None
    return True


def _write_parquet(file: BinaryIO, source: str | BinaryIO) -> bool:
    parquet = _import("pyarrow.parquet", "parquet")
    try:
        table = parquet.ParquetFile(source)
        batches = table.iter_batches(batch_size=_ROWS_AT_ONCE)
        return _write_rows(file, (row for batch in batches for row in batch.to_pylist()))
    except import_module("pyarrow").ArrowInvalid as error:
        raise UsageError(f"{source} is no Parquet: {error}.") from None


def _write_hub_files(file: BinaryIO, address: str) -> bool:
    hub = _import("huggingface_hub", "hub")
    files = hub.HfFileSystem()
    named = _SET.fullmatch(address)
    if named is None:
        pattern = address.removeprefix("hf://")
    else:
        pattern = _AS_PARQUET.format(name=named[1], split=named[2] or "train")
    try:
        found = cast("list[str]", sorted(files.glob(pattern)))
        is_table = [_write_hub_file(file, files, name) for name in found]
    except UsageError:
        raise
    except Exception as error:  # its client raises those of whatever sends its requests
        raise UsageError(f"{address} cannot be read: {error}.") from None
    if not found:
        raise UsageError(f"{address}: the hub has no such file; it looked for {pattern}.")
    return any(is_table)


def _write_hub_file(file: BinaryIO, files: Any, name: str) -> bool:
    with files.open(name, "rb") as content:
        if name.endswith(".parquet"):
            return _write_parquet(file, content)
        while chunk := content.read(_CHUNK_BYTES):
            file.write(chunk)
    return False


def _read_bucket(address: str) -> Iterator[bytes]:
    """A file of a bucket, with the keys and the endpoint that boto3 finds for itself."""
    boto3 = _import("boto3", "s3")
    bucket, _, key = address.removeprefix("s3://").partition("/")
    if not bucket or not key:
        raise UsageError(f"{address} names no file: s3://bucket/key.")
    try:
        found = boto3.client("s3").get_object(Bucket=bucket, Key=key)
        yield from found["Body"].iter_chunks(_CHUNK_BYTES)
    except import_module("botocore.exceptions").BotoCoreError as error:
        raise UsageError(f"{address} cannot be read: {error}.") from None
    except import_module("botocore.exceptions").ClientError as error:
        raise UsageError(f"{address} cannot be read: {error}.") from None


def _read_link(address: str) -> Iterator[bytes]:
    """What a link leads to, such as one that a bucket signed."""
    with httpx.stream("GET", address, follow_redirects=True, timeout=60.0) as answer:
        if answer.status_code != 200:
            raise UsageError(f"The link answers {answer.status_code}; ask for a new one.")
        yield from answer.iter_bytes(_CHUNK_BYTES)


def _import(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise UsageError(
            f"This needs the package {package}: pip install 'finetender[{extra}]'."
        ) from None
