"""What README says works when it is pasted, beside a running market."""

from __future__ import annotations

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

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800), pytest.mark.usefixtures("load")]

#: The file that the lines upload, and how many of its rows the test does.
DATASET = Path("workers") / "models" / "datasets" / "support_tone.jsonl"
ROWS = 80
COMMANDS = ("ledger_check", "auction_verify", "auction_transcript", "scheduler verify")


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


def test_the_commands_find_the_running_market_by_themselves(market: Market, tmp_path: Path) -> None:
    section = (ROOT / "README.md").read_text().partition("## The parts by themselves")[2]
    block = section.partition("```\n")[2].partition("\n```")[0]
    lines = [line for line in block.splitlines() if any(word in line for word in COMMANDS)]
    assert len(lines) == len(COMMANDS)
    script = "\n".join(lines).replace(".venv/bin/python", shlex.quote(sys.executable))
    script = script.replace("transcript.jsonl", shlex.quote(str(tmp_path / "transcript.jsonl")))
    said = pasted(script, DATA_DIR=str(market.house.data_dir)).lower()
    assert "balance" in said
    assert "verified" in said
