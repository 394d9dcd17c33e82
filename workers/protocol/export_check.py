"""The tensors of an export that a node made, found without trusting the file.

The market takes nothing else of it: ``list_export_tensors`` says where the values stand. Every
length is checked before what it bounds is read, and memory stays at some MB whatever the file
claims.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import IO

import numpy as np

from workers.protocol.exports import F16, MERGED, Q8_0
from workers.protocol.safetensors_header import HeaderError, read_header

#: Files of merged weights: one for each GB, and few beside them.
_FILES_MAX = 5_000
_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
CONFIG, INDEX = "config.json", "model.safetensors.index.json"
#: What may stand beside the weights; the market writes its own.
FILES_BESIDE = frozenset(
    {
        *(CONFIG, INDEX, "generation_config.json", "tokenizer.json"),
        *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
        *("tokenizer.model", "vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja"),
    }
)
_TAR_BLOCK = 512
#: GGUF: entries of its header, bytes of one text and of the header.
_ENTRIES_MAX, _TEXT_BYTES_MAX, _HEADER_BYTES_MAX = 100_000, 4 * 1024 * 1024, 256 * 1024 * 1024
_ALIGNMENT = 32
#: Bytes of GGUF's values by the number of their type; 8 is a text and 9 a list.
_VALUE_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_TEXT, _LIST = 8, 9
#: GGUF's types of tensors by number: name, weights and bytes of a block.
_GGUF_TYPES = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 8: ("Q8_0", 32, 34)}
_TYPES_OF_FORM = {F16: {"F32", "F16"}, Q8_0: {"F32", "F16", "Q8_0"}}
#: Whole blocks of every type.
_CHUNK_BYTES = 34 * 128 * 1024


class ExportFileError(ValueError):
    """A file is not of its form; the text is a clause without a full stop."""


@dataclass(frozen=True, slots=True)
class FoundTensor:
    """A tensor in a file."""

    name: str
    #: Such as ``F16`` or ``Q8_0``.
    dtype: str
    #: As numpy orders sizes.
    shape: tuple[int, ...]
    #: Place of its values from the beginning of the file, and their bytes.
    at: int
    bytes: int


def list_export_tensors(
    file: IO[bytes], *, form: str, most: int | None = None
) -> tuple[FoundTensor, ...]:
    """The tensors of a file in a form, in the file's order; all of their values are finite.

    Parameters
    ----------
    most : int, optional
        More tensors than these are refused before they are collected.

    Raises
    ------
    ExportFileError
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    most = _ENTRIES_MAX if most is None else min(most, _ENTRIES_MAX)
    if form == MERGED:
        found = _list_merged(file, size, most=most)
    else:
        found = _list_gguf(_Header(file, size), form, most=most)
    if len({tensor.name for tensor in found}) != len(found):
        raise ExportFileError("a tensor stands in it twice")
    for tensor in found:
        file.seek(tensor.at)
        _check_finite(file, tensor.name, size=tensor.bytes, dtype=tensor.dtype)
    return found


def _list_merged(file: IO[bytes], size: int, *, most: int) -> tuple[FoundTensor, ...]:
    found: list[FoundTensor] = []
    for name, start, length in _list_tar(file, size=size):
        if _WEIGHTS.fullmatch(name):
            # one file's header is bounded, and so what it adds
            found += _read_weights(file, name, start=start, size=length)
            if len(found) > most:
                raise ExportFileError(f"it holds more than {most:,} tensors")
        elif name not in FILES_BESIDE:
            raise ExportFileError(f"it holds {name!r}, which no model has")
    return tuple(found)


