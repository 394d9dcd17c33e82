"""Train the bundled base model from nothing: ``python -m workers.models.pretrain``.

A Llama of 1.9 M parameters reads generated English conversations, stories and
facts, and the docstrings of the standard library. Two idle cores need about twenty
minutes; weights are stored in bfloat16 and the whole folder stays under 8 MB.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

from workers.models import TINY, find_bundled_path
from workers.models.card import write_card
from workers.models.corpus import Corpus, Document, build_corpus
from workers.models.tokenizer import encode, plain, train_tokenizer


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides the weights, the Python version aside."""

    seed: int = 7
    conversations: int = 90_000
    paragraphs: int = 25_000
    prose: int = 20_000
    held_out: int = 600
    vocabulary: int = 2048
    hidden: int = 160
    layers: int = 5
    heads: int = 5
    kv_heads: int = 5
    intermediate: int = 432
    context: int = 512
    steps: int = 1000
    #: Steps at the end that read windows of the whole context instead of ``window``.
    long_steps: int = 80
    #: Tokens of a training window.
    window: int = 192
    tokens_per_step: int = 9_216
    learning_rate: float = 4e-3
    warmup_steps: int = 60
    weight_decay: float = 0.1


@dataclass(frozen=True, slots=True)
class PretrainReport:
    recipe: Recipe
    parameters: int
    trained_tokens: int
    #: Mean loss per token on held-out documents, as stored.
    chat_loss: float
    prose_loss: float
    seconds: float
    corpus_sha256: str
    python: str
    torch: str
    transformers: str


def pretrain(recipe: Recipe, target: Path, *, say: Any = print) -> PretrainReport:
    """Run the recipe and write the model, its tokenizer and its card to ``target``."""
    started = time.monotonic()
    torch.manual_seed(recipe.seed)
    corpus = build_corpus(
        conversations=recipe.conversations,
        paragraphs=recipe.paragraphs,
        prose=recipe.prose,
        held_out=recipe.held_out,
        seed=recipe.seed,
    )
    tokenizer = train_tokenizer(
        (plain(document) for document in corpus.training),
        vocabulary=recipe.vocabulary,
        context=recipe.context,
    )
    stream = torch.tensor(
        [token for document in corpus.training for token in encode(tokenizer, document)],
        dtype=torch.int32,
    )
    say(f"{len(corpus.training):,} documents, {len(stream):,} tokens")
    model: Any = LlamaForCausalLM(_config(recipe, tokenizer))
    _train(model, stream, recipe, say)
    model.to(torch.bfloat16).to(torch.float32)
    _write(model, tokenizer, target)
    outcome = _outcome(model, tokenizer, corpus, recipe, time.monotonic() - started)
    (target / "recipe.json").write_text(json.dumps(asdict(outcome), indent=2) + "\n")
    write_card(target, asdict(outcome), samples=_samples(model, tokenizer))
    return outcome


def _config(recipe: Recipe, tokenizer: Any) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=recipe.vocabulary,
        hidden_size=recipe.hidden,
        intermediate_size=recipe.intermediate,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        max_position_embeddings=recipe.context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        use_cache=True,
    )


def _train(model: Any, stream: torch.Tensor, recipe: Recipe, say: Any) -> None:
    """Next-token training on random windows of the stream."""
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": recipe.weight_decay},
            {"params": rest, "weight_decay": 0.0},
        ],
        lr=recipe.learning_rate,
        betas=(0.9, 0.95),
    )
    draws = torch.Generator().manual_seed(recipe.seed)
    model.train()
    started = time.monotonic()
    for step in range(recipe.steps):
        window = recipe.context if step >= recipe.steps - recipe.long_steps else recipe.window
        rows = max(1, recipe.tokens_per_step // window)
        starts = torch.randint(0, len(stream) - window, (rows, 1), generator=draws)
        batch = stream[starts + torch.arange(window)].long()
        for group in optimizer.param_groups:
            group["lr"] = _learning_rate(step, recipe)
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 25 == 0 or step == recipe.steps - 1:
            speed = (step + 1) * recipe.tokens_per_step / (time.monotonic() - started)
            say(f"step {step:5d}  loss {loss.item():.4f}  {speed:,.0f} tokens/s")
    model.eval()


def _learning_rate(step: int, recipe: Recipe) -> float:
    """Linear warm-up, then a cosine down to a fiftieth."""
    if step < recipe.warmup_steps:
        return recipe.learning_rate * (step + 1) / recipe.warmup_steps
    share = (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)
    return recipe.learning_rate * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * share)))


