"""What a model is made of, read off its own modules: its blocks, and what adapters sit on.

The same is read without weights, on PyTorch's ``meta`` device: that is what a zone is opened with.
"""

from __future__ import annotations

from collections import defaultdict
from inspect import signature
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSequenceClassification,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)
from transformers.pytorch_utils import Conv1D

from workers.protocol.model_shape import (
    ENCODERS,
    BlockPart,
    ModelShape,
    find_context_length,
    is_four_bit,
)
from workers.training.faults import UserFault
from workers.training.four_bit import FourBitLinear

#: Weights so quantised are read in 16 bits (gpt-oss).
READ_WHOLE = "mxfp4"
#: Tokens of a row of a model that does not say how far it reads.
UNBOUNDED = 1_000_000


def find_loader(config: PretrainedConfig) -> Any:
    """The class of ``transformers`` that loads a model for what it is trained for here.

    Raises
    ------
    UserFault
        When models of this type cannot be trained, with what is missing.
    """
    kind = config.model_type
    quantised = _read_quantization(config)
    method = str(quantised.get("quant_method"))[:40]
    if config.is_encoder_decoder:
        what = "has an encoder and a decoder. Choose a model that only continues texts"
    elif quantised and method != READ_WHOLE and not is_ready(config):
        what = f"has weights in {method} already. Choose the one it was made from"
    elif kind in ENCODERS:
        return AutoModelForSequenceClassification
    elif kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return AutoModelForCausalLM
    elif kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        return AutoModelForImageTextToText
    else:
        what = "does not continue texts. Choose one that transformers loads as a causal model"
    raise UserFault(
        f"Models of the type {str(kind)[:80]!r} cannot be trained here: this one {what}."
    )


def is_ready(config: PretrainedConfig) -> bool:
    """Whether a checkpoint has its projections in four bits as nodes keep them, by bitsandbytes."""
    return is_four_bit(_read_quantization(config))


def _read_quantization(config: PretrainedConfig) -> dict[str, Any]:
    found = getattr(config, "quantization_config", None) or {}
    return found if isinstance(found, dict) else found.to_dict()


def build_on_meta(config: PretrainedConfig) -> PreTrainedModel:
    """The model without its weights.

    Raises
    ------
    UserFault
        As ``find_loader``, or when its modules cannot be made, with what the code says.
    """
    loader = find_loader(config)
    try:
        with torch.device("meta"):
            return loader.from_config(config)
    except (ArithmeticError, AttributeError, ImportError, RuntimeError, TypeError, ValueError) as e:
        reason = " ".join(str(e).split()).rstrip(". ")
        raise UserFault(
            f"Models of the type {config.model_type!r} cannot be made from this config.json: "
            f"{reason}. Download it again, or choose another base model."
        ) from e


def find_backbone(model: PreTrainedModel) -> nn.Module:
    """What turns embeddings into hidden states: of a model that reads images, its text tower."""
    if model.config.model_type in ENCODERS:
        return model.base_model
    decoder: Any = model.get_decoder() or model
    name, _ = find_blocks(decoder)
    return decoder.get_submodule(name.rpartition(".")[0])


def find_blocks(module: nn.Module) -> tuple[str, nn.ModuleList]:
    """Name and modules of the list that holds most of the weights."""
    lists = [(n, m) for n, m in module.named_modules() if isinstance(m, nn.ModuleList)]
    if not lists:
        raise UserFault("This model has no list of blocks. Choose another base model.")
    return max(lists, key=lambda one: sum(p.numel() for p in one[1].parameters()))


def find_last_norms(backbone: nn.Module) -> list[nn.Module]:
    """What a backbone normalises with after its blocks."""
    name, _ = find_blocks(backbone)
    children = list(backbone.named_children())
    at = [child for child, _ in children].index(name)
    return [part for _, part in children[at + 1 :] if type(part).__name__.endswith("Norm")]


