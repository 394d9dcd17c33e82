"""Reading the header of a safetensors file without trusting it.

The format: eight bytes of header length, little-endian; a JSON object that gives each tensor's
type, shape and place; then the tensors, to the end of the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO, Any, cast

#: Bytes of the header's length.
PREFIX_BYTES = 8
#: A header larger than this is refused before it is read. One entry takes about 120 bytes.
HEADER_BYTES_MAX = 2 * 1024 * 1024
#: Bytes of a value by safetensors' name of its type.
VALUE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1}
_DIMENSIONS_MAX = 8


class HeaderError(ValueError):
    """The file is no whole safetensors file; the text says why, without a full stop."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies in the file, and what it is."""

    name: str
    #: Such as ``F32``.
    dtype: str
    shape: tuple[int, ...]
    #: From the end of the header.
    start: int
    end: int


def read_header(
    file: IO[bytes], *, size: int, limit_bytes: int = HEADER_BYTES_MAX
) -> tuple[TensorEntry, ...]:
    """The tensors of a file in the order of their places; leaves it where the header ends.

    Parameters
    ----------
    size : int
        Bytes of the whole file.
    limit_bytes : int
        Longer headers are refused before they are read.

    Raises
    ------
    HeaderError
        When the header is too long or no header, when a tensor's bytes are not those of its type
        and shape, or when the tensors leave a gap, overlap, or do not fill the file.
    """
    length = int.from_bytes(file.read(PREFIX_BYTES), "little")
    if not 2 <= length <= size - PREFIX_BYTES:
        raise HeaderError("its header does not fit")
    if length > limit_bytes:
        raise HeaderError(f"its header has {length:,} bytes, more than {limit_bytes:,}")
    try:
        header = json.loads(file.read(length))
    except (ValueError, RecursionError):
        raise HeaderError("its header is not JSON") from None
    if not isinstance(header, dict):
        raise HeaderError("its header is not an object")
    members = cast(dict[str, Any], header)
    entries = [_parse_entry(name, value) for name, value in members.items() if name != _METADATA]
    if not entries:
        raise HeaderError("it holds no tensor")
    entries.sort(key=lambda entry: (entry.start, entry.end))
    at = 0
    for entry in entries:
        if entry.start != at:
            raise HeaderError("its tensors overlap or leave a gap")
        at = entry.end
    if at != size - PREFIX_BYTES - length:
        raise HeaderError("its tensors and its length disagree, as if cut off")
    return tuple(entries)


def write_header(entries: Iterable[TensorEntry]) -> bytes:
    """A header that says the tensors' names, types and shapes and nothing else, in this order."""
    header: dict[str, Any] = {_METADATA: {"format": "pt"}}
    at = 0
    for entry in entries:
        end = at + entry.end - entry.start
        header[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    # as the library pads it, so that tensors begin at a multiple of eight
    text += b" " * (-len(text) % PREFIX_BYTES)
    return len(text).to_bytes(PREFIX_BYTES, "little") + text


_METADATA = "__metadata__"


def _parse_entry(name: str, value: Any) -> TensorEntry:
    fields = cast(dict[str, Any], value) if isinstance(value, dict) else {}
    dtype = fields.get("dtype")
    shape, offsets = _parse_sizes(fields.get("shape")), _parse_sizes(fields.get("data_offsets"))
    if offsets is None or len(offsets) != 2:
        raise HeaderError("a tensor has no place in it")
    if not isinstance(dtype, str) or dtype not in VALUE_BYTES:
        raise HeaderError("a tensor is of a type that is not supported")
    if shape is None or len(shape) > _DIMENSIONS_MAX:
        raise HeaderError("a tensor has no shape")
    start, end = offsets
    if end - start != math.prod(shape) * VALUE_BYTES[dtype]:
        raise HeaderError("a tensor's bytes are not those of its shape")
    return TensorEntry(name, dtype, shape, start, end)


def _parse_sizes(value: Any) -> tuple[int, ...] | None:
    """Whole numbers from 0; ``None`` for anything else."""
    if not isinstance(value, list):
        return None
    sizes: list[int] = []
    for size in cast(list[Any], value):
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            return None
        sizes.append(size)
    return tuple(sizes)
