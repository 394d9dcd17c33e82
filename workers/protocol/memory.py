"""What training takes of a device's memory, counted alike by the market and by its nodes.

The engine keeps one base model, packs the sequences of all jobs into one pass at a time, and makes
logits chunk by chunk. So the memory of activations is the node's and does not depend on anybody's
batch::

    node:  base model + one chunk of logits + one pack
    job:   adapter, gradient, two moments + its share of what the pass keeps for adapters

Sizes of activations are sums over a block of what autograd keeps for the backward pass, read off
the engine (``workers.training.saved_bytes`` counts the same tensors; a test compares them).
``python -m workers.bench memory`` holds the sums against what a process really takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from workers.protocol.job_settings import match_modules
from workers.protocol.model_shape import ModelShape, Projection

GB = 1e9
#: Tokens of a pack unless memory asks for fewer, by kind of device.
PACK_TOKENS = {"cpu": 4096, "cuda": 16384}
#: Trained tokens whose logits are held at once; on CPUs so few that they stay in the cache.
LOSS_CHUNK_TOKENS = {"cpu": 256, "cuda": 1024}
#: Share of a device's memory the plan uses; the rest is for kernels and fragmentation.
USABLE_SHARE = {"cuda": 0.92, "cpu": 0.8}
#: Of a weight that trains: value, gradient and AdamW's two moments, in 32 bits.
STATE_BYTES = 16
#: Logits, log-probabilities and their difference, in 32 bits.
_LOGIT_BYTES = 12
_FLOAT_BYTES = 4
#: What a device's process has besides: workspaces of kernels, tables of a pack.
BESIDES_BYTES = 36e6


@dataclass(frozen=True, slots=True)
class Engine:
    """How a device computes, as far as memory depends on it."""

    #: ``cpu`` or ``cuda``.
    device: str
    #: Of a kept activation: 2 in bfloat16, 4 in float32.
    activation_bytes: int

    @property
    def pack_tokens(self) -> int:
        return PACK_TOKENS[self.device]


@dataclass(frozen=True, slots=True)
class PackSizing:
    """How the jobs on a base run within the limit."""

    token_budget: int
    #: Recompute blocks in the backward pass.
    recompute: bool


@dataclass(frozen=True, slots=True)
class NodeSizing:
    """How a node's memory is shared out before any job is on it."""

    pack: PackSizing
    #: Base model, a chunk of logits, one pack and what a process has besides.
    own_gb: float
    #: What is left for jobs.
    jobs_gb: float


def size_node(
    shape: ModelShape, engine: Engine, *, base_gb: float, limit_gb: float, longest_tokens: int
) -> NodeSizing | None:
    """Set a recomputed pack aside, and leave the rest to jobs; ``None`` where that is nothing.

    The pack is as large as the device's kind wants, but on a tight device at most half of what the
    base leaves, and never less than the longest row. While jobs leave room, the engine packs
    without recomputing instead: that takes no more than what is free.
    """
    rest = limit_gb - base_gb - (head_bytes(shape, engine) + BESIDES_BYTES) / GB
    token_gb = _pack_token_bytes(shape, engine, rank=0, recompute=True) / GB
    tokens = max(longest_tokens, min(engine.pack_tokens, int(rest / 2 / token_gb)))
    jobs_gb = rest - tokens * token_gb
    if jobs_gb <= 0:
        return None
    return NodeSizing(PackSizing(tokens, recompute=True), limit_gb - jobs_gb, jobs_gb)


def token_bytes(shape: ModelShape, engine: Engine, *, recompute: bool) -> float:
    """Bytes of a pack's token that live until the backward pass, adapters not counted.

    With ``recompute`` a block keeps its input only, and one block at a time is whole.
    """
    block = _block_bytes(shape, engine)
    if not recompute:
        return shape.layers * block
    return shape.layers * shape.hidden_size * engine.activation_bytes + block


def working_bytes(shape: ModelShape, engine: Engine) -> float:
    """Bytes of a pack's token that come and go within one block: gradients on their way back."""
    widest = max(shape.intermediate_size, shape.query_size, shape.hidden_size)
    return engine.activation_bytes * (3 * widest + 3 * shape.hidden_size)


def head_bytes(shape: ModelShape, engine: Engine) -> float:
    """Bytes of one chunk of logits; an encoder has a handful of labels instead."""
    if shape.encoder:
        return 0.0
    return LOSS_CHUNK_TOKENS[engine.device] * shape.vocab_size * _LOGIT_BYTES


