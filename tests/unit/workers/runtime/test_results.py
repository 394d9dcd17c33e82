"""What the owner gets: stock peft loads it and computes what the engine computes."""

from __future__ import annotations

import csv
import json
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from tests.unit.workers.training_builders import (
    RecordingSink,
    attach,
    byte_tokenizer,
    completion_rows,
    job_spec,
    random_examples,
    save_tiny_base,
    save_tiny_encoder,
    training_job,
    write_jsonl,
)
from workers.protocol.job_spec import AdapterKind, BaseModelRef, DataFormat, JobSpec
from workers.runtime.node_runtime import NodeRuntime
from workers.runtime.resident import ResidentBase
from workers.runtime.running_job import find_row_outliers
from workers.training.data import hold_out_rows
from workers.training.faults import UserFault
from workers.training.packing import Example, PackShare, TokenSequence, build_pack


def train(
    tmp_path, family="llama", rows=None, data_format=DataFormat.COMPLETION, **changes
) -> tuple[BaseModelRef, JobSpec, Any, ResidentBase]:
    base = save_tiny_base(tmp_path / "base", family)
    data = write_jsonl(tmp_path / "rows.jsonl", rows or completion_rows(24))
    runtime = NodeRuntime(device="cpu", cache_dir=tmp_path / "cache")
    sink = RecordingSink()
    spec = job_spec("a", base, data, data_format=data_format, **changes)
    try:
        attach(runtime, spec, data, sink=sink)
        sink.wait()
        assert sink.outcome == "finished", sink.reason
        return base, spec, sink, runtime.resident(base)
    finally:
        runtime.close()


@pytest.mark.parametrize(
    ("family", "adapter"),
    [
        ("llama", {"rank": 4, "alpha": 16.0}),
        ("gpt2", {"rank": 8, "alpha": 8.0}),
        ("qwen3", {"rank": 2, "alpha": 4.0, "target_modules": ("q_proj", "down_proj")}),
        ("llama", {"kind": AdapterKind.SOFT_PROMPT, "virtual_tokens": 5, "init_text": "Colour?"}),
        ("gpt2", {"kind": AdapterKind.SOFT_PROMPT, "virtual_tokens": 3}),
    ],
)
def test_stock_peft_gives_the_engines_logits(tmp_path, family, adapter):
    base, spec, sink, resident = train(
        tmp_path, family, adapter=adapter, training={"epochs": 4, "learning_rate": 2e-2}
    )
    assert sink.summary is not None
    assert sink.summary.valid_loss_after < sink.summary.valid_loss_before
    stock = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base.source), sink.adapter_dir
    ).eval()
    ids = np.asarray(byte_tokenizer()("what colour is it").input_ids, dtype=np.int64)
    with torch.no_grad():
        theirs = stock(torch.from_numpy(ids)[None]).logits[0, -len(ids) :]
        bare = resident.model.model(torch.from_numpy(ids)[None], pack=_alone(ids)).logits[0]
    ours = _engine_logits(resident.model, spec, sink.adapter_dir, ids)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
    assert (ours - bare).abs().max() > 1e-2


def _alone(ids):
    sequence = TokenSequence(ids, np.zeros(len(ids), dtype=np.float32))
    return build_pack(
        [PackShare("x", (Example(1, (sequence,)),), 0, 0)], device=torch.device("cpu")
    )


def _engine_logits(packed, spec, adapter_dir, ids):
    """The engine's own forward pass, with the adapter read back from the file."""
    from safetensors.torch import load_file

    values = {}
    for name, tensor in load_file(adapter_dir / "adapter_model.safetensors").items():
        ours = name.removeprefix("base_model.model.").removesuffix(".weight")
        values[ours] = tensor.T if ours.endswith("lora_B") else tensor
    packed.attach("again", spec.adapter, values)
    virtual = spec.adapter.virtual_tokens
    sequence = TokenSequence(ids, np.zeros(len(ids), dtype=np.float32))
    share = PackShare("again", (Example(1, (sequence,)),), 0, 0, virtual_tokens=virtual)
    pack = build_pack([share], device=packed.device)
    with torch.no_grad(), packed.streaming(pack):
        hidden = packed.hidden(pack)[virtual:]
    packed.detach("again")
    weight, bias = packed.head
    return torch.nn.functional.linear(hidden, weight, bias)


