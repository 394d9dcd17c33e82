"""An export as its owner gets it: a node's numbers in a file that the market lays out.

Header, names, configuration, tokenizer and chat template are the base model's own, as the market
has them. Of what a node sent only values are taken, after rows of them have been compared.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from marketplace.common.errors import UserError
from marketplace.exports.merged_values import MergedRows, compare_rows, promote
from marketplace.exports.models import Export
from marketplace.exports.spliced_file import Piece, SplicedFile
from marketplace.fleet.base_models import read_generation_config, read_model_config
from marketplace.fleet.base_weights import StoredTensor, list_stored_tensors, open_base_weights
from marketplace.fleet.selectors import get_model_shape
from marketplace.jobs.adapter_files import read_tokenizer_texts, write_json
from marketplace.jobs.models import Artifact, Job
from marketplace.jobs.spooling import CHUNK_BYTES, SpooledFile
from workers.protocol.adapter_check import WEIGHTS_NAME
from workers.protocol.export_check import (
    CONFIG,
    INDEX,
    ExportFileError,
    FoundTensor,
    list_export_tensors,
)
from workers.protocol.exports import MERGED, ExportError, build_index, plan_shards
from workers.protocol.gguf_head import begin_gguf, count_tensor_bytes
from workers.protocol.safetensors_header import TensorEntry, write_header

_ALIGNMENT, _TAR_BLOCK = 32, 512


@contextmanager
def compose_export(export: Export, upload: SpooledFile) -> Iterator[SpooledFile]:
    """The file of an export around the values of a node's file, once they were compared.

    Raises
    ------
    ExportFileError
        The values are not those of the base model with the adapter in it.
    UserError
        ``base_unreachable`` (503): the base model cannot be compared with now.
    """
    job = export.job
    with ExitStack() as stack:
        try:
            base = stack.enter_context(open_base_weights(job.zone))
            config = read_model_config(job.zone.base_model_source, job.zone.base_model_revision)
            texts = read_tokenizer_texts(job)
            adapter = stack.enter_context(_open_adapter(export.artifact))
        except (OSError, UserError) as error:
            raise UserError("base_unreachable", f"{error}", status=503) from error
        # It names code in the base model's own repository.
        config.pop("auto_map", None)
        # GGUF has one tensor more where positions are scaled by factors.
        most = len(base) + (export.form != MERGED)
        listed = list_export_tensors(upload.file, form=export.form, most=most)
        found = {tensor.name: tensor for tensor in listed}
        if export.form == MERGED:
            names = {name: name for name in base}
            pieces = _lay_out_merged(job, upload.file, found, base=base, config=config, texts=texts)
        else:
            names, pieces = _lay_out_gguf(
                export, upload.file, found, base=base, config=config, texts=texts
            )
        transposed = get_model_shape(job.zone).transposed
        compare_rows(
            upload.file,
            found,
            rows=MergedRows(base, adapter, job.terms.adapter, transposed, config),
            names=names,
            gguf_config=None if export.form == MERGED else config,
        )
        made = SplicedFile(pieces)
        digest = hashlib.sha256()
        while chunk := made.read(CHUNK_BYTES):
            digest.update(chunk)
        yield SpooledFile(file=made, sha256=digest.hexdigest(), bytes=made.size)  # type: ignore[arg-type]


@contextmanager
def _open_adapter(artifact: Artifact) -> Iterator[dict[str, StoredTensor]]:
    with (
        artifact.file.open("rb") as file,
        zipfile.ZipFile(file) as archive,
        archive.open(WEIGHTS_NAME) as packed,
        tempfile.TemporaryFile() as weights,
    ):
        while chunk := packed.read(CHUNK_BYTES):
            weights.write(chunk)
        yield list_stored_tensors(weights)


def _lay_out_merged(
    job: Job,
    file: IO[bytes],
    found: Mapping[str, FoundTensor],
    *,
    base: Mapping[str, StoredTensor],
    config: Mapping[str, Any],
    texts: Mapping[str, bytes],
) -> list[Piece]:
    """A tar with the model as ``transformers`` loads it."""
    _compare_names(found.keys(), base.keys())
    for name, tensor in found.items():
        _compare_shapes(name, tensor.shape, base[name].shape)
        wanted = promote(base[name].dtype, config)
        if tensor.dtype != wanted:
            raise ExportFileError(f"{name} is of type {tensor.dtype}, not {wanted}")
    files = {**texts, CONFIG: write_json(config)}
    zone = job.zone
    generation = read_generation_config(zone.base_model_source, zone.base_model_revision)
    if generation is not None:
        files["generation_config.json"] = write_json(generation)
    shards = plan_shards({name: found[name].bytes for name in base})
    if len(shards) > 1:
        files[INDEX] = write_json(build_index(shards))
    pieces: list[Piece] = []
    for name, text in sorted(files.items()):
        pieces += _pack(name, [text])
    for name, tensors in shards.items():
        of_shard = [found[tensor] for tensor in tensors]
        head = write_header(
            TensorEntry(one.name, one.dtype, one.shape, 0, one.bytes) for one in of_shard
        )
        pieces += _pack(name, [head, *((file, one.at, one.bytes) for one in of_shard)])
    return [*pieces, bytes(2 * _TAR_BLOCK)]


def _pack(name: str, pieces: list[Piece]) -> list[Piece]:
    """A file of a tar: no owner, no moment."""
    entry = tarfile.TarInfo(name)
    entry.size = SplicedFile(pieces).size
    return [entry.tobuf(tarfile.GNU_FORMAT), *pieces, bytes(-entry.size % _TAR_BLOCK)]


def _lay_out_gguf(
    export: Export,
    file: IO[bytes],
    found: Mapping[str, FoundTensor],
    *,
    base: Mapping[str, StoredTensor],
    config: Mapping[str, Any],
    texts: Mapping[str, bytes],
) -> tuple[dict[str, str], list[Piece]]:
    """Names in the base model by the file's, and the file's pieces."""
    with tempfile.TemporaryDirectory() as folder:
        head = Path(folder) / "head"
        try:
            writer, tensors = begin_gguf(
                head,
                config=config,
                tokenizer=json.loads(texts["tokenizer.json"]),
                chat_template=_find_chat_template(texts),
                shapes={name: tensor.shape for name, tensor in base.items()},
                form=export.form,
            )
        except ExportError as error:
            raise ExportFileError(str(error)) from error
        writer.close()
        begin = head.read_bytes()
    _compare_names(found.keys(), [tensor.name for tensor in tensors])
    pieces: list[Piece] = [begin, bytes(-len(begin) % _ALIGNMENT)]
    for tensor in tensors:
        own = found[tensor.name]
        _compare_shapes(tensor.name, own.shape, tensor.shape)
        if own.dtype != tensor.kind.name or own.bytes != count_tensor_bytes(tensor):
            raise ExportFileError(f"{tensor.name} is of type {own.dtype}, not {tensor.kind.name}")
        pieces += [(file, own.at, own.bytes), bytes(-own.bytes % _ALIGNMENT)]
    return {tensor.name: tensor.source for tensor in tensors if tensor.source}, pieces


def _find_chat_template(texts: Mapping[str, bytes]) -> str:
    if "chat_template.jinja" in texts:
        return texts["chat_template.jinja"].decode()
    found = json.loads(texts["tokenizer_config.json"]).get("chat_template")
    if isinstance(found, list):
        found = {one["name"]: one["template"] for one in found}.get("default")
    return found or ""


def _compare_names(found: Any, wanted: Any) -> None:
    if missing := sorted(set(wanted) - set(found)):
        raise ExportFileError(f"it lacks {missing[0]}")
    if more := sorted(set(found) - set(wanted)):
        raise ExportFileError(f"it holds {more[0][:80]!r}, which the base does not have")


def _compare_shapes(name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if found != wanted:
        raise ExportFileError(f"{name} is {list(found)} and the base's is {list(wanted)}")