def read_shape(model: PreTrainedModel) -> ModelShape:
    """The model's sizes and projections, from its modules; weights may be on ``meta``.

    Raises
    ------
    UserFault
        When models of this type cannot be trained, with what is missing.
    """
    config: Any = model.config.get_text_config()
    # sizes that differ by layer are read off the modules; of others any will do
    config.allow_global_per_layer_attribute_access = True
    names = {part: name for name, part in model.named_modules()}
    backbone = find_backbone(model)
    _, blocks = find_blocks(backbone)
    listed = _list_layers(blocks)
    if not listed:
        raise UserFault(
            f"Models of the type {config.model_type!r} cannot be trained here: their blocks have "
            "no linear layers. Choose another base model."
        )
    embeddings: Any = model.get_input_embeddings()
    hidden = int(config.hidden_size)
    heads = int(_first(config, "num_attention_heads") or 1)
    head_sizes = [
        size
        for module in blocks.modules()
        for name in ("head_dim", "qk_head_dim")
        if isinstance(size := getattr(module, name, None), int)
    ]
    return ModelShape(
        hidden_size=hidden,
        layers=len(blocks),
        intermediate_size=_measure_middle(config, listed, hidden=hidden),
        vocab_size=int(embeddings.num_embeddings),
        heads=heads,
        kv_heads=int(_first(config, "num_key_value_heads") or heads),
        head_size=max(head_sizes, default=0) or max(1, hidden // heads),
        parts=listed,
        block=f"{names[blocks]}.{{}}",
        encoder=config.model_type in ENCODERS,
        model_type=model.config.model_type,
        other_weights=_count_weights(model)
        - sum(part.inputs * part.outputs * len(part.blocks) for part in listed),
        norms=max(2, *(_count_norms(block) for block in blocks)),
        normed_heads=any(
            name.endswith(("q_norm", "q_layernorm")) for name, _ in blocks.named_modules()
        ),
        transposed=any(
            isinstance(module, Conv1D) or (isinstance(module, FourBitLinear) and module.transposed)
            for module in blocks.modules()
        ),
        stock=_needs_own_code(model, config, blocks),
        mlp="mlp" if all(_is_plain_mlp(getattr(block, "mlp", None)) for block in blocks) else "",
        experts=_list_experts(blocks, chosen=_count_chosen(config)),
    )


def _list_layers(blocks: nn.ModuleList) -> tuple[BlockPart, ...]:
    found: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    has_experts = any(name.endswith(_EXPERTS) for name, _ in blocks.named_parameters())
    taken = _TAKEN_FOR_EXPERTS if has_experts else ()
    for number, block in enumerate(blocks):
        for name, module in block.named_modules():
            if is_projection(module) and not _is_apart(name, block, taken):
                found[name, *get_features(module)].append(number)
    return tuple(BlockPart(*key, tuple(numbers)) for key, numbers in found.items())


def _list_experts(blocks: nn.ModuleList, *, chosen: int) -> tuple[BlockPart, ...]:
    found: dict[tuple[str, int, int, int], list[int]] = defaultdict(list)
    for number, block in enumerate(blocks):
        for name, module in block.named_modules():
            for weight in list_expert_weights(module):
                count, outputs, inputs = getattr(module, weight).shape
                sizes = (outputs, inputs) if module.is_transposed else (inputs, outputs)
                found[f"{name}.{weight}", *sizes, count].append(number)
    return tuple(
        BlockPart(name, inputs, outputs, tuple(numbers), count, chosen)
        for (name, inputs, outputs, count), numbers in found.items()
    )


def read_context_length(config: Any) -> int:
    """Tokens that a sequence may have."""
    # roberta's positions start after the padding token's
    skipped = config.pad_token_id + 1 if config.model_type == "roberta" else 0
    return (find_context_length(config.to_dict()) or UNBOUNDED) - skipped


def quantize_projections(model: PreTrainedModel, *, device: torch.device | None = None) -> None:
    """Keep a model's projections in four bits, on a device or where they are; all else stays."""
    for part in read_shape(model).list_projections():
        parent, _, name = part.name.rpartition(".")
        base = model.get_submodule(part.name)
        if isinstance(base, (nn.Linear, Conv1D)):
            there = device or base.weight.device
            setattr(model.get_submodule(parent), name, FourBitLinear(base, device=there))


def is_projection(module: nn.Module) -> bool:
    """Whether an adapter can sit beside the module."""
    # a router gives more than its product
    is_router = "router" in type(module).__name__.lower()
    return isinstance(module, (nn.Linear, Conv1D, FourBitLinear)) and not is_router


def get_features(module: nn.Module) -> tuple[int, int]:
    """Input and output width of a projection."""
    if isinstance(module, Conv1D):
        return module.weight.shape[0], module.weight.shape[1]
    return int(module.in_features), int(module.out_features)  # type: ignore[arg-type]


def list_expert_weights(module: nn.Module) -> tuple[str, ...]:
    """Tensors of a mixture's experts, in the order of their products.

    Of those that ``transformers`` computes by its interface, which says how they lie.
    """
    if not hasattr(module, "is_concatenated") or int(module.num_experts) < 2:  # type: ignore[arg-type]
        return ()
    return "gate_up_proj" if module.has_gate else "up_proj", "down_proj"


def name_targets(model: PreTrainedModel, projections: tuple[str, ...]) -> tuple[str, ...]:
    """The shortest endings of names by which PEFT finds these projections and nothing else.

    Where every ending is that of another module too, such as one of a vision tower, full names.
    """
    every = [name for name, _ in model.named_modules()]
    wanted, found = set(projections), set()
    for name in projections:
        pieces = name.split(".")
        endings = (".".join(pieces[at:]) for at in range(len(pieces) - 1, -1, -1))
        found.add(
            next(
                ending
                for ending in endings
                if wanted.issuperset(n for n in every if n == ending or n.endswith(f".{ending}"))
            )
        )
    return tuple(sorted(found))


#: Beside experts of these names PEFT (0.21, ``_MOE_TARGET_MODULE_MAPPING``) takes every target of
#: such a name for the experts' own weights.
_EXPERTS = "experts.gate_up_proj"
_TAKEN_FOR_EXPERTS = ("gate_proj", "up_proj", "down_proj")


def _is_apart(name: str, block: nn.Module, taken: tuple[str, ...]) -> bool:
    """Whether a linear layer of a block cannot have an adapter beside it that PEFT loads.

    Of a list of experts each sees some of the tokens only. Kernels of state spaces (Mamba) read the
    weights of ``out_proj`` themselves, which PEFT refuses.
    """
    *above, last = name.split(".")
    if any(piece.isdecimal() for piece in above):
        return True
    if last == "out_proj":
        return isinstance(getattr(block.get_submodule(".".join(above)), "D", None), nn.Parameter)
    return last in taken


def _first(config: Any, *names: str) -> Any:
    """The first of these that a configuration has; of a list for each layer, the largest."""
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, (list, tuple)):
            value = max(value, default=None)
        if value is not None:
            return value
    return None


