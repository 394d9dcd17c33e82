"""The shape of a loaded model, checked against its real projections."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from workers.protocol.model_shape import ModelShape, parse_model_shape
from workers.training.faults import SystemFault, UserFault
from workers.training.four_bit import FourBitLinear


def read_shape(config: PretrainedConfig) -> ModelShape:
    """The model's sizes and family, from its configuration.

    Raises
    ------
    UserFault
        When models of this type cannot be trained, with the list of those that can.
    """
    try:
        return parse_model_shape(config.to_dict())
    except ValueError as error:
        raise UserFault(str(error)) from None


def find_projections(modules: dict[str, nn.Module], shape: ModelShape) -> dict[str, nn.Module]:
    """The modules that adapters can sit beside, by their full names.

    Parameters
    ----------
    modules : dict
        All modules of the model by their full names.

    Raises
    ------
    SystemFault
        When the model's weights are not what its configuration says.
    """
    found: dict[str, nn.Module] = {}
    for part in shape.list_projections():
        module = modules.get(part.name)
        if module is None or not is_projection(module):
            raise SystemFault(f"The base model has no projection {part.name}. Fetch it again.")
        if get_features(module) != (part.inputs, part.outputs):
            raise SystemFault(
                f"The base model's {part.name} has other sizes than its config.json says. "
                "Fetch it again."
            )
        found[part.name] = module
    return found


def quantize_projections(model: PreTrainedModel, *, device: torch.device) -> None:
    """Keep a model's projections in four bits on a device; all else stays as and where it is."""
    for part in read_shape(model.config).list_projections():
        parent, _, name = part.name.rpartition(".")
        base = model.get_submodule(part.name)
        if isinstance(base, (nn.Linear, Conv1D)):
            setattr(model.get_submodule(parent), name, FourBitLinear(base, device=device))


def is_projection(module: nn.Module) -> bool:
    """Whether an adapter can sit beside the module."""
    return isinstance(module, (nn.Linear, Conv1D, FourBitLinear))


def get_features(module: nn.Module) -> tuple[int, int]:
    """Input and output width of a projection."""
    if isinstance(module, Conv1D):
        return module.weight.shape[0], module.weight.shape[1]
    return int(module.in_features), int(module.out_features)  # type: ignore[arg-type]
