"""A job in one file, and configurations of other trainers as such files."""

from __future__ import annotations

import itertools
import json
import os
import zipfile

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
        (JOB.replace("rows.jsonl", "[a, b]"), "data is one text or number"),
        (JOB.replace("4.50", "{usd: 5}"), "price is one text or number"),
        (JOB.replace("6h", "null"), "deadline is one text or number"),
        (JOB + "name: true", "name is one text or number"),
        (JOB.replace("adapter.zip", "none/adapter.zip"), "there is no folder"),
        (JOB.replace("adapter.zip", "../job.yaml/../x"), "there is no folder"),
        (JOB.replace("adapter.zip", "job.yaml"), "job.yaml is there already, and is no adapter"),
        (JOB.replace("adapter.zip", '"a\\0b"'), "which is no name of a file"),
        (JOB.replace("adapter.zip", '"a\\e[2Jb"'), "which is no name of a file"),
        (JOB.replace("adapter.zip", "x" * 300), "output cannot be written: .*too long"),
        ("- data", "no names with values"),
        ("a: [", "is no YAML"),
    ],
)
def test_a_file_that_is_no_job_says_why(tmp_path, text, words):
    with pytest.raises(UsageError, match=words.replace("?", "[?]")):
        read_job_file(write(tmp_path / "job.yaml", text))
    with pytest.raises(UsageError, match="cannot be read"):
        read_job_file(tmp_path / "none.yaml")


def test_a_name_that_is_too_long_for_a_file_is_data_of_that_name(tmp_path):
    long = "a" * 5_000
    assert read_job_file(write(tmp_path / "job.yaml", JOB.replace("rows.jsonl", long))).data == long


def test_an_archive_that_is_no_adapter_is_replaced_by_none(tmp_path):
    """Sheets, wheels and packed rows are archives, too."""
    with zipfile.ZipFile(tmp_path / "adapter.zip", "w") as rows:
        rows.writestr("rows.jsonl", "{}")
    with pytest.raises(UsageError, match="is there already, and is no adapter"):
        read_job_file(write(tmp_path / "job.yaml", JOB))


def test_an_output_is_no_pipe_that_never_ends(tmp_path):
    os.mkfifo(tmp_path / "adapter.zip")
    with pytest.raises(UsageError, match="is there already, and is no adapter"):
        read_job_file(write(tmp_path / "job.yaml", JOB))


@pytest.mark.parametrize(
    "name", ["\u3000報告.zip", "\U0001f469\u200d\U0001f52c.zip", "a\u00a0b.zip"]
)
def test_an_output_has_any_name_that_a_person_writes(tmp_path, name):
    job = JOB.replace("adapter.zip", f'"{name}"')
    assert read_job_file(write(tmp_path / "job.yaml", job)).output == tmp_path / name


def test_an_earlier_adapter_is_replaced(tmp_path):
    with zipfile.ZipFile(tmp_path / "adapter.zip", "w") as earlier:
        earlier.writestr("adapter_config.json", "{}")
    assert read_job_file(write(tmp_path / "job.yaml", JOB)).output == tmp_path / "adapter.zip"


BOMB = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{{', '.join(f'{key}: *{before}' for key in 'abcdefghij')}}}\n"
    for before, name in itertools.pairwise("abcdefghijklm")
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bomb.yaml", BOMB),
        ("merged.yaml", BOMB.replace("{a: *", "{<<: [*").replace(", b: *", "], b: *")),
        ("itself.yaml", "a: &a {b: *a}"),
        ("deep.yaml", "a: " + "[" * 5_000),
        ("deep.json", '{"a":' * 20_000),
        ("long.yaml", "a: " + "9" * 6_000),
        ("long.json", '{"a": ' + "9" * 6_000 + "}"),
        ("hex.yaml", "a: 0x" + "f" * 6_000),
        ("endless.yaml", "a: .inf"),
        ("endless.json", '{"a": NaN}'),
        ("sixties.yaml", "a: " + "1:" * 5_000 + "1.5"),
        ("bytes.yaml", "a: !!binary aGVsbG8="),
        ("set.yaml", "a: !!set {b, c}"),
        ("truth.yaml", "a: !!bool maybe"),
        ("nothing.yaml", 'a: !!int ""'),
        ("code.yaml", 'a: !!python/object/apply:os.system ["id"]'),
        ("large.json", '{"a": "' + "b" * 100_000 + '"}'),
    ],
)
def test_a_hostile_file_is_refused_with_a_sentence(tmp_path, capsys, name, text):
    file = write(tmp_path / name, text)
    for command in ("import", "run"):
        assert main([command, str(file)]) == 2
        printed = capsys.readouterr()
        assert (printed.out, printed.err.startswith(f"finetender: {file} ")) == ("", True)


