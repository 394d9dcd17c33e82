"""Whether a finished adapter is what its job demands: names, shapes, finite values, trained.

The market calls ``check_adapter_archive`` on a node's upload before it pays. It needs to know the
base model's ``ModelShape`` (read from ``config.json`` when a zone is opened), the job's
``AdapterSpec`` and, for classification, nothing more: the number of labels is the owner's data's,
and the head's tensors must agree with each other.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import zipfile
import zlib
from array import array
from collections.abc import Mapping
from typing import IO, Any, cast

from workers.protocol.job_settings import ALL_LINEAR, match_modules
from workers.protocol.job_spec import AdapterKind, AdapterSpec
from workers.protocol.messages import ADAPTER_FILES
from workers.protocol.model_shape import ModelShape
from workers.protocol.safetensors_header import HeaderError, TensorEntry, read_header

CONFIG_NAME, WEIGHTS_NAME = ADAPTER_FILES[:2]
#: Labels an encoder's head may tell apart.
LABELS_MAX = 10_000
#: No value of a tuned prompt comes near it; a larger one is broken, or meant to break something.
PROMPT_PEAK_MAX = 1e3
_CONFIG_BYTES_MAX = 1024 * 1024
#: What the tokenizer's files and the card beside the weights may unpack to: the largest tokenizers
#: have some 40 MB.
_BESIDE_WEIGHTS_BYTES_MAX = 256 * 1024 * 1024
#: The directory at the end of a zip: 46 bytes and a name for each of a few files.
_DIRECTORY_BYTES_MAX = 64 * 1024
_CHUNK_BYTES = 1024 * 1024
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
#: What ``zipfile`` raises over damaged or hostile input.
_DAMAGE = (
    *(zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, EOFError, NotImplementedError),
    *(OSError, OverflowError, RuntimeError, ValueError),
)
#: A zip's end record without a comment, and the place of a 64-bit one before it.
_END_BYTES, _END_MARK = 22, b"PK\x05\x06"
_LOCATOR_BYTES, _LOCATOR_MARK = 20, b"PK\x06\x07"
_LINK = 0xA


class AdapterError(ValueError):
    """The adapter is not what the job demands; the text is a clause without a full stop."""


def check_adapter_archive(
    file: IO[bytes], *, shape: ModelShape, adapter: AdapterSpec, unpacked_limit_bytes: int
) -> str:
    """Refuse a zip that is not exactly the trained adapter of a job; the digest of its weights.

    Every bound is checked before what it bounds is read: the zip's directory, the tensors'
    header, the unpacked bytes. Memory stays at a few MB whatever the file claims.

    Parameters
    ----------
    file : binary file
        The zip, open for reading and seeking.
    shape : ModelShape
        Of the zone's base model.
    adapter : AdapterSpec
        Of the job.
    unpacked_limit_bytes : int
        Most bytes that all files may unpack to.

    Raises
    ------
    AdapterError
        With what is wrong.

    Returns
    -------
    str
        As ``check_weights``.
    """
    check_zip_directory(file)
    try:
        file.seek(0)
        wanted = count_weight_bytes(shape, adapter) + _BESIDE_WEIGHTS_BYTES_MAX
        with zipfile.ZipFile(file) as archive:
            _check_entries(archive, min(unpacked_limit_bytes, wanted))
            check_config(json.loads(archive.read(CONFIG_NAME)), adapter=adapter)
            size = archive.getinfo(WEIGHTS_NAME).file_size
            with archive.open(WEIGHTS_NAME) as weights:
                return check_weights(weights, size=size, shape=shape, adapter=adapter)
    except AdapterError:
        raise
    except _DAMAGE:
        raise AdapterError("it is not a whole, readable zip") from None


def check_zip_directory(file: IO[bytes], *, entries_max: int = len(ADAPTER_FILES)) -> None:
    """Refuse a zip whose directory is long, by its end record alone.

    ``zipfile`` reads the whole directory into memory when it opens a file; this must come first.
    The end record must be the last 22 bytes, as in every zip without a comment, so that
    ``zipfile`` finds the same one.

    Raises
    ------
    AdapterError
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _END_BYTES - _LOCATOR_BYTES))
    tail = file.read(_END_BYTES + _LOCATOR_BYTES)
    end = tail[-_END_BYTES:]
    if len(end) < _END_BYTES or not end.startswith(_END_MARK) or end[-2:] != b"\0\0":
        raise AdapterError("it is not a whole, readable zip")
    if tail[:-_END_BYTES].startswith(_LOCATOR_MARK):
        raise AdapterError("it is a 64-bit zip, which no adapter needs")
    entries = int.from_bytes(end[10:12], "little")
    directory = int.from_bytes(end[12:16], "little")
    if entries > entries_max or directory > _DIRECTORY_BYTES_MAX:
        raise AdapterError(f"it holds more than {entries_max} files")


