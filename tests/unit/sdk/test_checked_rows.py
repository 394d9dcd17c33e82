"""``finetender check``: the market's own reader, without a market."""

from __future__ import annotations

import json

import pytest
from finetender.__main__ import main

from marketplace.fleet.base_models import find_tokenizer_files
from marketplace.fleet.text_encoder import load_text_encoder
from marketplace.jobs.dataset_reader import read_dataset

BASE = "bundled:finetender-tiny"


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (['{"text": "hello there"}', '{"text": "hello"}'], 0),
        (['{"text": "hello there"}', '{"txt": 3}'], 5),
        (['{"txt": 3}'], 5),
    ],
)
def test_rows_are_what_an_upload_would_find_them_to_be(tmp_path, capfd, lines, code):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines))
    assert main(["check", str(path), "--base", BASE, "--longest", "3", "--json"]) == code
    found = json.loads(capfd.readouterr().out)
    encoder = load_text_encoder(find_tokenizer_files(BASE))
    with path.open("rb") as file:
        reading, _ = read_dataset(file, name=path.name, encoder=encoder, max_tokens=3)
    for name in ("rows", "tokens", "longest_row_tokens", "long_rows", "faulty_lines", "errors"):
        assert found[name] == getattr(reading, name)


def test_what_would_be_refused_is_told_by_line_and_an_unknown_base_at_once(tmp_path, capfd):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "hello there"}\n{"txt": 3}\n')
    assert main(["check", str(path), "--base", BASE]) == 5
    fault, sums = capfd.readouterr().out.splitlines()
    assert fault.startswith("line 2: Key txt is not known. Did you mean text by txt?")
    assert sums == "1 rows, 4 tokens, the longest row has 4; 0 rows are cut."
    assert main(["check", str(path), "--base", "bundled:none"]) == 5
    assert capfd.readouterr().out == "No model named 'none' is bundled.\n"
