"""``python -m workers train`` refuses what cannot run before it trains anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workers.runtime.train_command import main, read_config

ROW = json.dumps({"prompt": "What is it?", "completion": " It is blue."}) + "\n"


def command(folder: Path, capsys, **top) -> tuple[int, str]:
    """Exit status and what was said, for a job on the bundled base with some settings changed."""
    job = {"name": "a", "data": "rows.jsonl", "training": {"epochs": 1}} | top.pop("job", {})
    config = {"base_model": "bundled:finetender-tiny", "jobs": [job]} | top
    path = folder / "config.yaml"
    # YAML reads JSON
    path.write_text(json.dumps(config))
    status = main([str(path), "--quiet"])
    return status, capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"memory_gb": "lots"}, "memory_gb must be a number above 0, not 'lots'."),
        ({"memory_gb": 0}, "memory_gb must be a number above 0, not 0."),
        ({"memory_gb": True}, "memory_gb must be a number above 0, not True."),
        ({"reproducible": "yes please"}, "reproducible must be true or false, not 'yes please'."),
        ({"device": "tpu"}, "device must be cpu, cuda or cuda:<number>, not 'tpu'."),
        ({"output": 5}, "output must be a text, not 5."),
        (
            {"base_model": ["x"]},
            "base_model must be a text, or settings with a source, not ['x'].",
        ),
        (
            {"base_model": {"revision": "main"}},
            "base_model needs a source: bundled:<name>, a directory, or a hub id.",
        ),
        (
            {"base_model": {"source": "bundled:finetender-tiny", "fuor_bit": True}},
            "base_model: BaseModelRef has unknown keys: fuor_bit.",
        ),
        ({"adapter": [1]}, "adapter must hold settings with names, not [1]."),
        ({"job": {"training": "fast"}}, "training must hold settings with names, not 'fast'."),
        (
            {"job": {"training": {"learnig_rate": 1}}},
            "Job a: TrainingSpec has unknown keys: learnig_rate.",
        ),
    ],
)
def test_a_setting_of_the_wrong_kind_is_named(tmp_path, capsys, changed, said):
    (tmp_path / "rows.jsonl").write_text(4 * ROW)
    assert command(tmp_path, capsys, **changed) == (2, said)
    assert not (tmp_path / "adapters").exists()


def test_a_folder_without_a_base_model_is_not_taken_for_a_hub_id(tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text(4 * ROW)
    status, said = command(tmp_path, capsys, base_model="./models/mine")
    assert (status, said) == (2, f"There is no folder {tmp_path}/models/mine with a base model.")


def test_a_hub_model_that_cannot_be_fetched_says_where_to_look(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "rows.jsonl").write_text(4 * ROW)
    status, said = command(tmp_path, capsys, base_model="finetender-nobody/none-such")
    assert status == 2
    assert said.endswith("Check where the model is said to be, and this machine's network.")


@pytest.mark.parametrize("written", ["1e-3", "1E-3", "1.0e-3", "1.e-3", "0.001", "+1e-3", ".1e-2"])
def test_a_small_number_may_be_written_in_any_usual_way(tmp_path, written):
    path = tmp_path / "config.yaml"
    path.write_text(f"jobs: [{{training: {{learning_rate: {written}}}}}]\nbase_model: 1e3x\n")
    config = read_config(path)
    assert config["jobs"][0]["training"]["learning_rate"] == pytest.approx(1e-3)
    assert config["base_model"] == "1e3x"


def test_an_output_nobody_can_write_is_refused_before_training(tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text(4 * ROW)
    (tmp_path / "taken").write_text("a file")
    status, said = command(tmp_path, capsys, output="taken/here")
    assert status == 2
    assert said == (
        f"Adapters cannot be written to {tmp_path}/taken/here: Not a directory. "
        "Choose another output."
    )


def test_a_device_that_is_not_there_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    (tmp_path / "rows.jsonl").write_text(4 * ROW)
    assert command(tmp_path, capsys, device="cuda:3") == (
        2,
        "This machine has no device cuda:3; it has 1 CUDA devices. Choose cpu.",
    )


def test_a_million_empty_lines_before_the_rows_hide_nothing(tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text(1_000_000 * "\n" + 6 * ROW)
    path = tmp_path / "config.yaml"
    job = {"name": "a", "data": "rows.jsonl", "training": {"epochs": 1}}
    path.write_text(json.dumps({"base_model": "bundled:finetender-tiny", "jobs": [job]}))
    assert main([str(path), "--quiet"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["outcome"], row["samples_done"]) == ("finished", 5)


def test_a_file_of_empty_lines_only_is_refused(tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text(1_000_000 * "\n")
    status, said = command(tmp_path, capsys)
    assert status == 2
    assert said == (
        f"{tmp_path}/rows.jsonl cannot be used. The file is empty. Upload one with some rows."
    )


def test_a_table_with_a_misspelt_column_is_not_trained_on_as_plain_text(tmp_path, capsys):
    (tmp_path / "rows.csv").write_text("promt,completion\n" + "a,b\n" * 6)
    status, said = command(tmp_path, capsys, job={"data": "rows.csv"})
    assert status == 2
    assert said.startswith(f"{tmp_path}/rows.csv cannot be used. The first line must name the")
    assert said.endswith("Did you mean prompt by promt?")


def test_a_file_without_one_good_row_says_what_is_wrong_with_the_first(tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completions": "b"}\n' * 6)
    status, said = command(tmp_path, capsys)
    assert status == 2
    assert said.startswith(
        f"{tmp_path}/rows.jsonl cannot be used. No line of it is a row. Line 1: Key completion is "
        "missing. Did you mean completion by completions?"
    )


def test_keys_that_are_not_trained_on_are_told_per_data_set(tmp_path, capsys):
    row = {"instruction": "Add.", "inputs": "1, 1", "output": "2", "id": 7}
    (tmp_path / "rows.jsonl").write_text((json.dumps(row) + "\n") * 6)
    (tmp_path / "plain.jsonl").write_text(6 * ROW)
    held_out = {"instruction": "Add.", "output": "2", "weight": 0}
    (tmp_path / "held.jsonl").write_text((json.dumps(held_out) + "\n") * 2)
    path = tmp_path / "config.yaml"
    jobs = [
        {"name": "a", "data": "rows.jsonl", "validation": "held.jsonl"},
        {"name": "b", "data": "plain.jsonl"},
    ]
    config = {"base_model": "bundled:finetender-tiny", "training": {"epochs": 1}, "jobs": jobs}
    path.write_text(json.dumps(config))
    assert main([str(path), "--quiet"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "not trained on" in line]
    assert said == [
        "a: Key inputs (6 rows, first in line 1) is not trained on. "
        "Did you mean input? Then rename it.",
        "a: Key that is not trained on: id (6 rows).",
        "a: Validation data: Key weight (2 rows, first in line 1) is not trained on. "
        "Rows cannot be weighted: leave out or repeat rows instead.",
    ]
    # and whoever gets the adapter reads it in its card
    assert "Did you mean input?" in (tmp_path / "adapters/a/adapter/README.md").read_text()
