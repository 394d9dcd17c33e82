"""Adapters in other forms: what a node is asked to make of one, and what it answers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import IO

from workers.protocol.job_spec import BaseModelRef, BlobRef

#: A tar with the merged weights as ``transformers`` loads them, and GGUF files.
MERGED, F16, Q8_0 = "merged", "gguf-f16", "gguf-q8_0"
FORMS = (MERGED, F16, Q8_0)

#: Files of merged weights: one for each GB, and few beside them.
_FILES_MAX = 5_000
_NAME = re.compile(rb"[A-Za-z0-9_][A-Za-z0-9._-]{0,98}")
_GGUF_START = b"GGUF\x03\0\0\0"
_BLOCK = 512


@dataclass(frozen=True, slots=True)
class ExportTask:
    """An adapter to be merged into its base model and written in a form."""

    base_model: BaseModelRef
    adapter: BlobRef
    form: str


class ExportFileError(ValueError):
    """A file is none of its form; the text is a clause without a full stop."""


def check_export_file(file: IO[bytes], *, form: str) -> None:
    """Refuse a file that is none of its form, by its first bytes or by its list of files.

    Raises
    ------
    ExportFileError
    """
    file.seek(0)
    if form == MERGED:
        names = _list_tar(file)
        if b"config.json" not in names or not any(n.endswith(b".safetensors") for n in names):
            raise ExportFileError("it holds no model")
    elif file.read(len(_GGUF_START)) != _GGUF_START:
        raise ExportFileError("it is no GGUF file of version 3")


def _list_tar(file: IO[bytes]) -> set[bytes]:
    """Names of a tar's files: plain files with plain names, and no header but one for each."""
    names: set[bytes] = set()
    while len(names) < _FILES_MAX:
        header = file.read(_BLOCK)
        if not header.strip(b"\0"):
            return names
        name, size = header[:100].rstrip(b"\0"), header[124:136].strip(b"\0 ")
        is_plain = header[156:157] in (b"0", b"\0") and header[257:262] == b"ustar"
        if not is_plain or not _NAME.fullmatch(name) or not re.fullmatch(rb"[0-7]{1,12}", size):
            raise ExportFileError("it is no plain tar of plain files")
        if name in names:
            raise ExportFileError("a file stands in it twice")
        names.add(name)
        blocks = -(-int(size, 8) // _BLOCK)
        file.seek(blocks * _BLOCK, 1)
    raise ExportFileError(f"it holds more than {_FILES_MAX} files")
