"""Whether a base model was loaded whole, before anything is sold on it.

``transformers`` fills weights that a checkpoint lacks with random numbers and says so in a log.
Adapters trained on such a base are worth nothing anywhere else, so the node refuses it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from workers.protocol.model_shape import ModelShape
from workers.training.faults import SystemFault

#: Weights that a job brings along: an encoder's classification head.
_HEADS = ("classifier.", "score.")


def check_base(name: str, *, model: Any, tokenizer: Any, loading: Mapping[str, Any]) -> None:
    """Check a loaded base model.

    Parameters
    ----------
    name : str
        The model's name, for the sentence.
    loading : mapping
        What ``from_pretrained(..., output_loading_info=True)`` reports.

    Raises
    ------
    SystemFault
        When weights are missing, of another shape or not finite, or when the tokenizer has ids
        that the embeddings lack. The sentence names the first of them and says what to do.
    """
    missing = sorted(key for key in loading["missing_keys"] if not key.startswith(_HEADS))
    if missing:
        raise _refuse(name, f"lacks {_count(missing)}, {missing[0]} first")
    other = sorted(str(_name(key)) for key in loading.get("mismatched_keys", ()))
    other = [key for key in other if not key.startswith(_HEADS)]
    if other:
        raise _refuse(name, f"has {_count(other)} of another shape, {other[0]} first")
    broken = find_non_finite(model.named_parameters())
    if broken is not None:
        raise _refuse(name, f"holds values that are not finite numbers, in {broken}")
    ids, rows = count_token_ids(tokenizer), model.get_input_embeddings().num_embeddings
    if ids > rows:
        raise _refuse(
            name, f"has a tokenizer with {ids:,} ids, but embeddings for {rows:,} of them only"
        )


def check_depth(name: str, shape: ModelShape, unexpected: Iterable[str]) -> None:
    """Refuse a model whose files have more blocks than its configuration says.

    Parameters
    ----------
    unexpected
        Names of weights in the files that the model has no place for.

    Raises
    ------
    SystemFault
        Such a model would be trained without its last blocks.
    """
    next_block = f"{shape.block.format(shape.layers)}."
    if any(key.startswith(next_block) for key in unexpected):
        raise _refuse(name, f"has more than the {shape.layers} blocks that its config.json says")


def check_index(name: str, directory: Path) -> None:
    """Refuse an index of weights that names files elsewhere: those are in no hash of the model.

    Raises
    ------
    SystemFault
    """
    path = directory / "model.safetensors.index.json"
    if not path.is_file():
        return
    files: list[str] = list(json.loads(path.read_text())["weight_map"].values())
    outside = next((file for file in files if Path(file).name != file), None)
    if outside is not None:
        raise _refuse(name, f"takes weights from outside of its folder, {outside[:200]!r}")


def find_non_finite(parameters: Iterable[tuple[str, nn.Parameter]]) -> str | None:
    """Name of the first parameter that holds NaN or infinity; ``None`` when there is none."""
    for name, parameter in parameters:
        if not parameter.is_floating_point() or not parameter.numel():
            continue
        # Both are NaN when any value is; nothing of the parameter's size is allocated.
        least, largest = torch.aminmax(parameter.detach())
        if not (torch.isfinite(least) and torch.isfinite(largest)):
            return name
    return None


def count_token_ids(tokenizer: Any) -> int:
    """One more than the largest id that the tokenizer can give."""
    return 1 + max(tokenizer.get_vocab().values(), default=-1)


def _name(key: Any) -> Any:
    """The name in a mismatch, which carries its shapes beside it."""
    return key[0] if isinstance(key, tuple) else key


def _count(keys: list[str]) -> str:
    return f"{len(keys)} weight{'s' if len(keys) > 1 else ''}"


def _refuse(name: str, what: str) -> SystemFault:
    return SystemFault(
        f"The base model {name!r} {what}. Download it again, or name a revision that is whole."
    )
