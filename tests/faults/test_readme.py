"""What README says works when it is pasted, beside a running market."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from marketplace.embedded.__main__ import build_readme_lines
from marketplace.embedded.house import ROOT
from tests.conftest import Market
from tests.faults.steps import until
from tests.faults.test_node_in_market import wait_for

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

#: The file that the lines upload, and how many of its rows the test does.
DATASET = Path("workers") / "models" / "datasets" / "support_tone.jsonl"
ROWS = 80
COMMANDS = ("ledger_check", "auction_verify", "auction_transcript", "scheduler auction verify")


def pasted(lines: str, *, where: Path = ROOT, **environment: str) -> str:
    """What a shell prints that has nothing of ours in its environment."""
    ours = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", lines],
        cwd=where,
        env=ours | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{lines}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_lines_over_the_api_train_a_job_and_fetch_its_adapter(
    market: Market, tmp_path: Path
) -> None:
    *lines, download = build_readme_lines(market.url, market.api_key)
    assert "-OJ" in download
    assert f"@{DATASET} " in "\n".join(lines)
    few = tmp_path / DATASET
    few.parent.mkdir(parents=True)
    few.write_bytes(b"".join((ROOT / DATASET).read_bytes().splitlines(keepends=True)[:ROWS]))
    found = next(n for n, line in enumerate(lines) if line.startswith("JOB="))
    bid = pasted("\n".join([*lines[:found], "echo $BID"]), where=tmp_path).strip()
    assert bid.startswith("bid_")
    with market.api() as api:
        until(
            lambda: api.get(f"/api/bids/{bid}").json()["status"] != "pending",
            within_s=60,
            what="the bid is decided",
        )
        shown = pasted("\n".join([f"BID={bid}", *lines[found:], "echo", "echo $JOB"]))
        job = shown.splitlines()[-1]
        assert job.startswith("ftjob-")
        assert f'"{job}"' in shown
        wait_for(api, job, lambda found: found["status"] == "succeeded", within_s=600)
    folder = tmp_path / "downloads"
    folder.mkdir()
    pasted(f"JOB={shlex.quote(job)}\n{download}", where=folder)
    [adapter] = folder.iterdir()
    assert "adapter_model.safetensors" in zipfile.ZipFile(adapter).namelist()


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
