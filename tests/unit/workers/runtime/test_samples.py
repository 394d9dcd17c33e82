"""What the model writes on held-out prompts: stock transformers and PEFT write the same."""

from __future__ import annotations

import json

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
    save_tiny_encoder,
    write_jsonl,
)
from workers.protocol.job_spec import AdapterKind, DataFormat
from workers.protocol.reports import SAMPLE_CHARS, SAMPLES_MAX, TextSample
from workers.protocol.work import WRITTEN_TOKENS_MAX
from workers.training import sample_prompts, samples


def finish(runtime, spec, data):
    """The sink of a job that ran to its end."""
    sink = RecordingSink()
    attach(runtime, spec, data, sink=sink)
    sink.wait()
    assert sink.outcome == "finished", sink.reason
    return sink


def samples_of(sink):
    assert sink.summary is not None
    return sink.summary.samples


def write_stock(model, prompt):
    """The most likely answer by stock generation."""
    tokenizer = byte_tokenizer()
    ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids
    with torch.no_grad():
        written = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=WRITTEN_TOKENS_MAX,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    return str(tokenizer.decode(written[0, ids.shape[1] :], skip_special_tokens=True))


# PEFT asks transformers for a property by its old name.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_samples_are_what_stock_models_write_before_and_after(runtime, base, tmp_path):
    rows = completion_rows(40)
    data = write_jsonl(tmp_path / "rows.jsonl", rows)
    spec = job_spec("a", base, data, training={"epochs": 6, "learning_rate": 2e-2})
    sink = finish(runtime, spec, data)
    found = samples_of(sink)
    assert len(found) == SAMPLES_MAX
    prompts = [row["prompt"] for row in rows]
    assert all(sample.prompt in prompts for sample in found)
    stock = AutoModelForCausalLM.from_pretrained(base.source).eval()
    before = [write_stock(stock, sample.prompt).strip() for sample in found]
    assert sink.adapter_dir is not None
    adapted = PeftModel.from_pretrained(stock, sink.adapter_dir).eval()
    after = [write_stock(adapted, sample.prompt).strip() for sample in found]
    assert [sample.before for sample in found] == before
    assert [sample.after for sample in found] == after
    assert before != after


def test_neighbours_and_a_second_run_change_nothing(runtime, base, tmp_path):
    data = write_jsonl(tmp_path / "rows.jsonl", completion_rows(24))
    other = write_jsonl(tmp_path / "other.jsonl", completion_rows(24, word="green"))
    training = {"epochs": 3, "learning_rate": 2e-2}
    alone = finish(runtime, job_spec("a", base, data, training=training), data)
    sinks = {name: RecordingSink() for name in ("b", "c")}
    for name, path in (("b", data), ("c", other)):
        attach(runtime, job_spec(name, base, path, training=training), path, sink=sinks[name])
    for sink in sinks.values():
        sink.wait()
        assert sink.outcome == "finished", sink.reason
    assert samples_of(sinks["b"]) == samples_of(alone) != ()
    assert samples_of(sinks["c"]) != samples_of(alone)


@pytest.mark.parametrize(
    ("rows", "data_format", "prompt"),
    [
        (
            [
                {
                    "messages": [
                        {"role": "system", "content": "Be kind."},
                        {"role": "user", "content": f"Question {number}"},
                        {"role": "assistant", "content": "Yes."},
                        {"role": "user", "content": "Why?"},
                        {"role": "assistant", "content": "So."},
                    ]
                }
                for number in range(12)
            ],
            DataFormat.CHAT,
            "Question",
        ),
        ([{"text": f"{number} is a number among numbers."} for number in range(12)], "text", ""),
        (
            [
                {"prompt": f"Q{number}: sky?", "chosen": " blue", "rejected": " green"}
                for number in range(12)
            ],
            DataFormat.PREFERENCE,
            "Q",
        ),
    ],
)
def test_each_kind_of_row_has_a_prompt(runtime, base, tmp_path, rows, data_format, prompt):
    data = write_jsonl(tmp_path / "rows.jsonl", rows)
    spec = job_spec("a", base, data, data_format=DataFormat(data_format), training={"epochs": 1})
    [sample, *_] = samples_of(finish(runtime, spec, data))
    if prompt:
        assert sample.prompt.startswith(prompt)
    else:
        # Of a row that is all text, the beginning is the prompt.
        assert any(row["text"].startswith(sample.prompt) for row in rows)
        assert 0 < len(sample.prompt) < 20


def test_a_soft_prompt_writes_too(runtime, base, tmp_path):
    data = write_jsonl(tmp_path / "rows.jsonl", completion_rows(40))
    adapter = {"kind": AdapterKind.SOFT_PROMPT, "virtual_tokens": 5}
    spec = job_spec("a", base, data, adapter=adapter, training={"epochs": 4, "learning_rate": 0.1})
    found = samples_of(finish(runtime, spec, data))
    assert len(found) == SAMPLES_MAX
    assert [sample.before for sample in found] != [sample.after for sample in found]


def test_without_held_out_rows_there_are_no_samples(runtime, base, tmp_path):
    data = write_jsonl(tmp_path / "rows.jsonl", completion_rows(12))
    spec = job_spec("a", base, data, training={"epochs": 1, "validation_share": 0.0})
    assert samples_of(finish(runtime, spec, data)) == ()


def test_long_prompts_are_no_samples(runtime, base, tmp_path, monkeypatch):
    monkeypatch.setattr(sample_prompts, "PROMPT_TOKENS_MAX", 49)
    rows = [{"prompt": f"{number:02}" + "?" * 48, "completion": " yes"} for number in range(12)]
    data = write_jsonl(tmp_path / "rows.jsonl", rows)
    spec = job_spec("a", base, data, training={"epochs": 1})
    assert samples_of(finish(runtime, spec, data)) == ()


def test_classes_are_no_words(runtime, tmp_path):
    rows = [{"text": f"text {n}", "label": "good" if n % 2 else "bad"} for n in range(12)]
    data = write_jsonl(tmp_path / "rows.jsonl", rows)
    encoder = save_tiny_encoder(tmp_path / "encoder")
    spec = job_spec(
        "a", encoder, data, data_format=DataFormat.CLASSIFICATION, training={"epochs": 1}
    )
    assert samples_of(finish(runtime, spec, data)) == ()


def test_samples_that_fail_cost_nothing_but_themselves(runtime, base, tmp_path, monkeypatch):
    def break_down(*_args, **_kwargs):
        raise MemoryError

    monkeypatch.setattr(samples.SampleRun, "write_token", break_down)
    data = write_jsonl(tmp_path / "rows.jsonl", completion_rows(12))
    sink = finish(runtime, job_spec("a", base, data, training={"epochs": 1}), data)
    assert samples_of(sink) == ()
    assert sink.adapter_dir is not None
    assert (sink.adapter_dir / "adapter_model.safetensors").exists()


def test_texts_are_cut_and_cleaned_for_any_store():
    cut = samples._shorten("a\0b" + "é" * 700)
    assert cut == "ab" + "é" * (SAMPLE_CHARS - 3) + "…"
    assert samples._shorten("half \ud800 pair") == "half ? pair"
    assert json.loads(json.dumps(cut)) == cut
    TextSample(prompt=cut, before="", after="")
