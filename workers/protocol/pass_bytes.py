"""Bytes of a forward and backward pass: of each token of its pack, and of a chunk of logits.

Sizes of activations are sums over a block of what autograd keeps for the backward pass, read off
the engine (``workers.training.saved_bytes`` counts the same tensors; a test compares them).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from workers.protocol.adapter_layout import FLOAT_BYTES
from workers.protocol.generation import QUESTIONS_MAX
from workers.protocol.model_shape import ModelShape

#: Tokens of a pack unless memory asks for fewer, by kind of device.
PACK_TOKENS = {"cpu": 4096, "cuda": 16384}
#: Trained tokens whose logits are held at once; on CPUs so few that they stay in the cache.
LOSS_CHUNK_TOKENS = {"cpu": 256, "cuda": 1024}
#: Tokens that an MLP sees at once where a pack spills.
TILE_TOKENS = {"cpu": 256, "cuda": 4096}
#: Logits, log-probabilities, those of the chunk before, and what the products copy, in 32 bits.
_LOGIT_BYTES = 16
#: Of a base that its own code trains: rows are padded by at most a quarter of their bucket. On
#: their way back the gradients of a head's shares come once the block's other half is free.
STOCK_PADDING = 4 / 3
_STOCK_PAIR_PASSING = {"cpu": 1, "cuda": 4}
#: What a mixture with code of its own keeps besides, as a multiple of the hidden activations of
#: all experts that a token goes through.
_STOCK_MIDDLES = {"gpt_oss": 2.35}
#: Hidden states that are copied into padded rows and back.
_STOCK_COPIES = 4
#: Tokens that a row of an answer's cache has room for at first.
FIRST_CACHE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """How a device computes, as far as memory depends on it."""

    #: ``cpu`` or ``cuda``.
    device: str
    #: Of a kept activation: 2 in bfloat16, 4 in float32.
    activation_bytes: int

    @property
    def pack_tokens(self) -> int:
        return PACK_TOKENS[self.device]


def describe_device(device: str, dtype: str) -> DeviceProfile:
    """How a base of a ``BaseModelRef.dtype`` is trained on a kind of device."""
    is_half = dtype == "bfloat16" or (dtype == "auto" and device == "cuda")
    return DeviceProfile(device, 2 if is_half else FLOAT_BYTES)


def count_kept_bytes(
    shape: ModelShape, profile: DeviceProfile, *, recompute: bool, spills: bool = False
) -> float:
    """Bytes of a pack's token that live until its blocks run backward, adapters not counted.

    With ``recompute`` a block keeps its input only; where it ``spills``, the host keeps that.
    """
    if spills:
        # what goes into the first block and comes out of the last
        return 2 * shape.hidden_size * profile.activation_bytes
    if recompute:
        return shape.layers * shape.hidden_size * profile.activation_bytes
    return shape.layers * _block_bytes(shape, profile)


def count_host_bytes(shape: ModelShape, profile: DeviceProfile, *, tokens: int) -> float:
    """Bytes of the host's memory for the block inputs of a pack that spills."""
    return tokens * shape.layers * shape.hidden_size * profile.activation_bytes


def count_working_bytes(shape: ModelShape, profile: DeviceProfile, *, tiled: bool = False) -> float:
    """Bytes of a pack's token that come and go within one block: gradients on their way back."""
    middle = 0 if tiled else shape.intermediate_size
    widest = max(middle, shape.query_size, shape.hidden_size)
    # tiles of the MLP's results are put together
    hidden = (5 if tiled else 3) * shape.hidden_size
    return profile.activation_bytes * (3 * widest + hidden)


def _count_tile_bytes(shape: ModelShape, profile: DeviceProfile) -> float:
    """Bytes of a tile of tokens within the MLP."""
    kept = _block_bytes(shape, profile) - _block_bytes(shape, profile, tiled=True)
    working = profile.activation_bytes * 3 * (shape.intermediate_size + shape.hidden_size)
    return TILE_TOKENS[profile.device] * (kept + working)


def answer_bytes(shape: ModelShape, profile: DeviceProfile, *, tokens: int) -> float:
    """Compute the bytes of the cache of keys and values while answers are written.

    Rows have room for a power of two of tokens. A base's own code keeps none for us.
    """
    if shape.stock or not tokens:
        return 0.0
    room = max(FIRST_CACHE_TOKENS, 1 << (tokens - 1).bit_length())
    # of the layer that grows, the old ones are there as well
    layers = 2 * shape.layers + 2
    return QUESTIONS_MAX * room * layers * shape.kv_size * profile.activation_bytes


def count_unpacking_bytes(shape: ModelShape) -> float:
    """Bytes of the one matrix of a four-bit base that is there in full: its values and codes."""
    return 8.0 * max(part.inputs * part.outputs for part in shape.parts)


