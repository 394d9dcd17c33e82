"""The guide for curl runs to its end where files are read slowly."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction

from marketplace.api.market import datasets, owned
from marketplace.jobs.models import Upload
from marketplace.jobs.services import intake, wait_for_upload
from tests import builders
from tests.conftest import ROOT
from tests.durable_work import do_at_once
from tests.unit.marketplace.api.client import ROWS
from tests.unit.marketplace.api.web_server import serve

pytestmark = pytest.mark.django_db(transaction=True)

BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_lines_for_curl_bid_for_a_file_that_is_still_being_read(
    lane: None, tokenizer_zone: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unread: list[Any] = []

    def read_then_wait(upload: Upload, *, within_s: float) -> Upload:
        with transaction.atomic():
            do_at_once(*unread)
        return wait_for_upload(upload, within_s=within_s)

    monkeypatch.setattr(intake, "enqueue_work", lambda *works: unread.extend(works))
    monkeypatch.setattr(datasets, "wait_for_upload", lambda upload, **_: upload)
    monkeypatch.setattr(owned, "wait_for_upload", read_then_wait)
    (tmp_path / "rows.jsonl").write_bytes(ROWS)
    _, secret = builders.api_key(builders.organisation(usd="10"))
    lines = "\n".join(BLOCK.findall((ROOT / "docs" / "guides" / "curl.md").read_text()))

    def run(key: str) -> subprocess.CompletedProcess[str]:
        programs = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", lines],
            cwd=tmp_path,
            env={"PATH": programs, "FINETENDER_URL": url, "FINETENDER_API_KEY": key},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    with serve() as url:
        done = run(secret)
        refused = run("ft_unknown_key")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-2:] == ["cancelled", "304"]
    assert len(unread) == 1
    assert refused.returncode != 0
    assert "key" in refused.stderr.lower()
