"""The guide for curl runs to its end where files are read slowly."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction

from marketplace.accounts.models import Organisation
from marketplace.api.market import datasets, owned
from marketplace.jobs.models import Upload
from marketplace.jobs.services import intake
from tests import builders
from tests.conftest import ROOT
from tests.durable_work import do_at_once
from tests.unit.marketplace.api.client import ROWS
from tests.unit.marketplace.api.web_server import serve

pytestmark = pytest.mark.django_db(transaction=True)

BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_lines_for_curl_wait_for_a_file_that_is_read_slowly(
    lane: None, tokenizer_zone: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unread: list[Any] = []
    looks: list[str] = []

    def read_at_the_third_look(organisation: Organisation, upload_id: str) -> Upload:
        looks.append(upload_id)
        if len(looks) == 3:
            with transaction.atomic():
                do_at_once(*unread)
        return get_upload(organisation, upload_id)

    # Reading takes longer than any request waits for it.
    monkeypatch.setattr(intake, "enqueue_work", lambda *works: unread.extend(works))
    for waits in (datasets, owned):
        monkeypatch.setattr(waits, "wait_for_upload", lambda upload, **_: upload)
    get_upload = owned.get_upload
    monkeypatch.setattr(datasets, "get_upload", read_at_the_third_look)
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
    assert (len(unread), len(looks)) == (1, 3)
    assert refused.returncode != 0
    assert "key" in refused.stderr.lower()