def adapter_parameters(
    shape: ModelShape, *, rank: int, target_modules: tuple[str, ...] | None
) -> int:
    """Trainable weights of a LoRA adapter.

    Raises
    ------
    SettingError
        As ``find_adapted``.
    """
    return rank * sum(part.inputs + part.outputs for part in find_adapted(shape, target_modules))


@lru_cache(maxsize=256)
def find_adapted(
    shape: ModelShape, target_modules: tuple[str, ...] | None
) -> tuple[Projection, ...]:
    """The base model's projections that an adapter sits on.

    Raises
    ------
    SettingError
        When a target is no projection of the model.
    """
    projections = {part.name: part for part in shape.list_projections()}
    targets = target_modules or shape.family.target_modules
    return tuple(projections[name] for name in match_modules(targets, projections))


def job_bytes(
    shape: ModelShape,
    engine: Engine,
    *,
    rank: int,
    target_modules: tuple[str, ...] | None,
    virtual_tokens: int = 0,
    pack: PackSizing,
) -> float:
    """Bytes of one job beside the base and a pack.

    On GPUs every adapter meets every token of a pack, so that a job adds its rank's inner values
    for the whole of it; on CPUs it meets its own rows only, which a pack of any job has.
    """
    parameters = adapter_parameters(shape, rank=rank, target_modules=target_modules)
    state = STATE_BYTES * (parameters + virtual_tokens * shape.hidden_size)
    if engine.device == "cpu":
        return state
    matrices = len(find_adapted(shape, target_modules))
    if pack.recompute:
        matrices /= shape.layers
    # the inner values, scaled, and without the foreign ones
    inner = 3 * rank * matrices * pack.token_budget * engine.activation_bytes
    casts = engine.activation_bytes * parameters if engine.activation_bytes < _FLOAT_BYTES else 0
    return state + inner + casts


def inner_token_bytes(shape: ModelShape, engine: Engine, *, rank: int, recompute: bool) -> float:
    """Bytes of a CPU pack's token for the adapter it belongs to, of the largest rank there is."""
    matrices = len(shape.list_projections()) / (shape.layers if recompute else 1)
    return rank * matrices * engine.activation_bytes


def pack_bytes(shape: ModelShape, engine: Engine, pack: PackSizing, *, rank: int) -> float:
    """Bytes of one pack, while it is on the device, of jobs with ranks up to ``rank``."""
    token = _pack_token_bytes(shape, engine, rank=rank, recompute=pack.recompute)
    return pack.token_budget * token


def total_gb(
    shape: ModelShape,
    engine: Engine,
    *,
    base_gb: float,
    pack: PackSizing,
    ranks: Iterable[int],
    target_modules: tuple[str, ...] | None = None,
) -> float:
    """The peak of a node with jobs of these ranks."""
    listed = tuple(ranks)
    jobs = sum(
        job_bytes(shape, engine, rank=rank, target_modules=target_modules, pack=pack)
        for rank in listed
    )
    largest = max(listed, default=0)
    own = head_bytes(shape, engine) + pack_bytes(shape, engine, pack, rank=largest)
    return base_gb + (own + jobs + BESIDES_BYTES) / GB


def _pack_token_bytes(shape: ModelShape, engine: Engine, *, rank: int, recompute: bool) -> float:
    token = token_bytes(shape, engine, recompute=recompute) + working_bytes(shape, engine)
    if engine.device == "cpu":
        token += inner_token_bytes(shape, engine, rank=rank, recompute=recompute)
    return token


def _block_bytes(shape: ModelShape, engine: Engine) -> float:
    """Bytes of a token that a block keeps whole."""
    width = engine.activation_bytes
    hidden, middle = shape.hidden_size, shape.intermediate_size
    query, kv = shape.query_size, shape.kv_size
    # the logarithm of each head's sum, and what a norm notes of its row
    notes = shape.heads + 2
    match shape.model_type:
        case "gpt2":
            # norms, attention's three and its result; GELU by its formula keeps five
            kept = width * (8 * hidden + 5 * middle)
            notes += 2
        case "bert" | "roberta":
            kept = width * (8 * hidden + 2 * middle)
            notes += 2
        case _:
            # both norms' results and, in 32 bits, their inputs; rotated queries, keys and values
            # of as many heads, attention's result; gate, its SiLU, up, and their product
            kept = width * (2 * hidden + 4 * query + 4 * middle) + _FLOAT_BYTES * 2 * hidden
            if shape.model_type == "qwen3":
                # queries and keys have norms of their own
                kept += _FLOAT_BYTES * (query + kv)
                notes += shape.heads + shape.kv_heads
    return kept + _FLOAT_BYTES * notes