def count_head_bytes(shape: ModelShape, profile: DeviceProfile) -> float:
    """Bytes of one chunk of logits; an encoder has a handful of labels instead."""
    if shape.encoder:
        return 0.0
    return LOSS_CHUNK_TOKENS[profile.device] * shape.vocab_size * _LOGIT_BYTES


def count_inner_token_bytes(
    shape: ModelShape, profile: DeviceProfile, *, rank: int, recompute: bool
) -> float:
    """Bytes of a CPU pack's token for the adapter it belongs to, of the largest rank there is."""
    matrices = len(shape.list_projections()) / (shape.layers if recompute else 1)
    return rank * matrices * profile.activation_bytes


@dataclass(frozen=True, slots=True)
class PassBytes:
    """What a forward and backward pass takes."""

    #: Of a token, until its blocks run backward.
    kept: float
    #: Of a token, while one block runs backward.
    passing: float
    #: Of a chunk of logits, before any block runs backward.
    head: float
    #: Of a tile of an MLP, while one block runs backward.
    tile: float = 0.0

    def count_bytes(self, tokens: int) -> float:
        return tokens * self.kept + max(self.head, self.tile + tokens * self.passing)

    def count_tokens(self, free: float) -> int:
        """Count how many fit in a budget of bytes."""
        passing = (free - self.tile) / (self.kept + self.passing)
        return int(min((free - self.head) / self.kept, passing))


def size_pass(
    shape: ModelShape,
    profile: DeviceProfile,
    *,
    rank: int,
    recompute: bool,
    longest: int,
    spills: bool = False,
    padding: float = STOCK_PADDING,
) -> PassBytes:
    """With the inner values that a CPU's pack has of any job.

    Parameters
    ----------
    spills
        As ``PackSizing.spills``.
    longest
        The longest row, which a base's own code pays for by its square.
    padding
        How much longer its rows become by padding; what packs take does not depend on it.
    """
    tiled = spills and bool(shape.mlp)
    passing = count_working_bytes(shape, profile, tiled=tiled)
    kept = count_kept_bytes(shape, profile, recompute=recompute, spills=spills)
    # one block at a time is whole where they are recomputed
    again = _block_bytes(shape, profile, tiled=tiled) if recompute else 0.0
    if shape.stock:
        pairs = shape.heads * longest
        kept_pairs = pairs * _count_pair_bytes(shape, profile)
        passing += _STOCK_PAIR_PASSING[profile.device] * FLOAT_BYTES * pairs
        middles = _STOCK_MIDDLES.get(shape.model_type, 0.0)
        more = middles * shape.intermediate_size * profile.activation_bytes
        kept += _STOCK_COPIES * shape.hidden_size * profile.activation_bytes
        if recompute:
            again += kept_pairs + more
        else:
            kept += shape.layers * (kept_pairs + more)
        passing, kept, again = (padding * size for size in (passing, kept, again))
    tile = _count_tile_bytes(shape, profile) if tiled else 0.0
    sizes = PassBytes(kept, passing + again, count_head_bytes(shape, profile), tile)
    if profile.device != "cpu" and not shape.stock:
        return sizes
    inner = count_inner_token_bytes(shape, profile, rank=rank, recompute=recompute)
    return add_inner(sizes, inner, recompute=recompute)


def _count_pair_bytes(shape: ModelShape, profile: DeviceProfile) -> int:
    """Bytes that a head of a base's own code keeps of two tokens of a row."""
    match shape.model_type:
        case "gemma2":
            # its share in 32 bits, and in 16 where it is made into them; the score that was capped
            return 2 * FLOAT_BYTES
        case "gpt_oss":
            return profile.activation_bytes
        case _:
            is_cast = profile.activation_bytes < FLOAT_BYTES
            return FLOAT_BYTES + (profile.activation_bytes if is_cast else 0)


def add_inner(sizes: PassBytes, inner: float, *, recompute: bool) -> PassBytes:
    """Inner values live as long as the rest of what their block keeps."""
    if recompute:
        return replace(sizes, passing=sizes.passing + inner)
    return replace(sizes, kept=sizes.kept + inner)


def _block_bytes(shape: ModelShape, profile: DeviceProfile, *, tiled: bool = False) -> float:
    """Bytes of a token that a block keeps whole, or all but its MLP."""
    width = profile.activation_bytes
    hidden, middle = shape.hidden_size, 0 if tiled else shape.intermediate_size
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
            kept = width * (2 * hidden + 4 * query + 4 * middle) + FLOAT_BYTES * 2 * hidden
            # further norms: their inputs in 32 bits, and their results
            more = shape.norms - 2
            kept += more * (width + FLOAT_BYTES) * hidden
            notes += more
            if shape.normed_heads:
                kept += FLOAT_BYTES * (query + kv)
                notes += shape.heads + shape.kv_heads
    return shape.kept_share * (kept + FLOAT_BYTES * notes)
