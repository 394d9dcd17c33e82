"""What a provider installs: one wheel without the market, built as images and ``make dist`` do."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from marketplace.fleet.releases import IMAGE_CONTEXT, INSTALL_FILES, WHEEL
from workers.protocol.joining import RELEASE

ROOT = Path(__file__).parents[3]
NODE = tomllib.loads((ROOT / "workers" / "pyproject.toml").read_text())
MARKET = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the script writes, from a copy of all that it needs."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("workers", "constraints.txt"):
        (copy / name).symlink_to(ROOT / name)
    (copy / "docker").mkdir()
    for name in ("node_dist.sh", "worker.Dockerfile"):
        (copy / "docker" / name).write_bytes((ROOT / "docker" / name).read_bytes())
    subprocess.run(
        # What builds it is here; without that it is fetched.
        ["sh", "docker/node_dist.sh", "--no-build-isolation"],
        cwd=copy,
        env=os.environ | {"PYTHON": sys.executable},
        check=True,
    )
    return copy / "dist"


def test_the_market_serves_just_what_is_built(dist: Path) -> None:
    assert {path.name for path in dist.iterdir()} == set(INSTALL_FILES)


def test_the_wheel_holds_the_node_its_model_and_nothing_of_the_market(dist: Path) -> None:
    names = zipfile.ZipFile(dist / WHEEL).namelist()
    info = f"finetender_node-{RELEASE}.dist-info"
    assert {name.split("/")[0] for name in names} == {"workers", info}
    tracked = subprocess.run(
        ["git", "ls-files", "workers"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    wanted = {name for name in tracked if name.endswith(".py") or "/models/" in name}
    assert wanted <= set(names)


def test_the_image_is_built_from_what_the_archive_holds(dist: Path) -> None:
    with tarfile.open(dist / IMAGE_CONTEXT) as archive:
        names = set(archive.getnames())
    assert {"Dockerfile", "constraints.txt", "workers/pyproject.toml"} <= names
    copied = {
        line.split()[1]
        for line in (ROOT / "docker" / "worker.Dockerfile").read_text().splitlines()
        if line.startswith("COPY") and "--from" not in line
    }
    assert copied <= names


def test_the_packages_agree_on_release_and_requirements() -> None:
    assert RELEASE == NODE["project"]["version"] == MARKET["project"]["version"]
    extra = MARKET["project"]["optional-dependencies"]["worker"]
    assert sorted(NODE["project"]["dependencies"]) == sorted([*extra, "numpy>=2.1"])
    assert set(NODE["tool"]["setuptools"]["packages"]) == {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "workers").rglob("__init__.py")
    }
