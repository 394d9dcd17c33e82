"""A loop on a base, with what this machine is fastest with; all of it measured."""

from __future__ import annotations

from workers.training.compiled_norms import compile_norms_if_faster
from workers.training.fused_trainer import FusedTrainer
from workers.training.graph_runners import RECORDING, CudaGraphRunner
from workers.training.pack_plan import PAD_TO, TOKEN_BUDGET
from workers.training.packed_model import PackedModel
from workers.training.product_choice import use_fastest_products
from workers.training.recorded_steps import record_steps_if_faster


def build_plain_trainer(model: PackedModel) -> FusedTrainer:
    """The loop with PyTorch's own products and norms: nothing depends on a measurement."""
    kind = model.device.type
    return FusedTrainer(model, token_budget=TOKEN_BUDGET[kind], pad_to=PAD_TO[kind])


def build_tuned_trainer(model: PackedModel) -> FusedTrainer:
    """Choose libraries, compiled parts and recorded steps; call before any job is there.

    Each choice is made by running both ways on this base, is checked to give the same
    numbers but for the order of sums, and falls back to the plain way when anything fails.
    """
    trainer = build_plain_trainer(model)
    use_fastest_products(model)
    if model.device.type == "cuda":
        # measuring waits for the whole device, which nobody may be recording on meanwhile
        with RECORDING:
            compile_norms_if_faster(model)
            trainer.fixed = record_steps_if_faster(model, CudaGraphRunner(model.device))
    return trainer
