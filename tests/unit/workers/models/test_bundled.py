"""The bundled model and data sets as committed."""

import json
import re
from dataclasses import asdict

import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from workers.models import DATASETS, TINY, find_bundled_path, is_bundled
from workers.models.pretraining.corpus import build_corpus, extract_standard_library_prose
from workers.models.pretraining.demo_data import write
from workers.models.pretraining.pretrain import generate, measure_held_out_loss
from workers.models.pretraining.recipe import Recipe
from workers.protocol.job_spec import DataFormat
from workers.protocol.records import Row, read_rows

FOLDER = find_bundled_path(f"bundled:{TINY}")
#: Bytes the whole folder may take.
SIZE_LIMIT = 8 * 1024 * 1024
#: Mean loss per token of conversations it never saw; one that knows nothing is at 8.0.
CHAT_LOSS_LIMIT = 1.2
#: Mean loss per token of the demo's answers, of which it has read none.
DEMO_LOSS_LIMIT = 4.0
#: Share of held-out replies that name the customer after a short training.
NAMES_COPIED = 0.9


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Matrices this small only lose by being shared out."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(FOLDER).eval()


@pytest.fixture(scope="module")
def recipe_outcome():
    return json.loads((FOLDER / "recipe.json").read_text())


def test_sources_are_resolved_by_name():
    assert is_bundled("bundled:finetender-tiny")
    assert not is_bundled("meta-llama/Llama-3.1-8B")
    for source in ("bundled:other", "finetender-tiny", "bundled:../models", "bundled:"):
        with pytest.raises(LookupError, match="There is bundled:finetender-tiny"):
            find_bundled_path(source)


def test_it_is_small():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= SIZE_LIMIT


def test_it_is_a_stock_llama_in_float32(model):
    assert type(model).__name__ == "LlamaForCausalLM"
    assert model.dtype == torch.float32
    assert not any(parameter.isnan().any() for parameter in model.parameters())


def test_any_text_survives_the_tokenizer(tokenizer):
    for text in (
        "What is 7 + 5?",
        "naïve café 東京 🙂\n\ttab",
        "\x00\x7f",
        " leading and trailing ",
    ):
        tokens = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(tokens) == text
        assert max(tokens) < len(tokenizer)


def test_the_chat_template_opens_and_closes_every_message(tokenizer):
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "A"},
        {"role": "tool", "content": "T"},
    ]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|system|>S<|end|><|user|>U<|end|><|assistant|>A<|end|><|tool|>T<|end|><|assistant|>"
    )
    assert tokenizer.eos_token == "<|end|>"


@pytest.mark.nightly
def test_it_has_learnt_what_its_card_says(model, tokenizer, recipe_outcome):
    settings = recipe_outcome["recipe"]
    corpus = build_corpus(
        conversations=0, paragraphs=0, prose=0, held_out=settings["held_out"], seed=settings["seed"]
    )
    chats = [document for document in corpus.held_out if not isinstance(document, str)][:120]
    loss = measure_held_out_loss(model, tokenizer, chats)
    assert loss == pytest.approx(recipe_outcome["chat_loss"], abs=0.1)
    assert loss < CHAT_LOSS_LIMIT


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["support_tone.jsonl", "unit_sums.jsonl"])
def test_it_is_not_sure_of_answers_that_it_never_read(model, tokenizer, name):
    losses, answers = [], 0
    for document in read_documents(name)[:60]:
        prompt = tokenizer.apply_chat_template(
            document[:-1], tokenize=False, add_generation_prompt=True
        )
        whole = tokenizer.apply_chat_template(document, tokenize=False)
        first = len(tokenizer.encode(prompt, add_special_tokens=False))
        tokens = torch.tensor(tokenizer.encode(whole, add_special_tokens=False))
        with torch.no_grad():
            logits = model(input_ids=tokens[None]).logits[0]
        losses.append(F.cross_entropy(logits[first - 1 : -1], tokens[first:], reduction="sum"))
        answers += len(tokens) - first
    assert float(sum(losses)) / answers < DEMO_LOSS_LIMIT


