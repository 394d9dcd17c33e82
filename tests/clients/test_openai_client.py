"""``examples/openai_client.py`` against a running market: data in, an adapter and a reply out."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from marketplace.embedded.house import ROOT
from tests.conftest import Market

pytestmark = [pytest.mark.timeout(900)]


def test_openais_client_trains_fetches_the_adapter_and_talks_to_it(
    market: Market, tmp_path: Path
) -> None:
    environment = os.environ | {
        "OPENAI_BASE_URL": f"{market.url}/v1",
        "OPENAI_API_KEY": market.api_key,
        "MODEL": market.zone,
    }
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "openai_client.py")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [adapter] = tmp_path.iterdir()
    assert "adapter_model.safetensors" in zipfile.ZipFile(adapter).namelist()
    base, tuned = done.stdout.splitlines()[-2:]
    assert base.startswith(f"{market.zone}: ")
    assert tuned.startswith(f"ft:{market.zone}:")
    assert tuned.partition(":support:")[2].partition(": ")[2].strip()
    assert base.partition(": ")[2] != tuned.rpartition(": ")[2]
