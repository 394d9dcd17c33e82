"""A base model as its ``config.json`` describes it: its sizes, and where adapters sit.

Market and node use the same table of families. So the node can train what the market sells, and a
returned adapter can be compared with what the model demands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, cast

from workers.protocol.job_settings import ALL_LINEAR

#: A size of the model: hidden, query and key-value width, intermediate; or of matrices side by
#: side: three times hidden, query with key and value, two of the intermediate width.
Width = Literal[
    "hidden", "query", "kv", "intermediate", "three_hidden", "query_key_value", "two_intermediate"
]


@dataclass(frozen=True, slots=True)
class Family:
    """What is the same in all models of a family."""

    #: Of a block; ``{}`` is its number.
    block: str
    #: Name within the block, inputs and outputs of each attention and MLP projection.
    projections: tuple[tuple[str, Width, Width], ...]
    #: Endings of module names that adapters sit on by default.
    target_modules: tuple[str, ...]
    #: Encoders classify whole sequences; decoders predict the next token.
    encoder: bool = False
    #: Whether the projections keep their weights transposed (``Conv1D``).
    transposed: bool = False
    #: A mixture of experts, which are kept in one stack that no adapter sits on.
    experts: bool = False
    #: Packs of many rows cannot be computed as the model is: its own code trains one job a pass.
    stock: bool = False


def _build_bert(prefix: str) -> Family:
    return Family(
        block=f"{prefix}.encoder.layer.{{}}",
        projections=(
            ("attention.self.query", "hidden", "hidden"),
            ("attention.self.key", "hidden", "hidden"),
            ("attention.self.value", "hidden", "hidden"),
            ("attention.output.dense", "hidden", "hidden"),
            ("intermediate.dense", "hidden", "intermediate"),
            ("output.dense", "intermediate", "hidden"),
        ),
        target_modules=("query", "key", "value", "intermediate.dense", "output.dense"),
        encoder=True,
    )


_LLAMA = Family(
    block="model.layers.{}",
    projections=(
        ("self_attn.q_proj", "hidden", "query"),
        ("self_attn.k_proj", "hidden", "kv"),
        ("self_attn.v_proj", "hidden", "kv"),
        ("self_attn.o_proj", "query", "hidden"),
        ("mlp.gate_proj", "hidden", "intermediate"),
        ("mlp.up_proj", "hidden", "intermediate"),
        ("mlp.down_proj", "intermediate", "hidden"),
    ),
    target_modules=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
)
_ATTENTION = _LLAMA.projections[:4]
_MIXTURE = Family(
    block="model.layers.{}",
    projections=_ATTENTION,
    target_modules=("q_proj", "k_proj", "v_proj", "o_proj"),
    experts=True,
)
#: Scores or logits are capped, attention has sinks, or its code takes no other attention.
_STOCK_LLAMA = replace(_LLAMA, stock=True)
_NEMOTRON = Family(
    block="model.layers.{}",
    projections=(*_ATTENTION, *_LLAMA.projections[5:]),
    target_modules=("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"),
    stock=True,
)
_PHI = Family(
    block="model.layers.{}",
    projections=(
        *_ATTENTION[:3],
        ("self_attn.dense", "query", "hidden"),
        ("mlp.fc1", "hidden", "intermediate"),
        ("mlp.fc2", "intermediate", "hidden"),
    ),
    target_modules=("q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2"),
)
_PHI3 = Family(
    block="model.layers.{}",
    projections=(
        ("self_attn.qkv_proj", "hidden", "query_key_value"),
        ("self_attn.o_proj", "query", "hidden"),
        ("mlp.gate_up_proj", "hidden", "two_intermediate"),
        ("mlp.down_proj", "intermediate", "hidden"),
    ),
    target_modules=("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
)
_GLM4 = Family(
    block="model.layers.{}",
    projections=(*_ATTENTION, *_PHI3.projections[2:]),
    target_modules=("q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"),
)
_STARCODER2 = Family(
    block="model.layers.{}",
    projections=(
        *_ATTENTION,
        ("mlp.c_fc", "hidden", "intermediate"),
        ("mlp.c_proj", "intermediate", "hidden"),
    ),
    target_modules=("q_proj", "k_proj", "v_proj", "o_proj", "c_fc", "c_proj"),
)
_GPT_NEOX = Family(
    block="gpt_neox.layers.{}",
    projections=(
        ("attention.query_key_value", "hidden", "three_hidden"),
        ("attention.dense", "hidden", "hidden"),
        ("mlp.dense_h_to_4h", "hidden", "intermediate"),
        ("mlp.dense_4h_to_h", "intermediate", "hidden"),
    ),
    target_modules=("query_key_value", "attention.dense", "dense_h_to_4h", "dense_4h_to_h"),
)
_GPT2 = Family(
    block="transformer.h.{}",
    projections=(
        ("attn.c_attn", "hidden", "three_hidden"),
        ("attn.c_proj", "hidden", "hidden"),
        ("mlp.c_fc", "hidden", "intermediate"),
        ("mlp.c_proj", "intermediate", "hidden"),
    ),
    target_modules=("c_attn", "c_proj", "c_fc"),
    transposed=True,
)
#: By ``model_type`` of the configuration. Where adapters sit; whether a base is trained right is
#: tried on each when it is loaded (``workers.runtime.forward_check``).
FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "ministral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "qwen3_moe": _MIXTURE,
    "mixtral": _MIXTURE,
    "olmo2": _LLAMA,
    "olmo3": _LLAMA,
    "smollm3": _LLAMA,
    "gemma": _LLAMA,
    "gemma3_text": _LLAMA,
    "phi": _PHI,
    "phi3": _PHI3,
    "glm4": _GLM4,
    "starcoder2": _STARCODER2,
    "gpt_neox": _GPT_NEOX,
    "exaone4": _LLAMA,
    "seed_oss": _LLAMA,
    "granite": _LLAMA,
    "cohere": _LLAMA,
    "cohere2": _LLAMA,
    "gemma2": _STOCK_LLAMA,
    "stablelm": _STOCK_LLAMA,
    "helium": _STOCK_LLAMA,
    "nemotron": _NEMOTRON,
    "gpt_oss": replace(_MIXTURE, stock=True),
    "gpt2": _GPT2,
    "bert": _build_bert("bert"),
    "roberta": _build_bert("roberta"),
}


@dataclass(frozen=True, slots=True)
class Projection:
    """One matrix that an adapter can sit on."""

    #: Full name in the model, such as ``model.layers.0.self_attn.q_proj``.
    name: str
    inputs: int
    outputs: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes in a base model's configuration that memory, work and adapters depend on."""

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
    #: ``model_type`` of its configuration, a key of ``FAMILIES``.
    model_type: str = "llama"
    #: Of a mixture of experts: the intermediate width of all of them together.
    experts_size: int = 0
    #: Trained by its own code, one job a pass.
    stock: bool = False

    @property
    def query_size(self) -> int:
        return self.heads * self.head_size

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_size

    @property
    def family(self) -> Family:
        return FAMILIES[self.model_type]

    def list_targets(self, asked: tuple[str, ...] | None) -> tuple[str, ...]:
        """Endings of the modules that an adapter sits on; by default the family's."""
        if asked is not None and ALL_LINEAR in asked:
            return tuple(name for name, _, _ in self.family.projections)
        return asked or self.family.target_modules

    def list_block_projections(self) -> tuple[Projection, ...]:
        """The projections of one block, by their names within it."""
        widths: dict[Width, int] = {
            "hidden": self.hidden_size,
            "query": self.query_size,
            "kv": self.kv_size,
            "intermediate": self.intermediate_size,
            "three_hidden": 3 * self.hidden_size,
            "query_key_value": self.query_size + 2 * self.kv_size,
            "two_intermediate": 2 * self.intermediate_size,
        }
        return tuple(
            Projection(name, widths[inputs], widths[outputs])
            for name, inputs, outputs in self.family.projections
        )

    def list_projections(self) -> tuple[Projection, ...]:
        """Every projection of the model, block by block, by its full name."""
        parts = self.list_block_projections()
        return tuple(
            Projection(f"{self.family.block.format(layer)}.{part.name}", part.inputs, part.outputs)
            for layer in range(self.layers)
            for part in parts
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


#: Weights so quantised are read in 16 bits (gpt-oss).
READ_WHOLE = "mxfp4"
_OTHER_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "num_local_experts": "num_experts",
}
#: Larger sizes are a mistake, or hostile: names of projections are made for each layer.
_SIZE_MAX = 10_000_000
_LAYERS_MAX = 1_000
_EXPERTS_MAX = 10_000


