"""A machine with nothing of this repository installs the market's package, joins and is on sale."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.conftest import Market
from tests.faults.steps import until
from workers.node.join import save_facts
from workers.protocol.joining import PATH_RELEASE
from workers.protocol.node_facts import NodeFacts

pytestmark = [pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
TOKEN = """
from marketplace.common import clock
from marketplace.fleet.models import Provider, Zone
from marketplace.fleet.services import ListingTerms, create_join_token
print(create_join_token(
    zone=Zone.objects.get(name={zone!r}), provider=Provider.objects.order_by("created_at").first(),
    created_by=None, terms=ListingTerms(10_000_000), now=clock.now(),
)[1])
"""
STATUS = """
from marketplace.fleet.models import Node
print(*Node.objects.filter(name="stranger").values_list("status", flat=True))
"""
RETIRE = """
from marketplace.common import clock
from marketplace.fleet.models import Node
from marketplace.fleet.services import retire_node
retire_node(node=Node.objects.get(name="stranger"), now=clock.now())
"""


@pytest.fixture
def served(market: Market) -> Market:
    """The market serves the package of its release, as ``make dist`` builds it."""
    subprocess.run(
        ["sh", str(ROOT / "docker" / "node_dist.sh"), "--no-build-isolation"],
        env=os.environ | {"PYTHON": sys.executable, "DIST": str(market.install_dir)},
        check=True,
    )
    return market


def install(market: Market, folder: Path, *, fetches: bool) -> Path:
    """An environment of its own that has the node's package and no other of ours."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    with market.api() as client:
        # What was built after the worker started is signed when it is first asked for.
        until(lambda: client.post(PATH_RELEASE, json={}).is_success, what="a signed release")
        release = client.post(PATH_RELEASE, json={}).raise_for_status().json()
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    wheel = f"{market.url}{release['wheel']['url']}"
    if fetches:
        wanted = ["--constraint", f"{market.url}{release['constraints']['url']}", wheel]
        subprocess.run([*pip, *wanted], check=True)
        return python
    subprocess.run([*pip, "--no-deps", "--no-index", wheel], check=True)
    # PyTorch and the like are borrowed; what links to this repository does not work from there.
    packages = next(folder.glob("lib/*/site-packages"))
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    return python


@pytest.mark.parametrize("fetches", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_machine_with_nothing_but_the_markets_package_joins_and_is_on_sale(
    served: Market, slow_facts: NodeFacts, tmp_path: Path, fetches: bool
) -> None:
    python = install(served, tmp_path / "environment", fetches=fetches)
    outside = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    look = "import importlib.util, workers; print(workers.__file__);"
    look += "print(importlib.util.find_spec('marketplace'))"
    found = subprocess.run(
        [python, "-c", look],
        cwd=tmp_path,
        env=outside,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert found[0].startswith(str(tmp_path))
    assert found[1] == "None"

    save_facts(tmp_path / "measured.json", slow_facts)
    secret = served.shell.run(TOKEN.format(zone=served.zone)).strip()
    with (tmp_path / "log").open("w") as log:
        node = subprocess.Popen(
            [
                *(python.with_name("finetender-node"), "join", "--url", served.url, "--run"),
                *("--name", "stranger", "--state-dir", tmp_path / "state", "--device", "cpu"),
                *("--measured", tmp_path / "measured.json"),
            ],
            cwd=tmp_path,
            env=outside | {"FINETENDER_JOIN_TOKEN": secret},
            stdout=log,
            stderr=log,
        )
    try:
        until(
            lambda: served.shell.run(STATUS).strip() == "online",
            within_s=120,
            what="the stranger's node is on sale",
        )
        assert node.poll() is None
    finally:
        node.terminate()
        assert node.wait(60) == 0, (tmp_path / "log").read_text()
        served.shell.run(RETIRE)
