"""A base model as jobs see it: its sizes, and the projections that adapters sit on.

``python -m workers shape`` reads it off the model's own modules, without its weights
(``workers.training.architectures``); nodes read the same off what they have loaded. So the node can
train what the market sells, and a returned adapter can be compared with what the model demands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

#: Models that read whole texts and learn their labels: their heads are written out below.
ENCODERS = ("bert", "roberta")


@dataclass(frozen=True, slots=True)
class Projection:
    """One matrix that an adapter can sit on."""

    #: Full name in the model, such as ``model.layers.0.self_attn.q_proj``.
    name: str
    inputs: int
    outputs: int
    #: How many such matrices lie in one tensor, one for each expert of a mixture.
    experts: int = 1
    #: Through how many of them a token goes.
    chosen: int = 1


@dataclass(frozen=True, slots=True)
class BlockPart:
    """A projection that several blocks have in the same sizes."""

    #: Name within the block, such as ``self_attn.q_proj``.
    name: str
    inputs: int
    outputs: int
    #: Numbers of the blocks that have it.
    blocks: tuple[int, ...]
    #: As of ``Projection``.
    experts: int = 1
    chosen: int = 1


@dataclass(frozen=True, slots=True)
class BasePart:
    """What of a base model is on one device of a group."""

    blocks: int
    base_gb: float


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a base model that memory, work and adapters depend on."""

    hidden_size: int
    layers: int
    #: Of a mixture of experts: of those that a token goes through, together.
    intermediate_size: int
    vocab_size: int
    heads: int
    kv_heads: int
    #: Numbers per head, of the widest there are.
    head_size: int
    #: What adapters can sit on.
    parts: tuple[BlockPart, ...]
    #: Of a block; ``{}`` is its number.
    block: str = "model.layers.{}"
    #: Reads whole texts and learns their labels; other models predict the next token.
    encoder: bool = False
    #: ``model_type`` of its configuration.
    model_type: str = "llama"
    #: Weights that are no projection's: embeddings, norms, experts, another tower.
    other_weights: int = 1
    #: Norms of a block that are as wide as its hidden states; and whether queries and keys have
    #: norms of their own.
    norms: int = 2
    normed_heads: bool = False
    #: How many times what a block of Llama's form keeps for its backward pass a block keeps.
    kept_share: float = 1.0
    #: Whether the projections keep their weights transposed (``Conv1D``).
    transposed: bool = False
    #: Trained by its own code, one job a pass.
    stock: bool = False
    #: Within a block, the MLP that may see its tokens in tiles; empty where there is none such.
    mlp: str = ""
    #: Tensors of experts, on which adapters sit where a job names them.
    experts: tuple[BlockPart, ...] = ()

    @property
    def query_size(self) -> int:
        return self.heads * self.head_size

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_size

    def list_projections(self) -> tuple[Projection, ...]:
        """Every projection of the model, block by block, by its full name."""
        return self._list(self.parts)

    def list_experts(self) -> tuple[Projection, ...]:
        """Every tensor of experts likewise."""
        return self._list(self.experts)

    def _list(self, parts: tuple[BlockPart, ...]) -> tuple[Projection, ...]:
        found = sorted((number, at) for at, p in enumerate(parts) for number in p.blocks)
        return tuple(
            Projection(
                f"{self.block.format(number)}.{part.name}",
                part.inputs,
                part.outputs,
                part.experts,
                part.chosen,
            )
            for number, at in found
            for part in (parts[at],)
        )

    def list_head_shapes(self, *, labels: int) -> dict[str, tuple[int, ...]]:
        """Names and shapes of an encoder's classification head, as stock ``transformers`` has it.

        The last of them has one value for each label.
        """
        width = self.hidden_size
        if self.model_type == "roberta":
            return {
                "classifier.dense.weight": (width, width),
                "classifier.dense.bias": (width,),
                "classifier.out_proj.weight": (labels, width),
                "classifier.out_proj.bias": (labels,),
            }
        return {"classifier.weight": (labels, width), "classifier.bias": (labels,)}


def load_shape(stored: Mapping[str, Any]) -> ModelShape:
    """A shape from ``asdict`` of it, as JSON keeps it and ``check_shape`` has passed it."""
    named: dict[str, Any] = dict(stored)
    for field in ("parts", "experts"):
        named[field] = tuple(
            BlockPart(
                part["name"],
                part["inputs"],
                part["outputs"],
                tuple(part["blocks"]),
                part["experts"],
                part["chosen"],
            )
            for part in stored[field]
        )
    return ModelShape(**named)


#: Larger sizes are a mistake, or hostile: names of projections are made for each layer.
_SIZE_MAX = 10_000_000
_LAYERS_MAX, _WEIGHTS_MAX = 1_000, 10**14


def check_shape(stored: Any) -> ModelShape:
    """A shape from a file that somebody made.

    Raises
    ------
    ValueError
        When it is none: a field is missing, unknown, or of another type or size.
    """
    try:
        shape = load_shape(stored)
        for value in (shape, *shape.parts, *shape.experts):
            for field in fields(value):
                _check_size(field.name, field.type, getattr(value, field.name))
        blocks = {number for part in (*shape.parts, *shape.experts) for number in part.blocks}
        if not shape.parts or not blocks <= set(range(shape.layers)):
            raise ValueError("The model's projections are in no blocks of its own.")
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"This is no shape of a model: {error}.") from None
    return shape


def _check_size(name: str, kind: Any, found: Any) -> None:
    most = {"layers": _LAYERS_MAX, "other_weights": _WEIGHTS_MAX}.get(name, _SIZE_MAX)
    is_int = isinstance(found, int) and not isinstance(found, bool)
    if kind == "int" and not (is_int and 0 < found <= most):
        raise ValueError(
            f"The model has {name} = {found!r}; a whole number from 1 to {most:,} is needed."
        )


#: Words in which models' configurations say how far they read.
_READS = ("max_position_embeddings", "n_positions", "attention_chunk_size")


def is_four_bit(quantization: Mapping[str, object]) -> bool:
    """Whether weights are stored in NF4 by bitsandbytes, by a model's ``quantization_config``."""
    return (
        bool(quantization.get("load_in_4bit")) and quantization.get("bnb_4bit_quant_type") == "nf4"
    )


def find_context_length(config: Mapping[str, object]) -> int | None:
    """Tokens of the longest row that a model is trained on; ``None`` where it does not say.

    Of a model that reads in chunks, those of one. Of a model that turns positions otherwise once a
    row is long (longrope), those of its short rows: in a pack, another job's long row would change
    how all of them are read.
    """
    text = config.get("text_config")
    if isinstance(text, Mapping):
        config = cast(Mapping[str, object], text)
    found = [value for name in _READS if isinstance(value := config.get(name), int)]
    for name in ("rope_parameters", "rope_scaling"):
        rope = config.get(name)
        if not isinstance(rope, Mapping):
            continue
        fields = cast(Mapping[str, object], rope)
        if "longrope" not in (fields.get("rope_type"), fields.get("type")):
            continue
        key = "original_max_position_embeddings"
        short = fields.get(key, config.get(key))
        found += [short] if isinstance(short, int) else []
    return min(found, default=None)
