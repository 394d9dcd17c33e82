"""Which models the engine trains, and which of their projections carry adapters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from transformers import PretrainedConfig
from transformers.pytorch_utils import Conv1D

from workers.training.faults import UserFault


@dataclass(frozen=True, slots=True)
class Architecture:
    """What the engine must know of a model family."""

    #: Every attention and MLP projection, as endings of module names.
    target_modules: tuple[str, ...]
    #: Encoders classify whole sequences; decoders predict the next token.
    encoder: bool = False


_LLAMA = Architecture(("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"))
_BERT = Architecture(("query", "key", "value", "intermediate.dense", "output.dense"), encoder=True)
#: By ``config.model_type``.
ARCHITECTURES: dict[str, Architecture] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gpt2": Architecture(("c_attn", "c_proj", "c_fc")),
    "bert": _BERT,
    "roberta": _BERT,
}


def find_architecture(config: PretrainedConfig) -> Architecture:
    """The model's family.

    Raises
    ------
    UserFault
        With the list of what is supported.
    """
    found = ARCHITECTURES.get(config.model_type)
    if found is None:
        supported = ", ".join(sorted(ARCHITECTURES))
        raise UserFault(
            f"Models of the type {config.model_type!r} cannot be trained here. "
            f"Choose one of these types: {supported}."
        )
    return found


def is_projection(module: torch.nn.Module) -> bool:
    """Whether an adapter can sit beside the module."""
    if isinstance(module, (torch.nn.Linear, Conv1D)):
        return True
    # bitsandbytes is only there on CUDA machines; its 4-bit layer is a Linear's subclass.
    return type(module).__name__ == "Linear4bit"


def find_target_names(
    backbone_modules: Iterable[tuple[str, torch.nn.Module]], targets: tuple[str, ...]
) -> tuple[str, ...]:
    """Full names of the modules whose names end with one of ``targets``.

    Raises
    ------
    UserFault
        When a target is no projection of the model.
    """
    projections = [name for name, module in backbone_modules if is_projection(module)]
    found: list[str] = []
    for target in targets:
        hits = [name for name in projections if name == target or name.endswith("." + target)]
        if not hits:
            endings = sorted({name.rpartition(".")[2] for name in projections})
            raise UserFault(
                f"The model has no projection called {target!r}. "
                f"Choose target modules among: {', '.join(endings)}."
            )
        found += hits
    return tuple(sorted(set(found)))
