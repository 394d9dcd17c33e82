"""Shapes of models as tests need them, without reading any model."""

from __future__ import annotations

from workers.protocol.model_shape import BlockPart, ModelShape


def build_llama_shape(
    *,
    hidden_size: int,
    layers: int,
    intermediate_size: int,
    vocab_size: int,
    heads: int,
    kv_heads: int,
    head_size: int,
) -> ModelShape:
    """With the seven projections of Llama in every block."""
    query, kv, blocks = heads * head_size, kv_heads * head_size, tuple(range(layers))
    parts = (
        BlockPart("self_attn.q_proj", hidden_size, query, blocks),
        BlockPart("self_attn.k_proj", hidden_size, kv, blocks),
        BlockPart("self_attn.v_proj", hidden_size, kv, blocks),
        BlockPart("self_attn.o_proj", query, hidden_size, blocks),
        BlockPart("mlp.gate_proj", hidden_size, intermediate_size, blocks),
        BlockPart("mlp.up_proj", hidden_size, intermediate_size, blocks),
        BlockPart("mlp.down_proj", intermediate_size, hidden_size, blocks),
    )
    norms = (2 * layers + 1) * hidden_size
    return ModelShape(
        hidden_size=hidden_size,
        layers=layers,
        intermediate_size=intermediate_size,
        vocab_size=vocab_size,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        parts=parts,
        mlp="mlp",
        other_weights=2 * vocab_size * hidden_size + norms,
    )


def build_bert_shape(
    *, hidden_size: int, layers: int, intermediate_size: int, vocab_size: int, heads: int
) -> ModelShape:
    wide, middle, blocks = hidden_size, intermediate_size, tuple(range(layers))
    attention = tuple(
        BlockPart(f"attention.{name}", wide, wide, blocks)
        for name in ("self.query", "self.key", "self.value", "output.dense")
    )
    return ModelShape(
        hidden_size=wide,
        layers=layers,
        intermediate_size=middle,
        vocab_size=vocab_size,
        heads=heads,
        kv_heads=heads,
        head_size=wide // heads,
        parts=(
            *attention,
            BlockPart("intermediate.dense", wide, middle, blocks),
            BlockPart("output.dense", middle, wide, blocks),
        ),
        block="bert.encoder.layer.{}",
        encoder=True,
        model_type="bert",
    )
