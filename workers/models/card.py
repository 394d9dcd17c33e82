"""The model card of the bundled model, from what its training measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_CARD = """\
---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
---

# {name}

The base model that comes with Finetender, so that every part of it can be tried without
a download. It is a Llama of {parameters:,} parameters, trained from nothing.

| | |
|--|--|
| Architecture | `LlamaForCausalLM`, {shape} |
| Vocabulary | {vocabulary:,} byte-level BPE tokens; digits stand alone |
| Stored as | bfloat16, loads as float32 |
| Trained on | {trained_tokens:,} tokens in {steps:,} steps, {duration} |
| Held-out loss, conversations | {chat_loss:.3f} per token |
| Held-out loss, prose | {prose_loss:.3f} per token |

## Recipe

`python -m workers.models.pretrain` writes this folder again. The text is made by
`workers/models/english.py` (conversations, stories, facts, sums) from a seed, together
with the docstrings of Python {python}'s standard library. Seed {seed}, torch {torch},
transformers {transformers}, corpus `{corpus_short}`. `recipe.json` holds every setting.
Another version of Python, torch or another CPU gives slightly different weights.

## What it writes

{samples}

## Limits

It knows a few hundred words and facts and nothing else, gets sums beyond small numbers
wrong, and has no notion of safety. It is there to be fine-tuned in seconds, not to be used.
"""


def write_card(target: Path, outcome: dict[str, Any], *, samples: list[tuple[str, str]]) -> None:
    """Write ``README.md`` beside the weights."""
    recipe = outcome["recipe"]
    shown = "\n\n".join(
        f"> **{question}**\n>\n" + "\n".join(f"> {line}" for line in answer.splitlines())
        for question, answer in samples
    )
    values = {
        **recipe,
        **{key: value for key, value in outcome.items() if key != "recipe"},
        "shape": (
            f"{recipe['layers']} layers, width {recipe['hidden']}, "
            f"{recipe['heads']} heads, context {recipe['context']}"
        ),
        "duration": f"{outcome['seconds'] / 60:.0f} minutes on two shared CPU cores",
        "corpus_short": outcome["corpus_sha256"][:16],
        "name": target.name,
        "samples": shown,
    }
    (target / "README.md").write_text(_CARD.format(**values))