def measure_held_out_loss(
    model: Any,
    tokenizer: Any,
    documents: Sequence[Document],
) -> float:
    """Mean loss per token, each document on its own."""
    total, count = 0.0, 0
    context = model.config.max_position_embeddings
    with torch.no_grad():
        for document in documents:
            tokens = torch.tensor([encode(tokenizer, document)[:context]])
            if tokens.shape[1] < 2:
                continue
            loss = model(input_ids=tokens, labels=tokens).loss.item()
            total += loss * (tokens.shape[1] - 1)
            count += tokens.shape[1] - 1
    return total / count


def _outcome(
    model: Any,
    tokenizer: Any,
    corpus: Corpus,
    recipe: Recipe,
    seconds: float,
) -> PretrainReport:
    chats = [document for document in corpus.held_out if not isinstance(document, str)]
    prose = [document for document in corpus.held_out if isinstance(document, str)]
    return PretrainReport(
        recipe=recipe,
        parameters=sum(p.numel() for p in model.parameters()),
        trained_tokens=recipe.steps * recipe.tokens_per_step,
        chat_loss=round(measure_held_out_loss(model, tokenizer, chats), 4),
        prose_loss=round(measure_held_out_loss(model, tokenizer, prose), 4),
        seconds=round(seconds, 1),
        corpus_sha256=corpus.sha256,
        python=platform.python_version(),
        torch=torch.__version__,
        transformers=transformers.__version__,
    )


def _write(model: Any, tokenizer: Any, target: Path) -> None:
    """Store in bfloat16, to be loaded as float32: half the size, and fast on a CPU."""
    target.mkdir(parents=True, exist_ok=True)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.max_new_tokens = 64
    model.to(torch.bfloat16).save_pretrained(target)
    model.to(torch.float32)
    tokenizer.save_pretrained(target)
    (target / "model.safetensors").chmod(0o644)
    _edit(target / "config.json", dtype="float32")
    _edit(target / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")


def _edit(path: Path, **values: Any) -> None:
    content = json.loads(path.read_text()) | values
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


QUESTIONS = (
    "What is the capital of Japan?",
    "What is 7 + 5?",
    "Where is my order?",
    "List three fruits.",
    "How do I make tea?",
    "Tell me a short story about a fox.",
)


def generate(model: Any, tokenizer: Any, question: str) -> str:
    """The model's most likely answer."""
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
    )
    tokens = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
    with torch.no_grad():
        written = model.generate(
            input_ids=tokens["input_ids"],
            attention_mask=tokens["attention_mask"],
            do_sample=False,
            max_new_tokens=64,
        )
    new = written[0, tokens["input_ids"].shape[1] :]
    return str(tokenizer.decode(new, skip_special_tokens=True))


def _samples(model: Any, tokenizer: Any) -> list[tuple[str, str]]:
    return [(question, generate(model, tokenizer, question)) for question in QUESTIONS]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m workers.models.pretrain", description=__doc__)
    parser.add_argument("--out", type=Path, default=find_bundled_path(f"bundled:{TINY}"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=Recipe().steps)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    outcome = pretrain(Recipe(steps=arguments.steps), arguments.out)
    print(json.dumps(asdict(outcome)))


if __name__ == "__main__":
    main()
