"""How much memory one job takes on a node, beside the base model.

Four parts, each counted in bytes:

* **Adapter state**: LoRA adds ``r * (d_in + d_out)`` weights to each adapted matrix (Hu et al.,
  2021, section 4.1). Each weight is kept four times in 32 bits: weight, gradient and AdamW's two
  moments, so 16 bytes.
* **Kept activations**: backward needs, per token and layer, the inputs of the seven projections
  and of the two norms, the rotated queries and keys and the MLP's three inner values:
  ``10 h + 3 m + 2 (h + 2 kv)`` numbers with ``h`` hidden, ``m`` intermediate and ``kv`` the width
  of keys. Attention probabilities are not kept (they are recomputed), so memory is linear in the
  tokens. Each adapted matrix also keeps its ``r`` inner values.
* **Logits**: ``3 * vocab`` 32-bit numbers a token: logits, their softmax and the gradient.
* **A constant** for what every job has, such as buffers and its share of fragmentation.

What a node's self-test measured beyond this is the node's own: it is sold with so much less memory
(``fleet.self_test``), so that no job exceeds what it was sold and no node changes another's jobs.
Every part is non-decreasing in rank, batch and length, so asking for more never costs less memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from workers.protocol.memory import STATE_BYTES, adapter_parameters, find_adapted
from workers.protocol.model_shape import ModelShape, parse_model_shape

BYTES_PER_GB = 1e9
LOGIT_BYTES = 12
CONSTANT_BYTES = 8e6
#: What the self-test trains with; a measured row names no rank.
MEASURED_RANK = 16


@dataclass(frozen=True, slots=True)
class MeasuredMemory:
    """What one job took in a self-test."""

    batch_size: int
    sequence_length: int
    gb: float


def job_memory_gb(
    shape: ModelShape,
    *,
    rank: int,
    batch_size: int,
    sequence_length: int,
    activation_bytes: int = 4,
    target_modules: tuple[str, ...] | None = None,
    virtual_tokens: int = 0,
) -> float:
    """GB of one job, the base model not included.

    Parameters
    ----------
    activation_bytes
        Bytes of a kept activation: 2 in bfloat16, 4 in float32.
    virtual_tokens
        Tokens a soft prompt puts before every sequence.
    """
    state = STATE_BYTES * (
        adapter_parameters(shape, rank=rank, target_modules=target_modules)
        + virtual_tokens * shape.hidden_size
    )
    tokens = batch_size * (sequence_length + virtual_tokens)
    per_layer = (
        10 * shape.hidden_size
        + 3 * shape.intermediate_size
        + 2 * (shape.query_size + 2 * shape.kv_size)
    )
    inner = rank * len(find_adapted(shape, target_modules))
    activations = tokens * (shape.layers * per_layer + inner) * activation_bytes
    logits = tokens * shape.vocab_size * LOGIT_BYTES
    return (state + activations + logits + CONSTANT_BYTES) / BYTES_PER_GB


def calibration_factor(
    shape: ModelShape, measured: Iterable[MeasuredMemory], *, activation_bytes: int = 4
) -> float:
    """The largest ratio of a node's measured memory to the computed, at least 1."""
    ratios = [
        row.gb
        / job_memory_gb(
            shape,
            rank=MEASURED_RANK,
            batch_size=row.batch_size,
            sequence_length=row.sequence_length,
            activation_bytes=activation_bytes,
        )
        for row in measured
    ]
    return max([1.0, *ratios])


_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
#: What a node keeps beside the weights, as a share of them.
_OVERHEAD = 1.05
#: Four bits, and a 32-bit scale for each 64 weights.
_FOUR_BIT_BYTES = 0.5625


def base_model_gb(
    config: Mapping[str, object], *, dtype: str = "auto", four_bit: bool = False
) -> float:
    """GB of a resident base model, from its ``config.json``.

    Raises
    ------
    ValueError
        As ``parse_model_shape``.
    """
    shape = parse_model_shape(config)
    stored = config.get("dtype") or config.get("torch_dtype") or "float32"
    width = _DTYPE_BYTES.get(str(stored) if dtype == "auto" else dtype, 4)
    layers = sum(part.inputs * part.outputs for part in shape.list_projections())
    tables = 1 if config.get("tie_word_embeddings", False) else 2
    words = tables * shape.vocab_size * shape.hidden_size
    return (
        _OVERHEAD
        * (layers * (_FOUR_BIT_BYTES if four_bit else width) + words * width)
        / (BYTES_PER_GB)
    )