def _check_trainable(config: Mapping[str, object]) -> None:
    """Refuse models of kinds that are not trained here, with what they are.

    Raises
    ------
    ValueError
    """
    if config.get("is_encoder_decoder"):
        what = "has an encoder and a decoder. Choose a model that only continues texts"
    elif "vision_config" in config or "audio_config" in config:
        what = "reads images or sound. Choose its text model"
    elif config.get("ssm_cfg") or "state_size" in config or "mamba_d_state" in config:
        what = "keeps a state in the place of attention. Choose a model with attention alone"
    elif (method := _find_quantization(config)) is not None:
        what = f"has weights in {method} already. Choose the one it was made from"
    else:
        return
    raise ValueError(
        f"Models of the type {str(config.get('model_type'))[:80]!r} cannot be trained "
        f"here: this one {what}."
    )


def _find_quantization(config: Mapping[str, object]) -> str | None:
    """How the stored weights are quantised, unless they are read as whole ones."""
    found = config.get("quantization_config")
    if not isinstance(found, Mapping):
        return None
    method = str(cast(Mapping[str, object], found).get("quant_method"))[:40]
    return None if method == READ_WHOLE else method


def parse_model_shape(config: Mapping[str, object]) -> ModelShape:
    """The shape in a model's ``config.json``.

    Raises
    ------
    ValueError
        When a size is missing or not a positive whole number, or when models of this type
        cannot be trained.
    """

    def size(name: str, default: int | None = None, *, most: int = _SIZE_MAX) -> int:
        # GPT-2 and others have names of their own.
        value = config.get(name, config.get(_OTHER_NAMES.get(name, name)))
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= most:
            raise ValueError(
                f"The model's config.json has {name} = {value!r}; a whole number above 0 is needed."
            )
        return value

    model_type = config.get("model_type")
    _check_trainable(config)
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None or not isinstance(model_type, str):
        raise ValueError(
            f"Models of the type {str(model_type)[:80]!r} cannot be trained here. "
            f"Choose one of these types: {', '.join(sorted(FAMILIES))}."
        )
    hidden, heads = size("hidden_size"), size("num_attention_heads")
    middle = size("intermediate_size", 4 * hidden)
    experts = 0
    if family.experts:
        expert = size("moe_intermediate_size", middle)
        experts = size("num_local_experts", most=_EXPERTS_MAX) * expert
        # of those that a token goes through, together
        middle = size("num_experts_per_tok", most=_EXPERTS_MAX) * expert
    return ModelShape(
        hidden_size=hidden,
        layers=size("num_hidden_layers", most=_LAYERS_MAX),
        intermediate_size=middle,
        vocab_size=size("vocab_size"),
        heads=heads,
        kv_heads=size("num_key_value_heads", heads),
        head_size=size("head_dim", max(1, hidden // heads)),
        encoder=family.encoder,
        model_type=model_type,
        experts_size=experts,
        stock=family.stock,
    )


#: Words in which models' configurations say how far they read.
_READS = ("max_position_embeddings", "n_positions")


def find_context_length(config: Mapping[str, object]) -> int | None:
    """Tokens of the longest row that a model is trained on; ``None`` where it does not say.

    Of a model that turns positions otherwise once a row is long (longrope), those of its short
    rows: in a pack, another job's long row would change how all of them are read.
    """
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
