"""Adapters in other forms: what a node is asked to make of one, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from workers.protocol.job_spec import BaseModelRef, BlobRef

#: A tar with the merged weights as ``transformers`` loads them, and GGUF files.
MERGED, F16, Q8_0 = "merged", "gguf-f16", "gguf-q8_0"
FORMS = (MERGED, F16, Q8_0)
#: One file of merged weights is held in memory at a time.
SHARD_BYTES = 1024**3


class ExportError(ValueError):
    """This model or adapter cannot be had in this form; a sentence for its owner."""


@dataclass(frozen=True, slots=True)
class ExportTask:
    """An adapter to be merged into its base model and written in a form."""

    base_model: BaseModelRef
    adapter: BlobRef
    form: str


def plan_shards(sizes: Mapping[str, int], shard_bytes: int = SHARD_BYTES) -> dict[str, list[str]]:
    """Tensors by the file of merged weights that they stand in.

    Parameters
    ----------
    sizes
        Bytes of each tensor, in the order in which files have them.
    """
    shards: list[list[str]] = [[]]
    filled = 0
    for name, tensor_bytes in sizes.items():
        if shards[-1] and filled + tensor_bytes > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += tensor_bytes
    if len(shards) == 1:
        return {"model.safetensors": shards[0]}
    of = len(shards)
    return {
        f"model-{place:05}-of-{of:05}.safetensors": names for place, names in enumerate(shards, 1)
    }


def build_index(shards: Mapping[str, list[str]]) -> dict[str, object]:
    """Build what ``transformers`` finds the tensors of several files by."""
    places = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    return {"metadata": {}, "weight_map": places}
