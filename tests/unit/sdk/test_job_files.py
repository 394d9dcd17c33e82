"""A job in one file, and configurations of other trainers as such files."""

from __future__ import annotations

import json

import pytest
from finetender.__main__ import main
from finetender.errors import UsageError
from finetender.imports import import_settings
from finetender.job_files import read_job_file

JOB = """
data: rows.jsonl
price: 4.50
deadline: 6h
training: {epochs: 2, learning_rate: 2e-4}
output: adapter.zip
"""


def write(path, text):
    path.write_text(text)
    return path


def test_a_file_says_data_bid_settings_and_where_the_adapter_goes(tmp_path):
    (tmp_path / "rows.jsonl").touch()
    found = read_job_file(write(tmp_path / "job.yaml", JOB))
    assert found.data == str(tmp_path / "rows.jsonl")
    assert found.output == tmp_path / "adapter.zip"
    assert found.terms == {
        "price": "4.5",
        "deadline": "6h",
        "training": {"epochs": 2, "learning_rate": 2e-4},
    }
    same = json.dumps({"data": "ds_1", "price": "$5", "deadline": "6h"})
    plain = read_job_file(write(tmp_path / "job.json", same))
    assert (plain.data, plain.output, plain.terms["price"]) == ("ds_1", None, "5")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (JOB.replace("price", "prize"), "'prize' is no member of a job. Is price meant?"),
        ("data: rows.jsonl", "needs price, deadline"),
        (JOB + "adapter: 8", "adapter has members of its own"),
        ("- data", "no names with values"),
        ("a: [", "is no YAML"),
    ],
)
def test_a_file_that_is_no_job_says_why(tmp_path, text, words):
    with pytest.raises(UsageError, match=words.replace("?", "[?]")):
        read_job_file(write(tmp_path / "job.yaml", text))
    with pytest.raises(UsageError, match="cannot be read"):
        read_job_file(tmp_path / "none.yaml")


TRL = {
    "model_name_or_path": "Qwen/Qwen2.5-0.5B",
    "dataset_name": "rows.jsonl",
    "use_peft": True,
    "lora_r": 16,
    "lora_target_modules": "all-linear",
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 8,
    "lr_scheduler_type": "cosine",
    "packing": True,
    "assistant_only_loss": True,
}
AXOLOTL = {
    "base_model": "Qwen/Qwen2.5-0.5B",
    "datasets": [{"path": "rows.jsonl", "type": "alpaca"}],
    "adapter": "lora",
    "lora_r": 16,
    "lora_target_linear": True,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 8,
    "lr_scheduler": "cosine",
    "val_set_size": 200,
}
UNSLOTH = {
    "model": "Qwen/Qwen2.5-0.5B",
    "data": {"dataset": "rows.jsonl"},
    "training": {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 8,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 5,
    },
    "lora": {"lora_r": 16, "target_modules": "all-linear"},
}
LLAMA_FACTORY = {
    "model_name_or_path": "Qwen/Qwen2.5-0.5B",
    "stage": "sft",
    "finetuning_type": "lora",
    "lora_rank": 16,
    "lora_target": "all",
    "dataset": "rows.jsonl",
    "template": "qwen",
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 8,
    "lr_scheduler_type": "cosine_with_restarts",
}


@pytest.mark.parametrize(
    ("config", "left_out"),
    [
        (TRL, ["assistant_only_loss"]),
        (AXOLOTL, ["val_set_size"]),
        (UNSLOTH, ["warmup_steps"]),
        (LLAMA_FACTORY, ["template", "lr_scheduler_type"]),
    ],
)
def test_the_same_job_of_four_trainers_is_the_same_job_here(config, left_out):
    found = import_settings(config)
    training = {"batch_size": 16}
    if "lr_scheduler_type" not in left_out:
        training["schedule"] = "cosine"
    assert found.job == {
        "zone": "Qwen/Qwen2.5-0.5B",
        "data": "rows.jsonl",
        "adapter": {"rank": 16, "target_modules": "all-linear"},
        "training": training,
    }
    assert [sentence.split()[0] for sentence in found.left_out] == left_out


def test_a_configuration_becomes_a_file_that_lacks_only_the_bid(tmp_path, capsys):
    config = write(tmp_path / "trl.yaml", "lora_r: 8\nlearning_rate: 2e-4\nnum_train_epochs: 1.5\n")
    assert main(["import", str(config)]) == 0
    printed = capsys.readouterr()
    job = json.loads(printed.out)
    assert job == {"adapter": {"rank": 8}, "training": {"learning_rate": 2e-4}}
    assert printed.err.splitlines()[0] == "num_train_epochs is 1.5: a job has whole epochs."
    other = write(tmp_path / "other.yaml", "services: {web: {image: x}}")
    assert main(["import", str(other)]) == 2
