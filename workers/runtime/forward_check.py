"""Whether the packed forward pass of a loaded base is the one that ``transformers`` has for it.

A family's table says where adapters sit, not that a model computes as the engine does: attention
may have sinks, logits may be scaled or capped. So every base is tried before anything is sold on
it, on rows of different lengths, one of them longer than its sliding window where that is short.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from workers.training.attention import PACKED_ATTENTION
from workers.training.faults import UserFault
from workers.training.loss import compute_token_nll
from workers.training.packed_model import PackedModel
from workers.training.rehearsal import build_rehearsal_pack

#: Nats a token by which the losses may differ on average, by the type that the base computes in.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
_LENGTHS = (41, 3, 18)
#: Rows longer than a window that is longer are not tried: stock attention is slow on them.
_WINDOW_MAX = 1024


def check_forward(name: str, model: PackedModel) -> None:
    """Compare losses of a pack with those of ``transformers``' own eager code, row by row.

    Encoders, whose families are few and tested, are not tried.

    Raises
    ------
    UserFault
        When they differ; the sentence says by how much.
    """
    if model.shape.encoder:
        return
    difference = measure_difference(model)
    tolerance = TOLERANCES[model.dtype]
    if not difference <= tolerance:
        raise UserFault(
            f"The base model {name!r} (type {model.shape.model_type}) cannot be trained here: "
            f"rows packed together have losses {difference:.2g} nats a token away from those of "
            f"the model's own code, and {tolerance:g} are allowed. Choose another base model."
        )


@torch.no_grad()
def measure_difference(model: PackedModel) -> float:
    """Mean absolute difference of a token's loss, in nats."""
    window = getattr(model.model.config, "sliding_window", None) or 0
    longest = window + 8 if window <= _WINDOW_MAX else 0
    lengths = [min(n, model.context_length) for n in (*_LENGTHS, longest) if n]
    pack = build_rehearsal_pack(model, lengths=tuple(lengths))
    with model.streaming(pack, adapters=False):
        hidden_MD = model.hidden(pack).index_select(0, pack.predict_M)
    head_VD, bias_V = model.head
    packed_M = compute_token_nll(hidden_MD, head_VD, bias_V, pack.targets_M)
    model.model.set_attn_implementation("eager")
    try:
        rows = pack.tokens_T[: sum(lengths)].split(lengths)
        stock_M = torch.cat([_compute_stock_nll(model, row_T) for row_T in rows])
    finally:
        model.model.set_attn_implementation(PACKED_ATTENTION)
    return float((packed_M - stock_M).abs().mean())


def _compute_stock_nll(model: PackedModel, row_T: torch.Tensor) -> torch.Tensor:
    logits_TV = model.model(input_ids=row_T[None], use_cache=False).logits[0]
    return F.cross_entropy(logits_TV[:-1].float(), row_T[1:], reduction="none")