def test_texts_stay_texts_numbers_are_numbers_and_dates_are_as_written(tmp_path):
    text = """
data: rows.jsonl
price: 4.50
deadline: 2026-12-01 10:00:00
name: 2026-11-28
metadata: {commit: "12e45", date: 2026-99-99}
sweep: {training.learning_rate: [1e-4, 2E+0, -3.5e-2]}
"""
    found = read_job_file(write(tmp_path / "job.yaml", text))
    assert found.sweep == {"training.learning_rate": [1e-4, 2.0, -0.035]}
    assert found.terms == {
        "price": "4.5",
        "deadline": "2026-12-01 10:00:00",
        "name": "2026-11-28",
        "metadata": {"commit": "12e45", "date": "2026-99-99"},
    }


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


ZONES = {"Qwen/Qwen2.5-0.5B": "qwen-small", "meta-llama/Llama-3.1-8B": "llama"}


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
    found = import_settings(config, zones=ZONES)
    training: dict[str, int | str] = {"batch_size": 16}
    if "lr_scheduler_type" not in left_out:
        training["schedule"] = "cosine"
    assert found.job == {
        "zone": "qwen-small",
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


def test_values_of_another_kind_are_left_out_and_the_rest_is_taken():
    wrong = {
        "lora_r": 8,
        "num_epochs": True,
        "num_train_epochs": [1],
        "val_size": "some",
        "per_device_train_batch_size": "auto",
        "gradient_accumulation_steps": 999_999_999_999,
        "dataset": "a" * 9_000,
    }
    found = import_settings(wrong)
    assert found.job == {"adapter": {"rank": 8}}
    assert [sentence.split()[0] for sentence in found.left_out] == [
        "num_epochs",
        "num_train_epochs",
        "val_size",
        "dataset",
        "per_device_train_batch_size",
    ]


@pytest.mark.parametrize(
    ("model", "zone"),
    [
        ("qwen/qwen2.5-0.5b", "qwen-small"),
        ("unsloth/Llama-3.1-8B-unsloth-bnb-4bit", "llama"),
        ("unsloth/Llama-3.1-8B", "llama"),
        ("llama", "llama"),
        ("someone/Llama-3.1-8B", None),
        ("unsloth/Llama-3.1-70B-bnb-4bit", None),
        ("./checkpoints/mine", None),
    ],
)
def test_a_model_of_the_hub_is_the_zone_that_trains_it_or_is_listed(model, zone):
    found = import_settings({"lora_r": 8, "base_model": model}, zones=ZONES)
    assert found.job.get("zone") == zone
    if zone is not None:
        assert found.left_out == ()
        return
    [sentence] = found.left_out
    assert sentence == (
        f"base_model is {model!r}, which no zone of this market trains. Choose one of: "
        "qwen-small (Qwen/Qwen2.5-0.5B), llama (meta-llama/Llama-3.1-8B)."
    )


def test_without_a_market_a_model_of_the_hub_is_listed_with_what_to_do():
    found = import_settings({"lora_r": 8, "model_name": "Qwen/Qwen2.5-0.5B"})
    assert found.job == {"adapter": {"rank": 8}}
    assert found.left_out == (
        "model_name is 'Qwen/Qwen2.5-0.5B': sign in (finetender login) to have its zone found.",
    )


@pytest.mark.parametrize(
    ("config", "data"),
    [
        ({"dataset_name": "trl-lib/tldr"}, "hf://trl-lib/tldr"),
        ({"dataset_name": "trl-lib/tldr", "dataset_train_split": "test"}, "hf://trl-lib/tldr/test"),
        (
            {"datasets": [{"path": "tatsu-lab/alpaca", "type": "alpaca", "split": "train"}]},
            "hf://tatsu-lab/alpaca/train",
        ),
        ({"datasets": [{"path": "tatsu-lab/alpaca", "name": "default"}]}, "hf://tatsu-lab/alpaca"),
        ({"datasets": [{"path": "s3://bucket/rows.jsonl"}]}, "s3://bucket/rows.jsonl"),
        ({"dataset": "data/rows.csv"}, "data/rows.csv"),
        # A configuration or a slice of rows, and a name of LLaMA-Factory's own list.
        ({"dataset_name": "allenai/c4", "dataset_config": "en"}, None),
        ({"datasets": [{"path": "tatsu-lab/alpaca", "split": "train[:10%]"}]}, None),
        ({"dataset": "alpaca_en_demo"}, None),
        ({"datasets": [{"path": "a/b"}, {"path": "c/d"}]}, None),
    ],
)
def test_data_of_the_hub_have_an_address_or_are_listed(config, data):
    found = import_settings({"lora_r": 8, **config})
    assert found.job.get("data") == data
    assert [("data" in sentence) for sentence in found.left_out] == ([] if data else [True])
