"""A zone's base model's weights, read piece by piece to compare with what nodes made of them.

The market still loads no model: it reads headers and single rows, from this machine or by ranges
from the hub.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import huggingface_hub
import numpy as np

from marketplace.fleet.base_models import find_bundled_directory
from marketplace.fleet.models import Zone
from workers.protocol.safetensors_header import VALUE_BYTES, TensorEntry, read_header

_SINGLE = "model.safetensors"
_INDEX = f"{_SINGLE}.index.json"
#: What one request to the hub fetches at least.
BLOCK_BYTES = 64 * 1024
_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file, which stays open while it is used."""

    file: IO[bytes]
    dtype: str
    shape: tuple[int, ...]
    #: Of its first value.
    at: int

    @property
    def rows(self) -> int:
        """A vector is one row."""
        return self.shape[0] if len(self.shape) > 1 else 1

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) // self.rows * VALUE_BYTES[self.dtype]

    @property
    def is_far(self) -> bool:
        """Whether it is read by ranges from the hub."""
        from huggingface_hub.hf_file_system import HfFileSystemFile

        return isinstance(self.file, HfFileSystemFile)

    def read_row(self, row: int) -> np.ndarray:
        """One row in float32."""
        return self.read_rows(row, 1)

    def read_rows(self, first: int, count: int) -> np.ndarray:
        """Some rows in float32, one after another."""
        self.file.seek(self.at + first * self.row_bytes)
        return read_floats(self.file.read(count * self.row_bytes), self.dtype)

    def read(self) -> np.ndarray:
        """All of it in float32."""
        self.file.seek(self.at)
        content = self.file.read(math.prod(self.shape) * VALUE_BYTES[self.dtype])
        return read_floats(content, self.dtype).reshape(self.shape)


def read_floats(content: bytes, dtype: str) -> np.ndarray:
    """Values in float32, by safetensors' name of their type."""
    if dtype == "BF16":
        return (np.frombuffer(content, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(content, _FLOATS[dtype]).astype("<f4")


def list_stored_tensors(file: IO[bytes]) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file that one seeks in.

    Raises
    ------
    HeaderError
    """
    size = file.seek(0, 2)
    file.seek(0)
    entries: tuple[TensorEntry, ...] = read_header(file, size=size, limit_bytes=_HEADER_BYTES_MAX)
    begin = file.tell()
    return {
        one.name: StoredTensor(file, one.dtype, one.shape, begin + one.start) for one in entries
    }


#: The market chose the base model; the largest have thousands of experts.
_HEADER_BYTES_MAX = 64 * 1024 * 1024


@contextmanager
def open_base_weights(zone: Zone) -> Iterator[dict[str, StoredTensor]]:
    """The tensors of a zone's base model by name, in the order of their names.

    Raises
    ------
    OSError
        They cannot be had now.
    ValueError
        The base model has no safetensors files.
    """
    open_file = _find_opener(zone)
    with ExitStack() as stack:
        try:
            with open_file(_INDEX) as file:
                index: dict[str, Any] = json.loads(file.read())
            names = sorted(set(index["weight_map"].values()))
        except FileNotFoundError:
            names = [_SINGLE]
        found: dict[str, StoredTensor] = {}
        for name in names:
            found |= list_stored_tensors(stack.enter_context(open_file(name)))
        yield dict(sorted(found.items()))


def _find_opener(zone: Zone) -> Callable[[str], IO[bytes]]:
    source, revision = zone.base_model_source, zone.base_model_revision or None
    directory = find_bundled_directory(source)
    if directory is not None:
        return lambda name: (directory / name).open("rb")
    return partial(_open_from_hub, source, revision)


def _open_from_hub(source: str, revision: str | None, name: str) -> IO[bytes]:
    here = huggingface_hub.try_to_load_from_cache(source, name, revision=revision or "main")
    if isinstance(here, str):
        return Path(here).open("rb")
    path = f"{source}@{revision or 'main'}/{name}"
    # It has all that is read with; its library does not say so.
    return cast(IO[bytes], huggingface_hub.HfFileSystem().open(path, "rb", block_size=BLOCK_BYTES))