def test_the_folder_has_metrics_a_card_and_the_tokenizer(tmp_path):
    base, spec, sink, _ = train(tmp_path, training={"epochs": 3, "eval_every_steps": 5})
    folder = sink.adapter_dir
    names = {path.name for path in folder.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= names
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    trained = [row for row in rows if row["train_loss"]]
    assert [int(row["step"]) for row in trained] == list(range(1, 19))
    assert [int(row["step"]) for row in rows if row["valid_loss"]] == [0, 5, 10, 15, 18]
    assert float(trained[-1]["train_loss"]) == sink.summary.last_train_loss
    card = (folder / "README.md").read_text()
    for fact in (
        base.source,
        spec.dataset.sha256,
        "| Rank | 4 |",
        "| Seed | 0 |",
        torch.__version__,
    ):
        assert fact in card
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["r"] == 4
    assert config["base_model_name_or_path"] == base.source.rpartition("/")[2]


def test_preferences_raise_the_preferred_answers_odds(tmp_path):
    rows = [{"prompt": f"Q{i}: sky?", "chosen": " blue", "rejected": " green"} for i in range(24)]
    _, _, sink, _ = train(
        tmp_path,
        rows=rows,
        data_format=DataFormat.PREFERENCE,
        training={"epochs": 4, "learning_rate": 1e-2, "dpo_beta": 0.3},
    )
    # before any step policy and reference are the same, so each pair's loss is log 2
    assert sink.summary.first_train_loss == pytest.approx(np.log(2), abs=1e-6)
    assert sink.summary.valid_loss_before == pytest.approx(np.log(2), abs=1e-6)
    assert sink.summary.valid_loss_after < 0.3


def test_rows_that_stand_out_at_the_end_are_named(tmp_path):
    rows = completion_rows(40)
    rows[16] = {"prompt": "Q16: what colour is b?", "completion": " zq#9!@%"}
    _, _, sink, _ = train(
        tmp_path,
        rows=rows,
        training={"epochs": 8, "learning_rate": 2e-2, "validation_share": 0.0},
    )
    assert [outlier.line for outlier in sink.summary.outliers] == [17]
    assert "line 17" in (sink.adapter_dir / "README.md").read_text()


@pytest.mark.parametrize(
    ("losses", "lines"),
    [
        # everything is learnt: what is left is how long ago a row was last seen
        ([0.001 * (1 + i % 3) for i in range(20)] + [0.05], []),
        ([0.001 * (1 + i % 3) for i in range(20)] + [0.5], [21]),
        # rows differ as a matter of course
        ([1.0 + 0.1 * (i % 5) for i in range(20)] + [1.9], []),
        ([1.0 + 0.1 * (i % 5) for i in range(20)] + [4.0, 9.0], [22, 21]),
        ([float("nan")] * 20 + [9.0], []),
    ],
)
def test_a_row_stands_out_when_it_is_far_above_the_others_and_by_enough(losses, lines):
    job = training_job("a", random_examples(len(losses), seed=1))
    job.row_losses[:] = losses
    assert [outlier.line for outlier in find_row_outliers(job)] == lines


LABELLED = [
    {"text": f"the film was {word}", "label": label}
    for word, label in (("good", "yes"), ("great", "yes"), ("bad", "no"), ("awful", "no"))
] * 10


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_an_encoder_learns_classes_and_stock_peft_gives_the_same_logits(tmp_path, family):
    base = save_tiny_encoder(tmp_path / "base", family)
    data = write_jsonl(tmp_path / "rows.jsonl", LABELLED)
    runtime = NodeRuntime(device="cpu", cache_dir=tmp_path / "cache")
    sinks = []
    for index, rate in enumerate((1e-2, 5e-3)):
        sinks.append(RecordingSink())
        spec = job_spec(
            f"job-{index}",
            base,
            data,
            data_format=DataFormat.CLASSIFICATION,
            training={"epochs": 6, "learning_rate": rate, "seed": index},
        )
        attach(runtime, spec, data, sink=sinks[-1])
    tokenizer = AutoTokenizer.from_pretrained(base.source)
    for sink in sinks:
        summary = sink.wait()
        assert sink.outcome == "finished", sink.reason
        assert summary.valid_loss_after < 0.1 < summary.valid_loss_before
        stock = PeftModel.from_pretrained(
            AutoModelForSequenceClassification.from_pretrained(base.source, num_labels=2),
            sink.adapter_dir,
        ).eval()
        batch = tokenizer(
            ["the film was great", "the film was bad"], padding=True, return_tensors="pt"
        )
        with torch.no_grad():
            logits = stock(batch.input_ids, attention_mask=batch.attention_mask).logits
        # classes are numbered in the order of their names: no, yes
        assert logits.argmax(-1).tolist() == [1, 0]
        rows = _held_out(tmp_path / "rows.jsonl", sinks.index(sink))
        with torch.no_grad():
            losses = [
                stock(
                    **tokenizer(row["text"], return_tensors="pt"),
                    labels=torch.tensor([int(row["label"] == "yes")]),
                ).loss
                for row in rows
            ]
        assert torch.stack(losses).mean().item() == pytest.approx(
            summary.valid_loss_after, abs=1e-4
        )
        metrics = csv.DictReader((sink.adapter_dir / "metrics.csv").read_text().splitlines())
        accuracies = [r["valid_accuracy"] for r in metrics if r["valid_accuracy"]]
        assert (len(accuracies), float(accuracies[-1])) == (10, 1.0)
        card = (sink.adapter_dir / "README.md").read_text()
        assert (
            f"| Validation accuracy before and after | {float(accuracies[0]):.4f} and 1.0000"
            in card
        )
        told = [line for event in sink.events for line in event.log]
        assert any(line.endswith(f"100.0% of {len(rows)}.") for line in told)
        # of a text with a label no token is learnt
        assert (
            told[0]
            == "36 rows to train on (216 tokens), 4 rows held out; the longest has 6 tokens."
        )
    runtime.close()


def _held_out(path, seed) -> Any:
    """The rows the engine held out, found by its own rule."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return hold_out_rows(rows, share=0.1, seed=seed)[1]


@pytest.mark.parametrize("encoder", [True, False])
def test_classes_and_encoders_only_go_together(tmp_path, encoder):
    base = (save_tiny_encoder if encoder else save_tiny_base)(tmp_path / "base")
    data = write_jsonl(tmp_path / "rows.jsonl", completion_rows(8) if encoder else LABELLED)
    data_format = DataFormat.COMPLETION if encoder else DataFormat.CLASSIFICATION
    runtime = NodeRuntime(device="cpu", cache_dir=tmp_path / "cache")
    try:
        with pytest.raises(UserFault, match="encoder"):
            runtime.attach(
                job=job_spec("a", base, data, data_format=data_format),
                data_path=data,
                validation_path=None,
                sink=RecordingSink(),
            )
    finally:
        runtime.close()