def check_config(config: Any, *, adapter: AdapterSpec) -> None:
    """Refuse an ``adapter_config.json`` of another kind or size than the job's.

    Raises
    ------
    AdapterError
    """
    if not isinstance(config, dict):
        raise AdapterError(f"{CONFIG_NAME} is not an object")
    fields = cast(dict[str, Any], config)
    if adapter.kind is AdapterKind.LORA:
        wanted: dict[str, Any] = {"peft_type": "LORA", "r": adapter.rank}
        wanted["lora_alpha"] = adapter.alpha
        # earlier releases do not name what is off
        for name, is_on in (("use_rslora", adapter.rslora), ("use_dora", adapter.dora)):
            if is_on or fields.get(name):
                wanted[name] = is_on
    else:
        wanted = {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": adapter.virtual_tokens}
    for name, value in wanted.items():
        if fields.get(name) != value:
            raise AdapterError(f"{CONFIG_NAME} says {name} = {str(fields.get(name))[:40]}")


def check_weights(file: IO[bytes], *, size: int, shape: ModelShape, adapter: AdapterSpec) -> str:
    """Refuse tensors of other names, types or shapes, values not finite, and untrained adapters.

    Parameters
    ----------
    file : binary file
        A safetensors file, read once from its beginning to its end.
    size : int
        Its bytes.

    Returns
    -------
    str
        SHA-256 in hex of names and values, however the file is laid out.

    Raises
    ------
    AdapterError
    """
    try:
        entries = read_header(file, size=size)
    except HeaderError as error:
        raise AdapterError(f"{WEIGHTS_NAME} is no safetensors file: {error}") from None
    _check_tensors(entries, shape=shape, adapter=adapter)
    is_trained = adapter.kind is not AdapterKind.LORA
    digests: dict[str, bytes] = {}
    for entry in entries:
        peak, digests[entry.name] = _read_values(file, entry)
        if not math.isfinite(peak):
            raise AdapterError(f"{entry.name} holds values that are not finite numbers")
        if entry.name == PROMPT_NAME and peak > PROMPT_PEAK_MAX:
            raise AdapterError(f"{entry.name} holds values above {PROMPT_PEAK_MAX:g}")
        # The second matrix begins at zero: where all of them are still there, nothing was learnt.
        is_trained = is_trained or (entry.name.endswith(_SECOND) and peak != 0.0)
    if not is_trained:
        raise AdapterError("it was not trained: its second matrices are zero")
    whole = hashlib.sha256()
    for name in sorted(digests):
        whole.update(name.encode() + b"\0" + digests[name])
    return whole.hexdigest()


_FIRST, _SECOND = ".lora_A.weight", ".lora_B.weight"
_MAGNITUDE = ".lora_magnitude_vector"
_PREFIX = "base_model.model."
PROMPT_NAME = "prompt_embeddings"


def list_adapter_tensors(
    shape: ModelShape, adapter: AdapterSpec, *, labels: int = 0
) -> dict[str, tuple[int, ...]]:
    """PEFT's names and shapes of the tensors that a job's adapter has.

    Parameters
    ----------
    labels : int
        Classes of an encoder's head.

    Raises
    ------
    SettingError
        When a target module is no projection of the model.
    """
    tensors: dict[str, tuple[int, ...]] = {}
    if adapter.kind is AdapterKind.SOFT_PROMPT:
        tensors[PROMPT_NAME] = (adapter.virtual_tokens, shape.hidden_size)
    else:
        projections = {part.name: part for part in shape.list_projections()}
        for name in match_modules(adapter.target_modules or (ALL_LINEAR,), projections):
            part = projections[name]
            tensors[f"{_PREFIX}{name}{_FIRST}"] = (adapter.rank, part.inputs)
            tensors[f"{_PREFIX}{name}{_SECOND}"] = (part.outputs, adapter.rank)
            if adapter.dora:
                tensors[f"{_PREFIX}{name}{_MAGNITUDE}"] = (part.outputs,)
    if shape.encoder:
        for name, head_shape in shape.list_head_shapes(labels=labels).items():
            tensors[f"{_PREFIX}{name}"] = head_shape
    return tensors


def count_weight_bytes(shape: ModelShape, adapter: AdapterSpec) -> int:
    """Most bytes that the tensors of a job's adapter take, of a head with as many labels as can be.

    Parameters
    ----------
    shape, adapter

    Raises
    ------
    SettingError
        When a target module is no projection of the model.
    """
    tensors = list_adapter_tensors(shape, adapter, labels=LABELS_MAX)
    return sum(4 * math.prod(sizes) for sizes in tensors.values())


def _check_tensors(
    entries: tuple[TensorEntry, ...], *, shape: ModelShape, adapter: AdapterSpec
) -> None:
    found = {entry.name: entry for entry in entries}
    labels = _find_labels(found, shape) if shape.encoder else 0
    wanted = list_adapter_tensors(shape, adapter, labels=labels)
    for name, sizes in wanted.items():
        entry = found.get(name)
        if entry is None:
            raise AdapterError(f"it lacks {name}")
        if entry.shape != sizes:
            raise AdapterError(
                f"{name} is {_format(entry.shape)} and the job's is {_format(sizes)}"
            )
        if entry.dtype != "F32":
            raise AdapterError(f"{name} is of type {entry.dtype}, not F32")
    for name in found:
        if name not in wanted:
            raise AdapterError(f"it holds {name[:120]!r}, which the job's adapter does not have")


def _find_labels(found: Mapping[str, TensorEntry], shape: ModelShape) -> int:
    """How many labels the uploaded head tells apart; all of its tensors are compared with it."""
    *_, bias = shape.list_head_shapes(labels=0)
    entry = found.get(f"{_PREFIX}{bias}")
    if entry is None or len(entry.shape) != 1 or not 2 <= entry.shape[0] <= LABELS_MAX:
        raise AdapterError("it has no classification head")
    return entry.shape[0]


def _read_values(file: IO[bytes], entry: TensorEntry) -> tuple[float, bytes]:
    """The largest absolute value of a tensor, not finite if one is not; and its digest."""
    peak, digest = 0.0, hashlib.sha256()
    left = entry.end - entry.start
    while left:
        chunk = file.read(min(left, _CHUNK_BYTES))
        if not chunk or len(chunk) % 4:
            raise AdapterError(f"{WEIGHTS_NAME} ends early")
        left -= len(chunk)
        digest.update(chunk)
        values = array("f", chunk)
        if sys.byteorder == "big":
            values.byteswap()
        # A sum of finite 32-bit numbers is finite in 64 bits; one that is not makes it so.
        if not math.isfinite(sum(values)):
            return math.inf, b""
        peak = max(peak, max(values), -min(values))
    return peak, digest.digest()


def _format(sizes: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in sizes) or "a single value"


def _check_entries(archive: zipfile.ZipFile, limit: int) -> None:
    entries = archive.infolist()
    names = [entry.filename for entry in entries]
    for entry in entries:
        # Flat names only: none of them can lead out of the directory they are unpacked to.
        if entry.filename not in ADAPTER_FILES:
            raise AdapterError(f"it holds {entry.filename[:80]!r}, which no adapter has")
        if entry.external_attr >> 28 == _LINK:
            raise AdapterError(f"{entry.filename} is a link")
        if entry.flag_bits & 0x1 or entry.compress_type not in _METHODS:
            raise AdapterError(f"{entry.filename} is encrypted or compressed in an unusual way")
    if len(set(names)) != len(names):
        raise AdapterError("it holds a file twice")
    for name in (CONFIG_NAME, WEIGHTS_NAME):
        if name not in names:
            raise AdapterError(f"{name} is missing")
    if archive.getinfo(CONFIG_NAME).file_size > _CONFIG_BYTES_MAX:
        raise AdapterError(f"{CONFIG_NAME} is too large")
    unpacked = 0
    for entry in entries:
        # Read to the end: the directory's sizes are only claims, and the check sum is at the end.
        with archive.open(entry) as part:
            while chunk := part.read(_CHUNK_BYTES):
                unpacked += len(chunk)
                if unpacked > limit:
                    raise AdapterError(f"it unpacks to more than {limit:,} bytes")
