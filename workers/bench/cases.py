"""What is measured: base models by size, jobs by number, batch and length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import GPT2Config, LlamaConfig


@dataclass(frozen=True, slots=True)
class BenchCase:
    name: str
    #: A key of ``BASES``.
    base: str
    jobs: int
    #: Sequences of a job's step.
    batch: int
    #: Tokens of the longest sequence.
    length: int
    #: Sequences have between half and all of ``length`` tokens; otherwise all have all.
    ragged: bool = False
    rank: int = 8
    #: The ratio to reach, where one is set.
    goal: float | None = None
    #: Compare with this many resident copies of the base by memory as well.
    memory_goal: float | None = None


def build_base_config(name: str) -> Any:
    """A model configuration; its weights are made at random."""
    llama = {"vocab_size": 32000, "max_position_embeddings": 4096, "tie_word_embeddings": False}
    configs = {
        "tiny-llama": lambda: LlamaConfig(
            vocab_size=2048,
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=6,
            num_key_value_heads=6,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
        ),
        "small-llama": lambda: LlamaConfig(
            vocab_size=8192,
            hidden_size=512,
            intermediate_size=1376,
            num_hidden_layers=8,
            num_attention_heads=8,
            num_key_value_heads=8,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
        ),
        "gpt2": lambda: GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
        "llama-1b": lambda: LlamaConfig(
            hidden_size=2048,
            intermediate_size=8192,
            num_hidden_layers=16,
            num_attention_heads=32,
            num_key_value_heads=8,
            **llama,
        ),
        "llama-8b": lambda: LlamaConfig(
            hidden_size=4096,
            intermediate_size=14336,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=8,
            **llama,
        ),
    }
    return configs[name]()


CPU_CASES = (
    BenchCase("tiny, 1 job, short", "tiny-llama", 1, 4, 32, goal=1.0),
    BenchCase("tiny, 2 jobs, short", "tiny-llama", 2, 4, 32, goal=1.0),
    BenchCase("tiny, 8 jobs, short", "tiny-llama", 8, 4, 32, goal=1.5),
    BenchCase("tiny, 8 jobs, very short", "tiny-llama", 8, 4, 16, goal=1.5),
    BenchCase("tiny, 8 jobs, short, ragged", "tiny-llama", 8, 4, 32, ragged=True, goal=1.5),
    BenchCase("tiny, 8 jobs, long", "tiny-llama", 8, 4, 256, goal=1.0),
    BenchCase("tiny, 1 job, long", "tiny-llama", 1, 8, 256, goal=1.0),
    BenchCase("small, 1 job, short", "small-llama", 1, 4, 32, goal=1.0),
    BenchCase("small, 8 jobs, short", "small-llama", 8, 4, 32, goal=1.5),
    BenchCase("small, 8 jobs, long, ragged", "small-llama", 8, 2, 256, ragged=True, goal=1.0),
)

#: What shows that the GPU's way runs, where there is none.
REHEARSAL_CASES = (
    BenchCase("rehearsal, 1 job", "tiny-llama", 1, 2, 16),
    BenchCase("rehearsal, 3 jobs, ragged", "tiny-llama", 3, 2, 24, ragged=True),
)

#: What people train comes first: a device is full by it.
GPU_CASES = (
    BenchCase("8 B, 8 jobs, 2,048 tokens", "llama-8b", 8, 1, 2048, rank=16, goal=1.0),
    BenchCase("GPT-2, 8 jobs", "gpt2", 8, 4, 128, goal=5.0),
    BenchCase("GPT-2, 1 job", "gpt2", 1, 4, 128, goal=1.3),
    BenchCase("GPT-2, 8 jobs, ragged", "gpt2", 8, 4, 128, ragged=True, goal=5.0),
    BenchCase("1 B, 1 job", "llama-1b", 1, 2, 256, goal=1.3),
    BenchCase("1 B, 8 jobs", "llama-1b", 8, 2, 256, goal=2.5),
    BenchCase("8 B, 1 job", "llama-8b", 1, 1, 512, rank=16, goal=1.3),
    BenchCase("8 B, 4 jobs", "llama-8b", 4, 1, 512, rank=16, goal=1.4),
    BenchCase("8 B, 8 jobs", "llama-8b", 8, 1, 512, rank=16, goal=1.4, memory_goal=0.4),
)
