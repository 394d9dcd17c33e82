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

The sum is then multiplied by the zone's calibration factor: the largest ratio of measured to
computed memory over the self-tests, at least 1, so that no measured job exceeds what it was sold.
Every part is non-decreasing in rank, batch and length, so asking for more never costs less memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

BYTES_PER_GB = 1e9
STATE_BYTES = 16
LOGIT_BYTES = 12
CONSTANT_BYTES = 8e6
#: What the self-test trains with; a measured row names no rank.
MEASURED_RANK = 16
_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes in a base model's configuration that memory depends on."""

    hidden_size: int
    layers: int
    intermediate_size: int
    vocab_size: int
    heads: int
    kv_heads: int
    #: Numbers per head; ``hidden_size / heads`` unless the model says otherwise.
    head_size: int
    #: Reads whole texts and learns their labels; other models predict the next token.
    encoder: bool = False

    @property
    def query_size(self) -> int:
        return self.heads * self.head_size

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_size

    def module_sizes(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of each projection of a layer."""
        h, m = self.hidden_size, self.intermediate_size
        return {
            "q_proj": (h, self.query_size),
            "k_proj": (h, self.kv_size),
            "v_proj": (h, self.kv_size),
            "o_proj": (self.query_size, h),
            "gate_proj": (h, m),
            "up_proj": (h, m),
            "down_proj": (m, h),
        }


@dataclass(frozen=True, slots=True)
class MeasuredMemory:
    """What one job took in a self-test."""

    batch_size: int
    sequence_length: int
    gb: float


def adapter_parameters(
    shape: ModelShape, *, rank: int, target_modules: Iterable[str] | None
) -> int:
    """Trainable weights of a LoRA adapter; unknown module names count as the largest projection."""
    sizes = shape.module_sizes()
    widest = max(rows + columns for rows, columns in sizes.values())
    names = _MODULES if target_modules is None else tuple(set(target_modules))
    per_rank = sum(sum(sizes[name]) if name in sizes else widest for name in names)
    return shape.layers * rank * per_rank


def job_memory_gb(
    shape: ModelShape,
    *,
    rank: int,
    batch_size: int,
    sequence_length: int,
    activation_bytes: int = 4,
    target_modules: Iterable[str] | None = None,
    virtual_tokens: int = 0,
    calibration: float = 1.0,
) -> float:
    """GB of one job, the base model not included.

    Parameters
    ----------
    activation_bytes
        Bytes of a kept activation: 2 in bfloat16, 4 in float32.
    virtual_tokens
        Tokens a soft prompt puts before every sequence.
    calibration
        ``calibration_factor`` of the zone.
    """
    modules = len(_MODULES) if target_modules is None else len(set(target_modules))
    state = STATE_BYTES * (
        adapter_parameters(shape, rank=rank, target_modules=target_modules)
        + virtual_tokens * shape.hidden_size
    )
    tokens = batch_size * (sequence_length + virtual_tokens)
    per_layer = (
        10 * shape.hidden_size
        + 3 * shape.intermediate_size
        + 2 * (shape.query_size + 2 * shape.kv_size)
        + modules * rank
    )
    activations = tokens * shape.layers * per_layer * activation_bytes
    logits = tokens * shape.vocab_size * LOGIT_BYTES
    return calibration * (state + activations + logits + CONSTANT_BYTES) / BYTES_PER_GB


def calibration_factor(
    shape: ModelShape, measured: Iterable[MeasuredMemory], *, activation_bytes: int = 4
) -> float:
    """The largest ratio of measured to computed memory, at least 1."""
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


_OTHER_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
}
#: ``model_type`` of base models that classify.
_ENCODERS = ("bert", "roberta")
_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
#: What a node keeps beside the weights, as a share of them.
_OVERHEAD = 1.05
#: Four bits, and a 32-bit scale for each 64 weights.
_FOUR_BIT_BYTES = 0.5625


def base_model_gb(
    config: Mapping[str, object], *, dtype: str = "auto", four_bit: bool = False
) -> float:
    """GB of a resident base model, from its ``config.json``; for models without gates too high.

    Raises
    ------
    ValueError
        As ``shape_from_config``.
    """
    shape = shape_from_config(config)
    stored = config.get("dtype") or config.get("torch_dtype") or "float32"
    width = _DTYPE_BYTES.get(str(stored) if dtype == "auto" else dtype, 4)
    layers = shape.layers * sum(rows * columns for rows, columns in shape.module_sizes().values())
    tables = 1 if config.get("tie_word_embeddings", False) else 2
    words = tables * shape.vocab_size * shape.hidden_size
    return (
        _OVERHEAD
        * (layers * (_FOUR_BIT_BYTES if four_bit else width) + words * width)
        / (BYTES_PER_GB)
    )


def shape_from_config(config: Mapping[str, object]) -> ModelShape:
    """The shape in a model's ``config.json``.

    Raises
    ------
    ValueError
        When a size is missing or not a positive whole number.
    """

    def size(name: str, default: int | None = None) -> int:
        # GPT-2 and its kin have names of their own.
        value = config.get(name, config.get(_OTHER_NAMES.get(name, name)))
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise ValueError(
                f"The model's config.json has {name} = {value!r}; a whole number above 0 is needed."
            )
        return value

    hidden, heads = size("hidden_size"), size("num_attention_heads")
    return ModelShape(
        hidden_size=hidden,
        layers=size("num_hidden_layers"),
        intermediate_size=size("intermediate_size", 4 * hidden),
        vocab_size=size("vocab_size"),
        heads=heads,
        kv_heads=size("num_key_value_heads", heads),
        head_size=size("head_dim", max(1, hidden // heads)),
        encoder=config.get("model_type") in _ENCODERS,
    )