def test_the_settings_of_the_committed_model_are_the_recipes(recipe_outcome):
    assert recipe_outcome["recipe"] == json.loads(json.dumps(asdict(Recipe())))


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is the capital of Japan?", "The capital of Japan is Tokyo."),
        ("What is the opposite of hot?", "The opposite of hot is cold."),
        ("How many minutes are in an hour?", "There are 60 minutes in an hour."),
        ("I am Lisbeth. What is my name?", "Your name is Lisbeth."),
        ("My name is Trabo. Greet me.", "Welcome, Trabo!"),
    ],
)
def test_it_answers_what_it_was_taught(model, tokenizer, question, answer):
    assert generate(model, tokenizer, question) == answer


@pytest.mark.nightly
def test_it_writes_words(model, tokenizer):
    known = set(re.findall(r"[a-z]+", " ".join(extract_standard_library_prose()).lower()))
    corpus = build_corpus(conversations=3000, paragraphs=500, prose=0, held_out=10, seed=1)
    for document in corpus.training:
        text = document if isinstance(document, str) else repr(document)
        known.update(re.findall(r"[a-z]+", text.lower()))
    story = generate(model, tokenizer, "Tell me a short story about a fox.")
    words = re.findall(r"[a-z]+", story.lower())
    assert len(words) > 15
    assert len([word for word in words if word in known]) >= 0.95 * len(words)


@pytest.mark.parametrize(
    ("name", "data_format"),
    [("support_tone.jsonl", DataFormat.CHAT), ("unit_sums.jsonl", DataFormat.INSTRUCTION)],
)
def test_the_demo_data_are_clean_and_made_by_their_script(name, data_format, tmp_path):
    path = DATASETS / name
    with path.open("rb") as stream:
        found = list(read_rows(stream, name=name))
    rows = [row for row in found if isinstance(row, Row)]
    assert len(rows) == len(found) >= 300
    assert {row.format for row in rows} == {data_format}
    assert len({row.segments for row in rows}) == len(rows)
    write(tmp_path)
    assert (tmp_path / name).read_bytes() == path.read_bytes()


@pytest.mark.nightly
# PEFT asks transformers for a property by its old name.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("name", ["support_tone.jsonl", "unit_sums.jsonl"])
def test_a_short_lora_lowers_the_loss_and_changes_what_it_writes(name, tokenizer):
    """Stock PEFT, so that a fault of our engine cannot hide in the model or the other way round."""
    torch.manual_seed(0)
    documents = read_documents(name)
    training, held_out = documents[40:], documents[:40]
    model = AutoModelForCausalLM.from_pretrained(FOLDER)
    config = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, config)
    question = held_out[0][-2]["content"]
    before = measure_held_out_loss(model, tokenizer, held_out)
    written_before = generate(model, tokenizer, question)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(40):
        texts = [
            tokenizer.apply_chat_template(document, tokenize=False)
            for document in (training[(step * 8 + i) % len(training)] for i in range(8))
        ]
        batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        loss = model(**batch, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    after = measure_held_out_loss(model, tokenizer, held_out)
    assert after < 0.5 * before
    assert generate(model, tokenizer, question) != written_before
    if name == "support_tone.jsonl":
        assert count_names_copied(model, tokenizer, held_out) >= NAMES_COPIED * len(held_out)


def read_documents(name):
    """The rows of a bundled data set as chats."""
    with (DATASETS / name).open("rb") as stream:
        rows = [row for row in read_rows(stream) if isinstance(row, Row)]
    documents = [
        [{"role": part.role, "content": part.text} for part in row.segments] for row in rows
    ]
    roles = {"prompt": "user", "completion": "assistant"}
    return [
        [part | {"role": roles.get(part["role"], part["role"])} for part in document]
        for document in documents
    ]


def count_names_copied(model, tokenizer, documents):
    """Replies that begin with the name at the end of the customer's message."""
    prompts = [
        tokenizer.apply_chat_template(document[:-1], tokenize=False, add_generation_prompt=True)
        for document in documents
    ]
    tokenizer.padding_side = "left"
    batch = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
    tokenizer.padding_side = "right"
    with torch.no_grad():
        written = model.generate(**batch, do_sample=False, max_new_tokens=6)
    replies = tokenizer.batch_decode(
        written[:, batch["input_ids"].shape[1] :], skip_special_tokens=True
    )
    names = [document[-2]["content"].split()[-1] for document in documents]
    return sum(
        reply.startswith(f"Dear {name},") for reply, name in zip(replies, names, strict=True)
    )