def _measure_middle(config: Any, parts: tuple[BlockPart, ...], *, hidden: int) -> int:
    """The widest of what a token goes through between its block's halves, experts together."""
    taken = int(_first(config, "intermediate_size", "n_inner") or 4 * hidden)
    if not _first(config, "num_local_experts", "num_experts", "n_routed_experts"):
        return taken
    expert = int(_first(config, "moe_intermediate_size", "expert_ffn_hidden_size") or taken)
    beside = [p.outputs for p in parts if p.inputs == hidden and "attn" not in p.name]
    return expert * _count_chosen(config) + max(beside, default=0)


def _count_chosen(config: Any) -> int:
    """Experts that a token goes through."""
    return int(_first(config, "num_experts_per_tok", "top_k_experts") or 1)


def _count_weights(model: nn.Module) -> int:
    """Numbers in the model's weights; those of four bits count as they were."""
    packed = [m for m in model.modules() if isinstance(m, FourBitLinear)]
    taken = sum(p.numel() for p in model.parameters())
    for layer in packed:
        taken -= layer.codes.numel() + layer.largest.numel()
        taken += layer.in_features * layer.out_features
    return taken


def _count_norms(block: nn.Module) -> int:
    """Of the block's own, not of queries and keys."""
    return sum(type(module).__name__.endswith("Norm") for module in block.children())


def _is_plain_mlp(module: nn.Module | None) -> bool:
    """Whether it maps each token by itself, through projections alone."""
    if module is None or len(signature(module.forward).parameters) != 1:
        return False
    owners = [part for part in module.modules() if any(True for _ in part.parameters(False))]
    return len(owners) > 1 and all(map(is_projection, owners))


#: Whose attention does not hand on what tells the jobs of a pack apart.
_KEEPS_PACKS_BACK = {"nemotron"}


def _needs_own_code(model: Any, config: Any, blocks: nn.ModuleList) -> bool:
    """Whether packs cannot be computed, as far as modules say; the forward check has the last word.

    Rows meet in a convolution; scores are capped or chosen among, or attention has sinks or is no
    interface's.
    """
    return config.model_type not in ENCODERS and (
        not model._supports_attention_backend
        or bool(getattr(config, "attn_logit_softcapping", None))
        or bool(getattr(config, "index_topk", None))
        or config.model_type in _KEEPS_PACKS_BACK
        or any(isinstance(module, nn.Conv1d) for module in blocks.modules())
        or any(name.endswith("sinks") for name, _ in blocks.named_parameters())
    )
