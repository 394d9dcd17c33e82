"""The recipe on a micro scale: every part runs, and the same seed gives the same model."""

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from workers.models.pretraining.corpus import (
    build_corpus,
    build_open_corpus,
    extract_standard_library_prose,
    overlaps_with_demo,
)
from workers.models.pretraining.demo_data import support_tone, unit_sums
from workers.models.pretraining.english import conversation, paragraph
from workers.models.pretraining.open_talk import open_conversation
from workers.models.pretraining.pretrain import pretrain
from workers.models.pretraining.recipe import Recipe, Stage

MICRO = replace(
    Recipe(),
    conversations=300,
    paragraphs=60,
    prose=80,
    packages=(),
    foreign_package="jinja2",
    held_out=20,
    open_documents=60,
    open_held_out=4,
    vocabulary=400,
    hidden=32,
    layers=2,
    heads=2,
    kv_heads=2,
    intermediate=64,
    context=64,
    first=Stage(
        steps=30,
        long_steps=2,
        window=32,
        tokens_per_step=256,
        learning_rate=0.02,
        embedding_rate=3e-3,
        warmup_steps=3,
        decay_share=0.5,
    ),
    second=Stage(
        steps=4,
        long_steps=1,
        window=32,
        tokens_per_step=256,
        learning_rate=0.01,
        embedding_rate=1e-3,
        warmup_steps=2,
        decay_share=0.5,
    ),
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folders = [tmp_path_factory.mktemp(name) / "model" for name in ("first", "second")]
    lines: list[str] = []
    outcomes = [pretrain(MICRO, folder, say=lines.append) for folder in folders]
    torch.set_num_threads(threads)
    return folders, outcomes, lines


@pytest.mark.nightly
def test_it_writes_a_model_that_stock_transformers_loads(trained):
    (folder, _), _, _ = trained
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "recipe.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.dtype == torch.float32
    assert len(tokenizer) == 400
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


@pytest.mark.nightly
def test_it_learns(trained):
    _, (outcome, _), lines = trained
    first = float(next(line for line in lines if line.startswith("step     0")).split()[3])
    # A model that knows nothing is at log(400) = 5.99.
    assert first == pytest.approx(5.99, abs=0.35)
    assert outcome.chat_loss < first - 0.8


@pytest.mark.nightly
def test_the_same_seed_gives_the_same_model(trained):
    (one, other), outcomes, _ = trained
    for name in ("model.safetensors", "tokenizer.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes()
    assert replace(outcomes[0], seconds=0.0) == replace(outcomes[1], seconds=0.0)


@pytest.mark.nightly
def test_the_card_says_what_was_measured(trained):
    (folder, _), (outcome, _), _ = trained
    card = (folder / "README.md").read_text()
    assert f"{outcome.parameters:,} parameters" in card
    assert f"{outcome.chat_loss:.3f} per token" in card
    assert "What is the capital of Japan?" in card
    assert json.loads((folder / "recipe.json").read_text())["chat_loss"] == outcome.chat_loss


class TestCorpus:
    def test_nothing_held_out_is_trained_on(self):
        corpus = build_corpus(conversations=4000, paragraphs=500, prose=500, held_out=200, seed=1)
        trained = {repr(document) for document in corpus.training}
        assert len(corpus.held_out) == 220
        assert not trained & {repr(document) for document in corpus.held_out}

    def test_another_seed_is_another_corpus(self):
        sizes: dict[str, Any] = {"conversations": 50, "paragraphs": 10, "prose": 10, "held_out": 10}
        one, same, other = (build_corpus(**sizes, seed=seed) for seed in (1, 1, 2))
        assert one == same
        assert one.sha256 != other.sha256

    def test_open_text_never_repeats_the_demos_data(self):
        corpus = build_open_corpus(documents=1500, held_out=40, seed=1)
        assert 1300 < len(corpus.training) <= 1500
        assert not any(map(overlaps_with_demo, corpus.training))
        trained = {repr(document) for document in corpus.training}
        assert not trained & {repr(document) for document in corpus.held_out}
        # What is left out is found: every row of the demo overlaps with itself.
        assert all(overlaps_with_demo(row["messages"]) for row in support_tone())
        assert all(overlaps_with_demo(row["output"]) for row in unit_sums())

    def test_open_answers_are_no_two_alike(self):
        random = Random(6)
        answers = [open_conversation(random)[-1]["content"] for _ in range(1000)]
        assert len(set(answers)) > 990
        assert not any("{" in answer or "  " in answer for answer in answers)

    def test_the_prose_is_plain_sentences(self):
        lines = extract_standard_library_prose()
        assert len(lines) > 1000
        assert list(lines) == sorted(set(lines))
        for line in lines:
            assert line[0].isupper()
            assert line[-1] in ".!?"
            assert "\n" not in line

    def test_conversations_alternate_and_are_never_empty(self):
        random = Random(3)
        for _ in range(2000):
            messages = conversation(random)
            roles = [m["role"] for m in messages if m["role"] != "system"]
            assert roles == ["user", "assistant"] * (len(roles) // 2)
            assert all(m["content"].strip() == m["content"] != "" for m in messages)
            assert not any("{p}" in m["content"] or "{n}" in m["content"] for m in messages)

    def test_sums_are_right(self):
        random = Random(4)
        checked = 0
        for _ in range(3000):
            for message in conversation(random):
                text = message["content"]
                left, equals, right = text.partition(" = ")
                if equals and message["role"] == "assistant" and len(text) < 20:
                    one, sign, two = left.split()
                    result = {"+": int(one) + int(two), "-": int(one) - int(two)}
                    assert result.get(sign, int(one) * int(two)) == int(right)
                    checked += 1
        assert checked > 100

    def test_paragraphs_are_whole_sentences(self):
        random = Random(5)
        for _ in range(500):
            text = paragraph(random)
            assert text[0].isupper()
            assert "{" not in text
            assert "  " not in text
