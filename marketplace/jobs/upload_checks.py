"""Checking what nodes upload before anyone else loads it: safetensors files and adapter zips.

Nothing is unpacked to disk and nothing is ever unpickled.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from typing import IO

from marketplace.common.errors import UserError
from workers.protocol.messages import ADAPTER_FILES

CONFIG_NAME, WEIGHTS_NAME = ADAPTER_FILES[:2]
_CONFIG_BYTES_MAX = 1024 * 1024
_HEADER_BYTES_MAX = 32 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
#: What ``zipfile`` raises over damaged or hostile input.
_DAMAGE = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
)
#: Bytes of the pointer before a safetensors header.
_POINTER_BYTES = 8


def check_safetensors(file: IO[bytes], *, size: int, what: str) -> None:
    """Refuse what is not a whole safetensors file; leaves the file where the header ends.

    The format: eight bytes of header length, little-endian; a JSON object that gives each tensor's
    place; then the tensors, to the end of the file.

    Raises
    ------
    UserError
        ``invalid_checkpoint``.
    """

    def refuse(reason: str) -> UserError:
        return UserError("invalid_checkpoint", f"{what} is no safetensors file: {reason}.")

    length = int.from_bytes(file.read(_POINTER_BYTES), "little")
    if not 2 <= length <= min(_HEADER_BYTES_MAX, size - _POINTER_BYTES):
        raise refuse("its header does not fit")
    try:
        header = json.loads(file.read(length))
    except (ValueError, RecursionError):
        raise refuse("its header is not JSON") from None
    if not isinstance(header, dict):
        raise refuse("its header is not an object")
    end = 0
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
        if (
            not isinstance(offsets, list)
            or len(offsets) != 2
            or not all(isinstance(at, int) and not isinstance(at, bool) for at in offsets)
            or not 0 <= offsets[0] <= offsets[1]
        ):
            raise refuse("a tensor has no place in it")
        end = max(end, offsets[1])
    if header.keys() <= {"__metadata__"}:
        raise refuse("it holds no tensor")
    if end != size - _POINTER_BYTES - length:
        raise refuse("its tensors and its length disagree, as if cut off")


def check_adapter_zip(file: IO[bytes], *, unpacked_limit_bytes: int) -> None:
    """Refuse a zip that is not exactly an adapter's directory.

    Raises
    ------
    UserError
        ``invalid_adapter``: not a zip, a name that leads elsewhere or is not expected, a part
        missing or damaged, or more unpacked bytes than the limit.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            _check_entries(archive, unpacked_limit_bytes)
    except _DAMAGE:
        raise _build_refusal("it is not a whole, readable zip") from None


def _check_entries(archive: zipfile.ZipFile, limit: int) -> None:
    entries = archive.infolist()
    names = [entry.filename for entry in entries]
    for entry in entries:
        # Flat names only: none of them can lead out of the directory they are unpacked to.
        if entry.filename not in ADAPTER_FILES:
            raise _build_refusal(f"it holds {entry.filename[:80]!r}, which no adapter has")
        if entry.external_attr >> 28 == 0xA:
            raise _build_refusal(f"{entry.filename} is a link")
        if entry.flag_bits & 0x1 or entry.compress_type not in _METHODS:
            raise _build_refusal(f"{entry.filename} is encrypted or compressed in an unusual way")
    if len(set(names)) != len(names):
        raise _build_refusal("it holds a file twice")
    for name in (CONFIG_NAME, WEIGHTS_NAME):
        if name not in names:
            raise _build_refusal(f"{name} is missing")
    unpacked = 0
    for entry in entries:
        # Read to the end: the directory's sizes are only claims, and the check sum is at the end.
        with archive.open(entry) as part:
            while chunk := part.read(_CHUNK_BYTES):
                unpacked += len(chunk)
                if unpacked > limit:
                    raise _build_refusal(f"it unpacks to more than {limit:,} bytes")
    _check_config(archive)
    with archive.open(WEIGHTS_NAME) as weights:
        try:
            check_safetensors(
                weights, size=archive.getinfo(WEIGHTS_NAME).file_size, what=WEIGHTS_NAME
            )
        except UserError as error:
            raise UserError("invalid_adapter", error.message) from None


def _check_config(archive: zipfile.ZipFile) -> None:
    if archive.getinfo(CONFIG_NAME).file_size > _CONFIG_BYTES_MAX:
        raise _build_refusal(f"{CONFIG_NAME} is too large")
    try:
        config = json.loads(archive.read(CONFIG_NAME))
    except (ValueError, RecursionError):
        raise _build_refusal(f"{CONFIG_NAME} is not JSON") from None
    if not isinstance(config, dict) or not isinstance(config.get("peft_type"), str):
        raise _build_refusal(f"{CONFIG_NAME} names no peft_type")


def _build_refusal(reason: str) -> UserError:
    return UserError("invalid_adapter", f"The adapter cannot be taken: {reason}.")
