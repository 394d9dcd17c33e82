"""What decides the bundled base model's weights, versions of libraries and the CPU aside."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """Steps on one corpus."""

    steps: int
    #: Steps at the end that read windows of the whole context instead of ``window``.
    long_steps: int
    #: Tokens of a training window.
    window: int
    tokens_per_step: int
    #: Muon's, for the matrices inside the blocks.
    learning_rate: float
    #: AdamW's, for embeddings and norms.
    embedding_rate: float
    warmup_steps: int
    #: Share of the steps over which rates fall, at the end.
    decay_share: float
    weight_decay: float = 0.05


@dataclass(frozen=True, slots=True)
class Recipe:
    seed: int = 7
    conversations: int = 45_000
    paragraphs: int = 12_000
    prose: int = 25_000
    #: Documents that are never read: of the first stage's corpus, and of the second's.
    held_out: int = 600
    open_held_out: int = 120
    open_documents: int = 12_000
    #: Libraries whose docstrings are read, and one whose never are.
    packages: tuple[str, ...] = ("numpy", "scipy", "networkx", "django")
    foreign_package: str = "matplotlib"
    vocabulary: int = 3072
    hidden: int = 224
    layers: int = 5
    heads: int = 7
    kv_heads: int = 7
    intermediate: int = 592
    context: int = 512
    first: Stage = Stage(
        steps=1000,
        long_steps=60,
        window=192,
        tokens_per_step=4_224,
        learning_rate=0.02,
        embedding_rate=3e-3,
        warmup_steps=30,
        decay_share=0.5,
    )
    second: Stage = Stage(
        steps=150,
        long_steps=8,
        window=192,
        tokens_per_step=3_072,
        learning_rate=0.01,
        embedding_rate=1.5e-3,
        warmup_steps=10,
        decay_share=0.6,
    )
