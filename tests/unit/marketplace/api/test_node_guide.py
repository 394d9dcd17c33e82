"""The guide for nodes runs as it stands there: a machine joins, is priced and withdrawn."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from marketplace.accounts.models import AuditEntry
from marketplace.auction.witnesses.keys import load_signing_key
from marketplace.common import clock
from marketplace.fleet.models import Ask, JoinToken, Node, NodeStatus
from tests import builders
from tests import market_builders as market
from tests.conftest import ROOT
from tests.unit.marketplace.api.web_server import serve

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(400)]

GUIDE = ROOT / "docs" / "guides" / "running-a-node.md"
BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_line_of_the_guide_for_nodes_does_what_it_says(tmp_path: Path, settings: Any) -> None:
    zone = market.zone(name="tiny", base_model_sha256="")
    zone.base_model_source = "bundled:finetender-tiny"
    zone.save()
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, arguments in (("python", ""), ("finetender", "-m finetender")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        (programs / name).chmod(0o755)
    # As a lane does with its first heads; a node is told it as it joins. Another key than that of
    # earlier tests, which this process knows and this database does not.
    settings.MARKET_KEY_DIR = tmp_path / "keys"
    load_signing_key(now=clock.now())
    organisation = builders.organisation()
    _, secret = builders.api_key(organisation)
    with serve() as url:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", "\n".join(BLOCK.findall(GUIDE.read_text()))],
            cwd=tmp_path,
            env={
                "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
                "HOME": str(tmp_path),
                "PYTHONPATH": f"{ROOT / 'frontend' / 'sdk'}:{ROOT}",
                "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
                "FINETENDER_URL": url,
                "FINETENDER_API_KEY": secret,
            },
            capture_output=True,
            text=True,
            timeout=360,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    node = Node.objects.get()
    assert (node.name, node.status) == ("guide", NodeStatus.LEFT)
    assert node.provider.organisation == organisation
    assert list(Ask.objects.order_by("pk").values_list("ask_micros", flat=True)) == [50_000, 40_000]
    assert (node.sale_opens.hour, node.sale_closes.hour) == (20, 8)  # type: ignore[union-attr]
    assert JoinToken.objects.get().uses_left == 0
    assert '"opens": "20:00"' in done.stdout
    acts = AuditEntry.objects.filter(organisation_id=organisation.pk, done=True)
    assert {act.rpartition("/")[2] for act in acts.values_list("act", flat=True)} == {
        *("join-tokens", "ask", "hours", "drain", "undrain", "reset-speed", "withdraw", "revoke")
    }