def _list_tar(file: IO[bytes], *, size: int) -> Iterator[tuple[str, int, int]]:
    """Name, place and bytes of a tar's files, which are plain and have one header each."""
    at, names = 0, set[bytes]()
    for _ in range(_FILES_MAX):
        file.seek(at)
        header = file.read(_TAR_BLOCK)
        if len(header) == _TAR_BLOCK and not header.strip(b"\0"):
            return
        name, length = header[:100].rstrip(b"\0"), header[124:136].strip(b"\0 ")
        is_plain = header[156:157] in (b"0", b"\0") and header[257:262] == b"ustar"
        is_named = re.fullmatch(rb"[A-Za-z0-9_][A-Za-z0-9._-]{0,98}", name) is not None
        if not is_plain or not is_named or not re.fullmatch(rb"[0-7]{1,12}", length):
            raise ExportFileError("it is no plain tar of plain files")
        if name in names:
            raise ExportFileError(f"it holds {name.decode()!r} twice")
        names.add(name)
        start, count = at + _TAR_BLOCK, int(length, 8)
        at = start - (-count // _TAR_BLOCK) * _TAR_BLOCK
        if at > size:
            raise ExportFileError("it is cut off")
        yield name.decode(), start, count
    raise ExportFileError(f"it holds more than {_FILES_MAX} files")


def _read_weights(file: IO[bytes], name: str, *, start: int, size: int) -> Iterator[FoundTensor]:
    file.seek(start)
    try:
        entries = read_header(file, size=size)
    except HeaderError as error:
        raise ExportFileError(f"{name} is no safetensors file: {error}") from None
    begin = file.tell()
    for one in entries:
        yield FoundTensor(one.name, one.dtype, one.shape, begin + one.start, one.end - one.start)


def _list_gguf(header: _Header, form: str, *, most: int) -> tuple[FoundTensor, ...]:
    if header.read(4) != b"GGUF" or header.read_number(4) != 3:
        raise ExportFileError("it is no GGUF file of version 3")
    count, values = header.read_number(8), header.read_number(8)
    if count > most:
        raise ExportFileError(f"it holds more than {most:,} tensors")
    if values > _ENTRIES_MAX:
        raise ExportFileError(f"it holds more than {_ENTRIES_MAX:,} entries")
    for _ in range(values):
        if header.read_text() == "general.alignment":
            raise ExportFileError("it is aligned in an unusual way")
        header.skip_value(header.read_number(4))
    tensors = [_read_tensor(header, form) for _ in range(count)]
    begin, place = header.align(), 0
    for tensor in tensors:
        if tensor.at != place or begin + place + tensor.bytes > header.size:
            raise ExportFileError("its tensors overlap, leave a gap or are cut off")
        place = _align(place + tensor.bytes)
    if header.size > begin + place:
        raise ExportFileError("something follows its tensors")
    return tuple(replace(tensor, at=begin + tensor.at) for tensor in tensors)


def _read_tensor(header: _Header, form: str) -> FoundTensor:
    """A tensor whose place is from the end of the header."""
    name, dimensions = header.read_text(), header.read_number(4)
    if not 1 <= dimensions <= 4:
        raise ExportFileError("a tensor has no shape")
    sizes = tuple(header.read_number(8) for _ in range(dimensions))
    dtype, block, block_bytes = _GGUF_TYPES.get(header.read_number(4), ("", 1, 0))
    if dtype not in _TYPES_OF_FORM[form] or not sizes[0] or sizes[0] % block:
        raise ExportFileError(f"{name[:80]!r} is of a type that the form does not have")
    length = math.prod(sizes) // block * block_bytes
    return FoundTensor(name, dtype, sizes[::-1], header.read_number(8), length)


class _Header:
    """Reads a GGUF file's header piece by piece, never more than is there or allowed."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self.file, self.size, self._left = file, size, min(size, _HEADER_BYTES_MAX)

    def read(self, count: int) -> bytes:
        self._take(count)
        return self.file.read(count)

    def read_number(self, count: int) -> int:
        return int.from_bytes(self.read(count), "little")

    def read_text(self) -> str:
        count = self.read_number(8)
        if count > _TEXT_BYTES_MAX:
            raise ExportFileError("a text in its header is too long")
        return self.read(count).decode("utf-8", "replace")

    def skip_value(self, kind: int) -> None:
        if kind == _TEXT:
            self.read_text()
        elif kind == _LIST:
            of, count = self.read_number(4), self.read_number(8)
            if of in _VALUE_BYTES:
                self._skip(count * _VALUE_BYTES[of])
            elif of == _TEXT and 8 * count <= self._left:
                for _ in range(count):
                    self.read_text()
            else:
                raise ExportFileError("a list in its header is too long or none of values")
        elif kind in _VALUE_BYTES:
            self._skip(_VALUE_BYTES[kind])
        else:
            raise ExportFileError("a value in its header is of no known type")

    def align(self) -> int:
        return _align(self.file.tell())

    def _skip(self, count: int) -> None:
        self._take(count)
        self.file.seek(count, os.SEEK_CUR)

    def _take(self, count: int) -> None:
        if count > self._left:
            raise ExportFileError("its header is cut off or too long")
        self._left -= count


def _align(at: int) -> int:
    return -(-at // _ALIGNMENT) * _ALIGNMENT


def _check_finite(file: IO[bytes], name: str, *, size: int, dtype: str) -> None:
    """Read the values of a tensor, from where the file stands."""
    while size:
        chunk = file.read(min(size, _CHUNK_BYTES))
        if not chunk:
            raise ExportFileError("it is cut off")
        size -= len(chunk)
        if not _is_finite(chunk, dtype):
            raise ExportFileError(f"{name[:80]} holds values that are not finite numbers")


def _is_finite(chunk: bytes, dtype: str) -> bool:
    floats: Mapping[str, str] = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
    if dtype in floats:
        return bool(np.isfinite(np.frombuffer(chunk, floats[dtype])).all())
    if dtype == "BF16":
        exponents = np.frombuffer(chunk, "<u2") & 0x7F80
        return bool((exponents != 0x7F80).all())
    if dtype == "Q8_0":
        scales = np.frombuffer(chunk, np.uint8).reshape(-1, 34)[:, :2].copy().view("<f2")
        return bool(np.isfinite(scales).all())
    raise ExportFileError(f"a tensor is of type {dtype}, which no base's weights are")
