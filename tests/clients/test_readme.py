"""What README says works when it is pasted, beside a running market."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from marketplace.embedded.__main__ import build_readme_lines
from marketplace.embedded.house import ROOT
from tests.conftest import Market

pytestmark = [pytest.mark.timeout(1800), pytest.mark.usefixtures("load")]

#: The file that the lines upload, and how many of its rows the test does.
DATASET = Path("workers") / "models" / "datasets" / "support_tone.jsonl"
ROWS = 80
#: Of the commands in "The parts by themselves", those that train or simulate for minutes.
LONG = ("workers train", "reproduce")


def pasted(lines: str, *, where: Path = ROOT, **environment: str) -> str:
    """What a shell prints that has nothing of ours in its environment."""
    ours = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", lines],
        cwd=where,
        env=ours | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, f"{lines}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_lines_over_the_api_train_a_job_and_fetch_its_adapter(
    market: Market, tmp_path: Path
) -> None:
    lines = build_readme_lines(market.url, market.api_key)
    assert f"@{DATASET} " in "\n".join(lines)
    few = tmp_path / DATASET
    few.parent.mkdir(parents=True)
    few.write_bytes(b"".join((ROOT / DATASET).read_bytes().splitlines(keepends=True)[:ROWS]))
    said = pasted("\n".join(lines), where=tmp_path)
    [adapter] = tmp_path.glob("*.zip")
    assert adapter.name in said
    with zipfile.ZipFile(adapter) as archive:
        tensors = safetensors.numpy.load(archive.read("adapter_model.safetensors"))
    assert tensors
    assert all(np.isfinite(tensor).all() for tensor in tensors.values())


def test_the_lines_leave_no_file_where_the_market_refuses(market: Market, tmp_path: Path) -> None:
    lines = build_readme_lines(market.url, "ft_unknown_key")
    (tmp_path / DATASET).parent.mkdir(parents=True)
    (tmp_path / DATASET).write_bytes((ROOT / DATASET).read_bytes())
    script = "set +e; set +o pipefail\n" + "\n".join([*lines, "true"])
    pasted(script, where=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [DATASET.parts[0]]


def read_commands(*, are_long: bool, where: Path) -> str:
    """The lines under "The parts by themselves"; files that they write are written elsewhere."""
    section = (ROOT / "README.md").read_text().partition("## The parts by themselves")[2]
    lines = section.partition("```\n")[2].partition("\n```")[0].splitlines()
    chosen = [line for line in lines if any(word in line for word in LONG) == are_long]
    script = "\n".join(chosen).replace(".venv/bin/python", shlex.quote(sys.executable))
    for option in (" transcript.jsonl", " --out tiers"):
        before, _, name = option.rpartition(" ")
        script = script.replace(option, f"{before} {shlex.quote(str(where / name))}")
    return script


def test_the_commands_find_the_running_market_by_themselves(market: Market, tmp_path: Path) -> None:
    script = read_commands(are_long=False, where=tmp_path)
    said = pasted(script, DATA_DIR=str(market.house.data_dir))
    assert "The books balance" in said
    assert said.count('"ok": true') == 1
    assert '"welfare": 120.15018938361955' in said


@pytest.mark.nightly
def test_the_commands_train_and_simulate_without_a_market(tmp_path: Path) -> None:
    said = pasted(read_commands(are_long=True, where=tmp_path))
    adapters = [json.loads(line)["adapter"] for line in said.splitlines() if '"outcome"' in line]
    assert [Path(path).parent.name for path in adapters] == ["tone", "sums"]
    for path in adapters:
        assert safetensors.numpy.load_file(ROOT / path / "adapter_model.safetensors")
    assert (tmp_path / "tiers" / "report.md").stat().st_size > 0
