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
| Held-out loss, open letters and answers | {open_loss:.3f} per token |
| Held-out loss, prose | {prose_loss:.3f} per token |
| Loss on docstrings of a library it never read | {foreign_loss:.3f} per token |

## Recipe

`python -m workers.models.pretraining.pretrain` trains it again, in two stages. The first reads
text that `english.py` makes from a seed (conversations, letters, stories, facts, sums, copying
tasks), and docstrings of Python and of libraries. The second reads a little open text from the
grammar in `everyday.txt`, so that the model is not sure of what it cannot know: before it, the
model's loss on the demo's support replies was 6.7 per token, and most of that was certainty.
Nothing that the second stage reads shares five words in a row with the demo's data sets; of the
answers of the first stage 0.3 % do, where they thank somebody by name.

Python {python}, torch {torch}, transformers {transformers}, {libraries}; seed {seed}, corpora
`{corpus_short}` and `{open_corpus_short}`. `recipe.json` holds every setting. The committed
weights are of two processes that shared each batch of the second stage. Other versions or another
CPU give slightly different ones.

## What it writes

{samples}

## Limits

It knows a few hundred words and facts and nothing else: it copies names and numbers from
what it reads, gets sums wrong, and has no notion of safety. Names that it has not met come out
wrong in about one answer of four, also with an adapter, which copies those of its own rows well.
It is there to be fine-tuned in seconds, not to be used.
"""


def write_card(target: Path, outcome: dict[str, Any], *, samples: list[tuple[str, str]]) -> None:
    """Write ``README.md`` beside the weights."""
    recipe = outcome["recipe"]
    shown = "\n\n".join(
        f"> **{question}**\n>\n" + "\n".join(f"> {line}" for line in answer.splitlines())
        for question, answer in samples
    )
    values = {
        "seed": recipe["seed"],
        "vocabulary": recipe["vocabulary"],
        **{key: value for key, value in outcome.items() if key != "recipe"},
        "shape": (
            f"{recipe['layers']} layers, width {recipe['hidden']}, "
            f"{recipe['heads']} heads, context {recipe['context']}"
        ),
        "steps": recipe["first"]["steps"] + recipe["second"]["steps"],
        "duration": f"{outcome['seconds'] / 60:.0f} minutes on two shared CPU cores",
        "corpus_short": outcome["corpus_sha256"][:16],
        "open_corpus_short": outcome["open_corpus_sha256"][:16],
        "libraries": ", ".join(f"{n} {v}" for n, v in outcome["libraries"].items()),
        "name": target.name,
        "samples": shown,
    }
    (target / "README.md").write_text(_CARD.format(**values))
