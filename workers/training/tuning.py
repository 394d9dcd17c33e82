"""A loop on a base, with what this machine is fastest with; all of it measured."""

from __future__ import annotations

from workers.protocol.pass_bytes import PACK_TOKENS
from workers.training.fused_trainer import FusedTrainer
from workers.training.pack_plan import PAD_TO
from workers.training.packed_model import PackedModel
from workers.training.product_choice import use_fastest_products


def build_plain_trainer(model: PackedModel) -> FusedTrainer:
    """The loop with PyTorch's own products and norms: nothing depends on a measurement."""
    kind = model.device.type
    pad_to = PAD_TO[kind] if model.is_packed else 1
    return FusedTrainer(model, token_budget=PACK_TOKENS[kind], pad_to=pad_to)


def build_tuned_trainer(model: PackedModel) -> FusedTrainer:
    """Choose the libraries that are fastest here; call before any job is there.

    For each choice both ways run on this base. They must give the same numbers, up to the order of
    sums. If anything fails, the plain way is used.
    """
    trainer = build_plain_trainer(model)
    use_fastest_products(model)
    return trainer
