"""Merged weights as a directory that ``transformers`` loads, in one tar."""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from workers.exporting.merging import MergedWeights
from workers.protocol.export_check import CONFIG, FILES_BESIDE, INDEX
from workers.protocol.exports import SHARD_BYTES, build_index, plan_shards

#: The adapter's own copies hold the chat template that it was trained with.
_OF_ADAPTER = FILES_BESIDE - {CONFIG, "generation_config.json", INDEX}


def write_merged(
    weights: MergedWeights, *, base: Path, adapter: Path, out: Path, shard_bytes: int = SHARD_BYTES
) -> None:
    """Write ``config.json``, the tokenizer and the weights in shards into the tar ``out``.

    Raises
    ------
    OSError
        Such as a full disk.
    """
    with tempfile.TemporaryDirectory(dir=out.parent) as name, tarfile.open(out, "w") as archive:
        folder = Path(name)
        for source, names in ((base, FILES_BESIDE - {INDEX}), (adapter, _OF_ADAPTER)):
            for path in (source / name for name in sorted(names)):
                if path.is_file():
                    _copy_without_code(path, folder / path.name)
        sizes = {name: weights.count_bytes(name) for name in weights.names}
        shards = plan_shards(sizes, shard_bytes)
        if len(shards) > 1:
            (folder / INDEX).write_text(json.dumps(build_index(shards), indent=2))
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name, filter=_make_anonymous)
        for shard_name, shard in shards.items():
            path = folder / shard_name
            save_file({tensor: _read(weights, tensor) for tensor in shard}, path, {"format": "pt"})
            archive.add(path, path.name, filter=_make_anonymous)
            path.unlink()


def _copy_without_code(path: Path, target: Path) -> None:
    """Leave out what names code to be run: the market takes none."""
    if path.name not in (CONFIG, "tokenizer_config.json"):
        shutil.copyfile(path, target)
        return
    fields = json.loads(path.read_text(encoding="utf-8"))
    fields.pop("auto_map", None)
    target.write_text(json.dumps(fields, indent=2), encoding="utf-8")


def _read(weights: MergedWeights, name: str) -> torch.Tensor:
    return weights.read(name).contiguous()


def _make_anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Equal weights make equal files: no owner, no moment."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o644
    return entry
