"""How a loaded base is computed: packed, or by the code that ``transformers`` has for it.

Modules say where adapters sit, not that a model computes as the engine does: attention may have
sinks, logits may be scaled or capped. So every base is checked before it is sold, on rows
of different lengths. One row is longer than the sliding window if that is short.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch.nn.functional as F

from workers.training.architectures import read_shape
from workers.training.faults import UserFault, is_out_of_memory
from workers.training.own_head import OwnHead
from workers.training.packed_model import PackedModel
from workers.training.rehearsal import build_rehearsal_pack
from workers.training.stock_model import StockModel

log = logging.getLogger(__name__)

#: Nats a token by which the losses may differ on average, by the type that the base computes in.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
#: Two of them are much alike: those are padded to one length where rows are padded.
_LENGTHS = (41, 3, 18, 36)
#: Rows longer than a window that is longer are not tried: stock attention is slow on them.
_WINDOW_MAX = 1024
#: Attention of a kind that takes no packs fails in its own way, and so does a config that is wrong.
_FORWARD_ERRORS = (AttributeError, IndexError, RuntimeError, TypeError, ValueError)


def choose_model(name: str, model: Any) -> PackedModel:
    """The way to compute a base: packed where that agrees, else by its own code.

    Losses of ragged rows are compared with those of ``transformers``' own eager code, row by row.
    Where only the output layer differs, rows are packed all the same. Encoders, whose families are
    few and tested, are not tried.

    Parameters
    ----------
    model : transformers.PreTrainedModel

    Raises
    ------
    UserFault
        When even its own code gives other losses for rows side by side, cannot compute a row, or
        is none that adapters can be put in.
    """
    if read_shape(model).stock:
        packed: PackedModel = StockModel(model)
    else:
        packed = PackedModel(model)
        if packed.shape.encoder:
            return packed
        if not _agrees(packed):
            packed.own_head = OwnHead(model)
        if not _agrees(packed):
            log.warning("%s is computed by its own code: packed rows have other losses", name)
            packed = StockModel(model)
    try:
        difference = measure_difference(packed)
    except _FORWARD_ERRORS as error:
        if is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split()).rstrip(". ")
        raise UserFault(
            f"The base model {name!r} (type {packed.shape.model_type}) cannot be trained here: its "
            f"own code cannot compute a row ({reason}). Its config.json cannot be right: download "
            "it again, or choose another base model."
        ) from error
    if difference <= TOLERANCES[packed.dtype]:
        return packed
    raise UserFault(
        f"The base model {name!r} (type {packed.shape.model_type}) cannot be trained here: the "
        f"losses of packed rows differ by {difference:.2g} nats a token from those of single rows, "
        f"and {TOLERANCES[packed.dtype]:g} is allowed. Choose another base model."
    )


def _agrees(model: PackedModel) -> bool:
    try:
        return measure_difference(model) <= TOLERANCES[model.dtype]
    except _FORWARD_ERRORS as error:
        if is_out_of_memory(error):
            raise
        log.warning("a pack of this base cannot be computed: %s", error)
        return False


@torch.no_grad()
def measure_difference(model: PackedModel) -> float:
    """Mean absolute difference of a token's loss, in nats."""
    window = getattr(model.config, "sliding_window", None) or 0
    longest = window + 8 if window <= _WINDOW_MAX else 0
    lengths = [min(n, model.context_length) for n in (*_LENGTHS, longest) if n]
    pack = build_rehearsal_pack(model, lengths=tuple(lengths))
    with model.streaming(pack, adapters=False):
        hidden_MD = model.hidden(pack).index_select(0, pack.predict_M)
        packed_M = model.compute_nll(hidden_MD, pack.targets_M)
    model.model.set_attn_implementation("eager")
    try:
        rows = pack.tokens_T[: sum(lengths)].split(lengths)
        stock_M = torch.cat([_compute_stock_nll(model, row_T) for row_T in rows])
    finally:
        model.model.set_attn_implementation(model.attention)
    return float((packed_M - stock_M).abs().mean())


def _compute_stock_nll(model: PackedModel, row_T: torch.Tensor) -> torch.Tensor:
    logits_TV = model.model(input_ids=row_T[None], use_cache=False).logits[0]
    return F.cross_entropy(logits_TV[:-1].float(), row_T[1:], reduction="none")
