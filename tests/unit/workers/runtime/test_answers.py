"""Answers with adapters attached: stock transformers and PEFT write the same, token for token."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from tests.unit.workers.training_builders import (
    RecordingSink,
    attach,
    byte_tokenizer,
    completion_rows,
    job_spec,
    save_tiny_base,
    write_jsonl,
)
from workers.protocol.generation import ChatTurn, Question, TokenBias
from workers.protocol.job_spec import BlobRef
from workers.protocol.probes import ProbeAdapter
from workers.protocol.prompts import encode_prompt
from workers.runtime import answers
from workers.runtime.node_runtime import NodeRuntime
from workers.training.data import TokenizerEncoder
from workers.training.faults import PromptTooLong, SchemaFault, SystemFault, UserFault
from workers.training.grammars import AnswerGrammar
from workers.training.sampling import choose_token

PROMPTS = ("item 3 is", "item 17 is", "what is item 5?", "a")


class Told:
    """What a runtime says of one answer, until its end."""

    def __init__(self):
        self.items = []
        self._done = threading.Event()

    def __call__(self, written):
        self.items.append(written)
        if written.finish:
            self._done.set()

    def wait(self):
        assert self._done.wait(60)
        return "".join(item.text for item in self.items)

    @property
    def last(self):
        return self.items[-1]


def question(base, token="q", *, adapter=None, **terms):
    terms = {"prompt": PROMPTS[0], "max_tokens": 12} | terms
    return Question(
        token=token,
        expires_at=time.time() + 600,
        base_model=base,
        adapter=None if adapter is None else adapter[0],
        **terms,
    )


def ask(runtime, base, *, adapter=None, **terms):
    told = Told()
    runtime.answer(question(base, adapter=adapter, **terms), adapter and adapter[1], told)
    told.wait()
    return told


def text_of(told):
    return "".join(item.text for item in told.items)


@pytest.fixture(scope="module")
def adapters(base, tmp_path_factory):
    """Two trained adapters of different ranks: as a node gets them, with their folders."""
    folder = tmp_path_factory.mktemp("adapters")
    runtime = NodeRuntime(device="cpu", cache_dir=folder / "cache")
    found = []
    for number, (word, rank) in enumerate((("blue", 4), ("red", 8))):
        data = write_jsonl(folder / f"{word}.jsonl", completion_rows(40, word=word))
        spec = job_spec(
            f"job-{word}",
            base,
            data,
            adapter={"rank": rank, "alpha": 32.0},
            training={"learning_rate": 2e-2},
        )
        sink = RecordingSink()
        attach(runtime, spec, data, sink=sink)
        sink.wait()
        assert sink.outcome == "finished", sink.reason
        kept = folder / f"kept-{number}"
        shutil.copytree(sink.adapter_dir, kept)
        archive = Path(shutil.make_archive(str(folder / f"adapter-{number}"), "zip", kept))
        blob = BlobRef(url="/x", sha256="0" * 64, bytes=archive.stat().st_size)
        found.append((ProbeAdapter(f"art-{number}", blob, spec.adapter), archive, kept))
    runtime.close()
    return found


def write_stock(base, prompt, *, adapter=None, tokens=12):
    model = AutoModelForCausalLM.from_pretrained(base.source)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, str(adapter[2]))
    tokenizer = byte_tokenizer()
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    with torch.no_grad():
        written = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=tokens,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    return str(tokenizer.decode(written[0, ids.shape[1] :], skip_special_tokens=True))


# PEFT asks transformers for a property by its old name.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_answers_written_together_are_those_of_stock_models(runtime, base, adapters):
    asked = [
        (prompt, adapter) for prompt in PROMPTS[:2] for adapter in (None, adapters[0], adapters[1])
    ]
    told = []
    for number, (prompt, adapter) in enumerate(asked):
        told.append(Told())
        terms = question(base, f"q{number}", adapter=adapter, prompt=prompt)
        runtime.answer(terms, adapter and adapter[1], told[-1])
    for (prompt, adapter), one in zip(asked, told, strict=True):
        assert one.wait() == write_stock(base, prompt, adapter=adapter)
        assert one.last.finish in ("stop", "length")
    assert len({text_of(one) for one in told[:3]}) == 3


@pytest.mark.parametrize("family", ["mistral", "gpt2", "qwen3"])
def test_answers_of_other_families_are_those_of_stock_models(runtime, tmp_path, family):
    base = save_tiny_base(tmp_path, family)
    if family == "mistral":
        # Shorter than prompt and answer.
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(config | {"sliding_window": 8}))
    prompt = "what colour is it?"
    told = ask(runtime, base, prompt=prompt)
    assert text_of(told) == write_stock(base, prompt)
    assert told.last.answer_tokens > 1


def test_an_answer_beside_training_is_the_same_and_the_job_ends_well(
    runtime, base, adapters, tmp_path
):
    alone = text_of(ask(runtime, base, adapter=adapters[0], prompt=PROMPTS[1]))
    data = write_jsonl(tmp_path / "rows.jsonl", completion_rows(40))
    sink = RecordingSink()
    attach(runtime, job_spec("job-1", base, data), data, sink=sink)
    beside = [ask(runtime, base, adapter=adapters[0], prompt=PROMPTS[1]) for _ in range(3)]
    assert [text_of(one) for one in beside] == [alone] * 3
    sink.wait()
    assert sink.outcome == "finished"


def test_a_group_writes_beside_its_jobs_what_one_device_writes(runtime, base, adapters, tmp_path):
    asked = [(PROMPTS[0], adapters[0]), (PROMPTS[1], adapters[1]), (PROMPTS[1], None)]
    alone = [text_of(ask(runtime, base, adapter=one, prompt=prompt)) for prompt, one in asked]
    data = write_jsonl(tmp_path / "rows.jsonl", completion_rows(16))
    group = NodeRuntime(device="cpu,cpu", cache_dir=tmp_path / "group")
    try:
        specs = [job_spec(f"job-{number}", base, data) for number in range(2)]
        sinks = [attach(group, spec, data) for spec in specs]
        assert [len(part) for part in group.resident(base).model.parts] == [1, 1]
        beside = [text_of(ask(group, base, adapter=one, prompt=prompt)) for prompt, one in asked]
        assert beside == alone
        for sink in sinks:
            sink.wait()
            assert sink.outcome == "finished", sink.reason
    finally:
        group.close()


def test_text_stops_before_a_stop_text_and_none_of_it_is_sent(runtime, base, adapters):
    whole = text_of(ask(runtime, base, adapter=adapters[0]))
    assert len(whole) >= 4
    stop = whole[2:4]
    told = ask(runtime, base, adapter=adapters[0], stop=(stop,))
    assert text_of(told) == whole[: whole.index(stop)]
    assert told.last.finish == "stop"


def test_the_seed_decides_what_is_drawn(runtime, base):
    terms = {"temperature": 1.5, "max_tokens": 20}
    first, again = (text_of(ask(runtime, base, seed=1, **terms)) for _ in range(2))
    assert again == first
    assert len({text_of(ask(runtime, base, seed=seed, **terms)) for seed in range(4)}) > 1


def test_probabilities_are_told_of_each_token(runtime, base):
    told = ask(runtime, base, top_tokens=3, max_tokens=4)
    tokens = [token for item in told.items for token in item.tokens]
    assert len(tokens) == told.last.answer_tokens
    for token in tokens:
        # The likeliest token is the one that greedy writing takes.
        assert token.likeliest[0].text == token.text
        assert [one.logprob for one in token.likeliest] == sorted(
            (one.logprob for one in token.likeliest), reverse=True
        )
        assert token.logprob == token.likeliest[0].logprob <= 0


SCHEMA = """{"type": "object", "properties": {"b": {"type": "integer", "maximum": 99},
"a": {"enum": ["x", "y"]}}, "required": ["b", "a"], "additionalProperties": false}"""


def test_an_answer_follows_its_schema_beside_one_that_is_free(runtime, base, adapters):
    free = text_of(ask(runtime, base, adapter=adapters[0], max_tokens=40))
    told = [Told(), Told()]
    bound = question(base, "bound", schema=SCHEMA, max_tokens=200, temperature=1.0)
    runtime.answer(bound, None, told[0])
    beside = question(base, "free", adapter=adapters[0], max_tokens=40)
    runtime.answer(beside, adapters[0][1], told[1])
    value = json.loads(told[0].wait())
    assert list(value) == ["b", "a"]
    assert value["a"] in ("x", "y")
    assert told[0].last.finish == "stop"
    assert told[1].wait() == free


def test_a_schema_that_fails_on_the_way_ends_its_own_answer_alone(
    runtime, base, adapters, monkeypatch
):
    free = text_of(ask(runtime, base, max_tokens=40))

    def fail(grammar, token):
        raise SchemaFault("It takes too much.")

    told = [Told(), Told()]
    runtime.answer(question(base, "free", max_tokens=40), None, told[0])
    monkeypatch.setattr(AnswerGrammar, "write", fail)
    runtime.answer(question(base, "bound", schema=SCHEMA), None, told[1])
    assert told[1].wait() == ""
    assert (told[1].last.finish, told[1].last.reason) == ("schema", "It takes too much.")
    assert told[0].wait() == free


def test_a_nucleus_of_one_token_is_greedy():
    logits = torch.tensor([0.0, 2.0, 1.0])
    assert draw_all(logits, temperature=1.0, top_p=0.01) == {1}


def draw_all(logits, *, written=(), **terms):
    """Every token that is drawn under twenty seeds."""
    chosen = Question("q", 0.0, base_model=None, **terms)  # type: ignore[arg-type]
    return {
        choose_token(logits, chosen, torch.Generator().manual_seed(n), written=written)
        for n in range(20)
    }


def test_as_many_tokens_as_asked_for_are_drawn_from():
    logits = torch.tensor([0.0, 0.1, 0.2, 0.3])
    assert draw_all(logits, temperature=1.0, top_k=2) == {2, 3}
    assert draw_all(logits, temperature=1.0, top_k=9) == {0, 1, 2, 3}
    # Of the two, the likelier one alone has more than half.
    assert draw_all(logits, temperature=1.0, top_k=2, top_p=0.5) == {3}


@pytest.mark.parametrize(
    ("terms", "token"),
    [
        ({}, 2),
        ({"presence_penalty": 1.5}, 1),
        # Twice written: twice the penalty.
        ({"frequency_penalty": 0.4}, 2),
        ({"frequency_penalty": 0.6}, 1),
        ({"logit_bias": (TokenBias(2, -100.0), TokenBias(0, 2.5))}, 0),
    ],
)
def test_penalties_and_biases_change_what_is_likeliest(terms, token):
    logits = torch.tensor([0.0, 2.0, 3.0])
    assert draw_all(logits, written=(2, 2), **terms) == {token}
    assert logits.tolist() == [0.0, 2.0, 3.0]


def test_a_token_that_the_model_does_not_have_is_refused():
    with pytest.raises(UserFault, match="token 3, and the model has 3"):
        draw_all(torch.zeros(3), logit_bias=(TokenBias(3, 1.0),))


def test_a_prompt_that_is_too_long_is_refused_and_leaves_no_adapter(runtime, base, adapters):
    model = runtime.resident(base).model
    with pytest.raises(PromptTooLong, match="Shorten it"):
        ask(runtime, base, adapter=adapters[0], prompt="a" * (model.context_length + 1))
    with pytest.raises(UserFault, match="empty"):
        ask(runtime, base, prompt="")
    assert model.trained == set()


def test_an_answer_ends_when_asked_and_its_adapter_goes(runtime, base, adapters):
    model = runtime.resident(base).model
    told = Told()
    endless = question(base, adapter=adapters[0], max_tokens=10_000, prompt="a", temperature=5.0)
    runtime.answer(endless, adapters[0][1], told)
    runtime.end_answer("q")
    # The next one is begun after it was ended.
    assert ask(runtime, base, token="next", max_tokens=1).last.finish
    assert model.trained == set()


def test_a_job_that_fits_alone_comes_and_answers_give_way(base, tmp_path, monkeypatch):
    # As if texts were that long.
    monkeypatch.setattr(answers, "answer_bytes", lambda *_, tokens: 1e7)
    data = write_jsonl(tmp_path / "rows.jsonl", completion_rows(24))
    spec = job_spec("a", base, data, adapter={"rank": 256}, training={"epochs": 1})
    full = NodeRuntime(device="cpu", cache_dir=tmp_path / "cache", memory_limit_gb=0.001)
    with pytest.raises(SystemFault, match="base and jobs need") as refused:
        attach(full, spec, data)
    full.close()
    needed_gb = float(str(refused.value).partition("need ")[2].partition(" GB")[0])
    runtime = NodeRuntime(
        device="cpu", cache_dir=tmp_path / "cache", memory_limit_gb=needed_gb + 0.001
    )
    told, sink = Told(), RecordingSink()
    endless = question(base, max_tokens=10_000, prompt="a", temperature=5.0)

    def come_while_it_writes():
        runtime.answer(endless, None, told)
        with pytest.raises(SystemFault, match="does not fit"):
            attach(runtime, spec, data, pause_at=1)
        assert not any(item.finish for item in told.items)
        attach(runtime, spec, data, sink=sink)

    try:
        runtime._commands.call(come_while_it_writes)
        told.wait()
        assert told.last.finish == "error"
        assert told.last.reason == "The node needs its memory for a job. Ask again later."
        sink.wait()
        assert sink.outcome == "finished", sink.reason
    finally:
        runtime.close()


def test_conversations_stand_in_the_chat_template(runtime, base):
    turns = (ChatTurn("user", "hello"),)
    template = "### User:\nhello\n### Assistant:\n"
    expected = text_of(ask(runtime, base, prompt=template))
    assert text_of(ask(runtime, base, prompt="", turns=turns)) == expected


def test_tools_calls_and_an_opening_are_read_before_the_answer(runtime, base):
    tools, call = '[{"name": "f"}]', '{"name": "f", "arguments": {}}'
    turns = (
        ChatTurn("user", "hello"),
        ChatTurn("assistant", "", f'[{{"id": "aaaaaaaaa", "function": {call}}}]'),
        ChatTurn("tool", "7", call_id="aaaaaaaaa"),
    )
    encoder = TokenizerEncoder(byte_tokenizer())
    asked = question(base, prompt="", turns=turns, tools=tools, opening="It is")
    assert byte_tokenizer().decode(encode_prompt(encoder, asked)) == (
        f"### Tools:\n{tools}\n### User:\nhello\n### Assistant:\n\n[{call}]\n</s>"
        "### Tool:\n7\n### Assistant:\nIt is"
    )
    expected = ask(runtime, base, prompt="### User:\nhello\n### Assistant:\nIt is")
    told = ask(runtime, base, prompt="", turns=turns[:1], opening="It is")
    assert text_of(told) == text_of(expected)
