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
from packaging.requirements import Requirement
from packaging.version import Version

from marketplace.fleet.releases import IMAGE_CONTEXT, INSTALL_FILES, WHEEL
from workers.protocol.joining import RELEASE

ROOT = Path(__file__).parents[3]
NODE = tomllib.loads((ROOT / "workers" / "pyproject.toml").read_text())
#: Reproductions, benchmarks, recipes and the demo's servers: in no package and no image.
OF_A_CHECKOUT = (
    "marketplace/embedded",
    "scheduler/experiments",
    "workers/bench",
    "workers/models/pretraining",
)
IMPORT_ALL = """
import importlib, pkgutil, pathlib
import django
django.setup()
for name in ("marketplace", "scheduler", "workers"):
    package = importlib.import_module(name)
    print(pathlib.Path(package.__file__).parents[1])
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        if not module.name.endswith("__main__") and ".settings." not in module.name:
            importlib.import_module(module.name)
"""
MARKET = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_node_installs_the_pytorch_and_transformers_that_were_tested():
    tested = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    found = MARKET["project"]["optional-dependencies"]["worker"]
    for wanted in (NODE["project"]["dependencies"], found):
        bounds = {one.name: one.specifier for one in map(Requirement, wanted)}
        for name in ("torch", "transformers"):
            version = Version(tested[name])
            assert version in bounds[name]
            assert f"{version.major}.{version.minor + 1}" not in bounds[name]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the script writes, from a copy of all that it needs."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("workers", "constraints.txt"):
        (copy / name).symlink_to(ROOT / name)
    (copy / "docker").mkdir()
    (copy / "docker" / "requirements").symlink_to(ROOT / "docker" / "requirements")
    for name in ("node_dist.sh", "worker.Dockerfile"):
        (copy / "docker" / name).write_bytes((ROOT / "docker" / name).read_bytes())
    subprocess.run(
        ["sh", "docker/node_dist.sh"],
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
    of_a_checkout = {name for name in wanted if _is_of_a_checkout(name)}
    assert of_a_checkout
    assert wanted - of_a_checkout <= set(names)
    assert not of_a_checkout & set(names)


def test_the_image_is_built_from_what_the_archive_holds(dist: Path) -> None:
    with tarfile.open(dist / IMAGE_CONTEXT) as archive:
        names = set(archive.getnames())
    assert {
        "Dockerfile",
        "constraints.txt",
        "docker/requirements/node.txt",
        "workers/pyproject.toml",
    } <= names
    copied = {
        line.split()[1]
        for line in (ROOT / "docker" / "worker.Dockerfile").read_text().splitlines()
        if line.startswith("COPY") and "--from" not in line
    }
    assert copied <= names


def test_the_packages_agree_on_release_and_requirements() -> None:
    # Of one place: ``workers.protocol.joining.RELEASE``.
    assert NODE["tool"]["setuptools"]["dynamic"] == MARKET["tool"]["setuptools"]["dynamic"]
    extra = MARKET["project"]["optional-dependencies"]["worker"]
    assert sorted(NODE["project"]["dependencies"]) == sorted(
        [*extra, "cryptography>=44", "numpy>=2.1"]
    )
    assert set(NODE["tool"]["setuptools"]["packages"]) == {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "workers").rglob("__init__.py")
        if not _is_of_a_checkout(str(path.relative_to(ROOT)))
    }


@pytest.mark.nightly
def test_the_markets_package_and_image_leave_out_what_is_for_a_checkout(tmp_path: Path) -> None:
    copy = tmp_path / "source"
    copy.mkdir()
    for name in ("marketplace", "scheduler", "workers", "LICENSE", "README.md", "pyproject.toml"):
        (copy / name).symlink_to(ROOT / name)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", tmp_path, copy], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"marketplace/config/asgi.py", "scheduler/auction/engine/engine.py"} <= set(names)
    assert "workers/models/finetender-tiny/config.json" in names
    assert [name for name in names if _is_of_a_checkout(name)] == []
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    # Nothing that was left out is missed: every module is imported without a checkout at hand.
    imported = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL],
        cwd=tmp_path / "installed",
        env=os.environ | {"PYTHONPATH": str(tmp_path / "installed")},
        check=True,
        capture_output=True,
        text=True,
    )
    assert imported.stdout.split() == [str(tmp_path / "installed")] * 3
    # What an auditor runs is in it.
    assert "scheduler/auction/audit/command.py" in names
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert set(OF_A_CHECKOUT) <= set(ignored)


def _is_of_a_checkout(name: str) -> bool:
    return name.startswith(tuple(f"{folder}/" for folder in OF_A_CHECKOUT))
