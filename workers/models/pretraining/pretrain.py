"""Train the bundled base model from nothing: ``python -m workers.models.pretraining.pretrain``.

A Llama of 3.7 M parameters reads in two stages. First generated English (conversations,
letters, stories, facts and copying tasks over names and numbers without end) and the docstrings
of Python and of four libraries. After that it is sure of a few hundred sentences and wrong about
all others, so then it reads a little open text: letters and answers from a grammar of a thousand
common words, in which the next word is never certain (``open_talk``). Matrices are trained by
Muon (Jordan 2024), the rest by AdamW, in bfloat16. An idle core needs about half an hour; weights
are stored in bfloat16 and the whole folder stays under 8 MB.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

from workers.models import TINY, find_bundled_path
from workers.models.pretraining.card import write_card
from workers.models.pretraining.corpus import (
    Corpus,
    Document,
    build_corpus,
    build_open_corpus,
    extract_docstring_prose,
)
from workers.models.pretraining.recipe import Recipe, Stage
from workers.models.pretraining.tokenizer import encode, read_plain_words, train_tokenizer


@dataclass(frozen=True, slots=True)
class PretrainReport:
    recipe: Recipe
    parameters: int
    trained_tokens: int
    #: Mean loss per token on held-out documents, as stored.
    chat_loss: float
    prose_loss: float
    open_loss: float
    #: The same on docstrings of a library that it never read.
    foreign_loss: float
    seconds: float
    corpus_sha256: str
    open_corpus_sha256: str
    python: str
    torch: str
    transformers: str
    #: Versions of the libraries whose docstrings were read.
    libraries: dict[str, str]


def pretrain(recipe: Recipe, target: Path, *, say: Any = print) -> PretrainReport:
    """Run the recipe and write the model, its tokenizer and its card to ``target``."""
    started = time.monotonic()
    torch.manual_seed(recipe.seed)
    corpus, opened = build_corpora(recipe)
    tokenizer = train_tokenizer(
        (read_plain_words(document) for document in corpus.training),
        vocabulary=recipe.vocabulary,
        context=recipe.context,
    )
    model: Any = LlamaForCausalLM(_config(recipe, tokenizer))
    for stage, documents in ((recipe.first, corpus.training), (recipe.second, opened.training)):
        stream = _encode_stream(tokenizer, documents)
        say(f"{len(documents):,} documents, {len(stream):,} tokens")
        _train(model, stream, stage, seed=recipe.seed, context=recipe.context, say=say)
        # Each stage ends with what can be stored.
        model.to(torch.bfloat16).to(torch.float32)
    return write_model(
        model, tokenizer, recipe, corpus, opened, target, seconds=time.monotonic() - started
    )


def build_corpora(recipe: Recipe) -> tuple[Corpus, Corpus]:
    """What the two stages read."""
    corpus = build_corpus(
        conversations=recipe.conversations,
        paragraphs=recipe.paragraphs,
        prose=recipe.prose,
        packages=recipe.packages,
        held_out=recipe.held_out,
        seed=recipe.seed,
    )
    opened = build_open_corpus(
        documents=recipe.open_documents,
        packages=recipe.packages,
        held_out=recipe.open_held_out,
        seed=recipe.seed,
    )
    return corpus, opened


def write_model(
    model: Any,
    tokenizer: Any,
    recipe: Recipe,
    corpus: Corpus,
    opened: Corpus,
    target: Path,
    *,
    seconds: float,
) -> PretrainReport:
    """Measure a trained model and write it with its tokenizer, its recipe and its card."""
    _write(model, tokenizer, target)
    outcome = _outcome(model, tokenizer, recipe, corpus, opened, seconds=seconds)
    (target / "recipe.json").write_text(json.dumps(asdict(outcome), indent=2) + "\n")
    write_card(target, asdict(outcome), samples=_samples(model, tokenizer))
    return outcome


def _encode_stream(tokenizer: Any, documents: Sequence[Document]) -> torch.Tensor:
    """``int32[tokens]``: the documents one after the other."""
    tokens = [token for document in documents for token in encode(tokenizer, document)]
    return torch.tensor(tokens, dtype=torch.int32)


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


def _train(
    model: Any, stream: torch.Tensor, stage: Stage, *, seed: int, context: int, say: Any
) -> None:
    """Next-token training on random windows of the stream."""
    optimizers = _build_optimizers(model, stage)
    rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    draws = torch.Generator().manual_seed(seed)
    model.train()
    # Faster than the fused kernel at these lengths on a CPU, by a sixth.
    model.set_attn_implementation("eager")
    started = time.monotonic()
    for step in range(stage.steps):
        window = context if step >= stage.steps - stage.long_steps else stage.window
        rows = max(1, stage.tokens_per_step // window)
        starts = torch.randint(0, len(stream) - window, (rows, 1), generator=draws)
        batch = stream[starts + torch.arange(window)].long()
        share = _compute_rate_share(step, stage)
        for optimizer, full_rates in zip(optimizers, rates, strict=True):
            for group, rate in zip(optimizer.param_groups, full_rates, strict=True):
                group["lr"] = rate * share
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(input_ids=batch).logits
        loss = F.cross_entropy(
            logits[:, :-1].float().flatten(0, 1), batch[:, 1:].flatten(), reduction="mean"
        )
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        if step % 25 == 0 or step == stage.steps - 1:
            speed = (step + 1) * stage.tokens_per_step / (time.monotonic() - started)
            say(f"step {step:5d}  loss {loss.item():.4f}  {speed:,.0f} tokens/s")
    model.set_attn_implementation("sdpa")
    model.eval()


def _build_optimizers(model: Any, stage: Stage) -> tuple[torch.optim.Optimizer, ...]:
    """Muon for the matrices inside the blocks, AdamW for embeddings and norms."""
    matrices, rest = [], []
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim == 2 and "embed" not in name
        (matrices if is_matrix else rest).append(parameter)
    return (
        torch.optim.Muon(
            matrices, lr=stage.learning_rate, weight_decay=stage.weight_decay, momentum=0.95
        ),
        torch.optim.AdamW(rest, lr=stage.embedding_rate, betas=(0.9, 0.95), weight_decay=0.0),
    )


def _compute_rate_share(step: int, stage: Stage) -> float:
    """Linear warm-up, then the full rate, then linearly down to a fiftieth."""
    if step < stage.warmup_steps:
        return (step + 1) / stage.warmup_steps
    left = (stage.steps - step) / max(1, stage.decay_share * stage.steps)
    return max(0.02, min(1.0, left))


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
    recipe: Recipe,
    corpus: Corpus,
    opened: Corpus,
    *,
    seconds: float,
) -> PretrainReport:
    chats = [document for document in corpus.held_out if not isinstance(document, str)]
    prose = [document for document in corpus.held_out if isinstance(document, str)]
    foreign = extract_docstring_prose(recipe.foreign_package)[::20]
    stages = (recipe.first, recipe.second)
    return PretrainReport(
        recipe=recipe,
        parameters=sum(p.numel() for p in model.parameters()),
        trained_tokens=sum(stage.steps * stage.tokens_per_step for stage in stages),
        chat_loss=round(measure_held_out_loss(model, tokenizer, chats), 4),
        prose_loss=round(measure_held_out_loss(model, tokenizer, prose), 4),
        open_loss=round(measure_held_out_loss(model, tokenizer, opened.held_out), 4),
        foreign_loss=round(measure_held_out_loss(model, tokenizer, foreign), 4),
        seconds=round(seconds, 1),
        corpus_sha256=corpus.sha256,
        open_corpus_sha256=opened.sha256,
        python=platform.python_version(),
        torch=torch.__version__,
        transformers=transformers.__version__,
        libraries={name: version(name) for name in recipe.packages},
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
    parser = argparse.ArgumentParser(
        prog="python -m workers.models.pretraining.pretrain", description=__doc__
    )
    parser.add_argument("--out", type=Path, default=find_bundled_path(f"bundled:{TINY}"))
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    outcome = pretrain(Recipe(), arguments.out)
    print(json.dumps(asdict(outcome)))


if __name__ == "__main__":
    main()
