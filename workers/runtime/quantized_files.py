"""How files of a base model are read that are in less than 16 bits, or are to become so."""

from __future__ import annotations

from typing import Any

from transformers.utils.quantization_config import Mxfp4Config

from workers.protocol.job_spec import BaseModelRef
from workers.training.architectures import is_ready
from workers.training.faults import UserFault
from workers.training.four_bit_loading import FourBitConfig


def is_quantized_otherwise(config: Any) -> bool:
    """Whether files are in less than 16 bits by another method than the one trained in."""
    return bool(getattr(config, "quantization_config", None)) and not is_ready(config)


def choose_quantization(ref: BaseModelRef, config: Any) -> dict[str, Any]:
    """Give the options that a base's files are loaded with.

    Raises
    ------
    UserFault
        They are in four bits, and the base is to be trained in 16.
    """
    if is_quantized_otherwise(config):
        # of all other methods only this one comes so far
        return {"quantization_config": Mxfp4Config(dequantize=True)}
    if ref.four_bit:
        return {"quantization_config": FourBitConfig(config)}
    if is_ready(config):
        raise UserFault(
            f"The files of the base model {ref.name!r} are in four bits. Open its zone so."
        )
    return {}
