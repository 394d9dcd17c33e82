"""A loop on a base, with what this machine is fastest with; all of it measured."""

from __future__ import annotations

import os

from workers.protocol.pass_bytes import PACK_TOKENS
from workers.training.compiled_norms import compile_norms_if_faster
from workers.training.fused_trainer import FusedTrainer
from workers.training.graph_runners import RECORDING, CudaGraphRunner
from workers.training.pack_plan import PAD_TO
from workers.training.packed_model import PackedModel
from workers.training.product_choice import use_fastest_products
from workers.training.recorded_steps import record_steps_if_faster

#: Environment variable that names, with commas, the parts to try on CUDA. No GPU has shown yet
#: that they pay (``python -m workers.bench gpu`` measures them), so none is tried by default.
CUDA_TRIALS_VARIABLE = "FINETENDER_CUDA_TRIALS"
COMPILED_NORMS = "compiled_norms"
RECORDED_STEPS = "recorded_steps"


def build_plain_trainer(model: PackedModel) -> FusedTrainer:
    """The loop with PyTorch's own products and norms: nothing depends on a measurement."""
    kind = model.device.type
    pad_to = PAD_TO[kind] if model.is_packed else 1
    return FusedTrainer(model, token_budget=PACK_TOKENS[kind], pad_to=pad_to)


def build_tuned_trainer(model: PackedModel) -> FusedTrainer:
    """Choose libraries, and on CUDA the parts that are to be tried; call before any job is there.

    For each choice both ways run on this base. They must give the same numbers, up to the order of
    sums. If anything fails, the plain way is used.
    """
    trainer = build_plain_trainer(model)
    use_fastest_products(model)
    trials = read_cuda_trials() if model.own_head is None else frozenset[str]()
    if model.device.type == "cuda" and trials:
        # measuring waits for the whole device, and no recording may run on it meanwhile
        with RECORDING:
            if COMPILED_NORMS in trials:
                compile_norms_if_faster(model)
            if RECORDED_STEPS in trials:
                trainer.fixed = record_steps_if_faster(model, CudaGraphRunner(model.device))
    return trainer


def read_cuda_trials() -> frozenset[str]:
    """What ``FINETENDER_CUDA_TRIALS`` asks for; empty by default.

    Raises
    ------
    ValueError
        When it names a part that there is not.
    """
    named = os.environ.get(CUDA_TRIALS_VARIABLE, "").split(",")
    trials = frozenset(name.strip() for name in named if name.strip())
    unknown = trials - {COMPILED_NORMS, RECORDED_STEPS}
    if unknown:
        raise ValueError(
            f"{CUDA_TRIALS_VARIABLE} names {', '.join(sorted(unknown))}. "
            f"Choose among {COMPILED_NORMS} and {RECORDED_STEPS}."
        )
    return trials
