"""The SDK's roads as a new user walks them: an environment with its wheel and nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from marketplace.embedded.house import ROOT
from tests.conftest import Market
from tests.own_environment import run_program

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

ROWS = 60
SDK = ROOT / "frontend" / "sdk"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Where an environment has its programs, with the SDK from its wheel."""
    wheels, own = tmp_path / "wheels", tmp_path / "own"
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    run_program(*pip, "--wheel-dir", str(wheels), str(SDK))
    run_program(sys.executable, "-m", "venv", str(own))
    [wheel] = wheels.iterdir()
    run_program(str(own / "bin" / "python"), "-m", "pip", "install", "--quiet", str(wheel))
    return own / "bin"


def test_the_sdks_guide_and_one_file_lead_to_adapters(
    market: Market, programs: Path, tmp_path: Path
) -> None:
    where = tmp_path / "work"
    where.mkdir()
    rows = ROOT / "workers" / "models" / "datasets" / "support_tone.jsonl"
    few = b"".join(rows.read_bytes().splitlines(keepends=True)[:ROWS])
    (where / "rows.jsonl").write_bytes(few)
    environment = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "HOME": str(where),
        "FINETENDER_URL": market.url,
        "FINETENDER_API_KEY": market.api_key,
    } | {name: os.environ[name] for name in ("TMPDIR",) if name in os.environ}

    def walk(road: str, *command: str) -> str:
        began = time.monotonic()
        done = subprocess.run(
            command,
            cwd=where,
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, f"{road}\n{done.stdout}\n{done.stderr}"
        last = done.stdout.strip().splitlines()[-1:]
        print(f"{road} | {time.monotonic() - began:.0f} s | {' '.join(last)[:120]}")
        return done.stdout

    guide = _BLOCK.findall((ROOT / "docs" / "guides" / "sdk.md").read_text())
    bash = "\n".join(text for kind, text in guide if kind == "bash")
    python = "\n".join(text for kind, text in guide if kind == "python")
    walk("docs/guides/sdk.md, bash", "bash", "-euo", "pipefail", "-c", bash)
    assert "adapter.zip" in walk(
        "docs/guides/sdk.md, python", str(programs / "python"), "-c", python
    )
    assert zipfile.is_zipfile(where / "adapter.zip")

    trl = {"model_name_or_path": market.zone, "lora_r": 4, "num_train_epochs": 1}
    (where / "trl.json").write_text(json.dumps(trl))
    job = json.loads(walk("finetender import trl.json", "finetender", "import", "trl.json"))
    assert job == {
        "zone": market.zone,
        "adapter": {"rank": 4},
        "training": {"epochs": 1},
    }
    job |= {"data": "rows.jsonl", "price": "5", "deadline": "20m", "output": "own.zip"}
    (where / "job.json").write_text(json.dumps(job))
    walk("finetender run job.json", "finetender", "run", "job.json")
    with zipfile.ZipFile(where / "own.zip") as adapter:
        assert json.loads(adapter.read("adapter_config.json"))["r"] == 4
    newest = json.loads(walk("finetender jobs", "finetender", "jobs", "--limit", "1", "--json"))
    assert "succeeded" in json.dumps(newest)
    for shell, word in (("bash", "complete"), ("fish", "complete -c"), ("powershell", "Register")):
        assert word in walk(f"finetender completion {shell}", "finetender", "completion", shell)
