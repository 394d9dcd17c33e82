"""Every code block of the guides runs, beside a running market, as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from marketplace.embedded.house import ROOT
from tests.conftest import Market

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800), pytest.mark.usefixtures("load")]

GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
ROWS = 60
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_blocks_of_all_guides_run(market: Market, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, arguments in (("python", ""), ("finetender", "-m finetender")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        program.chmod(0o755)
    rows = ROOT / "workers" / "models" / "datasets" / "support_tone.jsonl"
    few = rows.read_bytes().splitlines(keepends=True)[:ROWS]
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
        "PYTHONPATH": f"{ROOT / 'frontend' / 'sdk'}:{ROOT}",
        "FINETENDER_URL": market.url,
        "FINETENDER_API_KEY": market.api_key,
    }
    said: dict[str, str] = {}
    for guide in GUIDES:
        where = tmp_path / guide.stem
        where.mkdir()
        (where / "rows.jsonl").write_bytes(b"".join(few))
        blocks = _BLOCK.findall(guide.read_text())
        assert {kind for kind, _ in blocks} <= {"bash", "python", ""}, guide
        for kind, command in (
            ("bash", ["bash", "-euo", "pipefail", "-c"]),
            ("python", [sys.executable, "-c"]),
        ):
            script = "\n".join(text for each, text in blocks if each == kind)
            if not script:
                continue
            done = subprocess.run(
                [*command, script],
                cwd=where,
                env=environment,
                capture_output=True,
                text=True,
                timeout=900,
                check=False,
            )
            assert done.returncode == 0, f"{guide.name}\n{done.stdout}\n{done.stderr}"
            said[f"{guide.stem} {kind}"] = done.stdout
    assert said["curl bash"].splitlines()[-2:] == ["cancelled", "304"]
    assert re.search(r"No warm start|instead of", said["bidding python"])
    assert "402 bid_below_price" in said["openai python"]
    assert "adapter.zip" in said["sdk python"]
    assert "bid_below_price" in said["sdk python"]
    assert "altered: refused" in said["webhooks python"]
    assert "bid_required" in said["moving-from-openai python"]
    assert "--memory-gb" in said["running-a-node bash"]
    assert "--also" in said["running-a-node bash"]
    assert "guide" in said["running-a-node bash"]
    assert "snapshot" in said["websockets python"]
    assert '"ok": true' in said["verify-the-auction bash"]
    assert "signed by the key" in said["verify-the-auction bash"]
