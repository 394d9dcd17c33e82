"""What is installed is locked: versions as they were tested, each file by its hash."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
_PACKAGE = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>\S+)(?P<rest>.*?)(?=^\S|\Z)", re.M | re.S)
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
#: The files of docker/requirements/ that a part is installed from, and its extras.
PARTS = {
    ("market",): ("web", "vendor", "tracking"),
    ("node",): ("worker",),
    ("market", "node", "sim"): ("web", "worker", "sim", "vendor"),
    ("market", "node", "sim", "dev"): ("web", "worker", "sim", "vendor", "tracking", "dev"),
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSIONS = {
    canonicalize_name(name): version
    for name, version in (
        line.split("==") for line in (ROOT / "constraints.txt").read_text().split()
    )
}


def read_locked(name: str) -> dict[str, re.Match[str]]:
    text = (ROOT / "docker" / "requirements" / f"{name}.txt").read_text()
    return {canonicalize_name(found["name"]): found for found in _PACKAGE.finditer(text)}


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docker" / "requirements").iterdir()), ids=lambda one: one.stem
)
def test_each_locked_package_has_hashes_and_the_version_that_was_tested(path: Path) -> None:
    locked = read_locked(path.stem)
    assert locked
    for name, found in locked.items():
        assert _HASH.search(found["rest"]), name
        assert found["version"] == VERSIONS.get(name, found["version"]), name
    assert "torch" not in locked
    # They are the index's: nothing of a machine or a mirror is in them.
    assert not re.search(r"https?:|file:|--(extra-)?index|--find-links", path.read_text())


@pytest.mark.parametrize(("files", "extras"), PARTS.items(), ids=" ".join)
def test_a_part_is_locked_with_all_that_it_names(files, extras) -> None:
    locked = {name for file in files for name in read_locked(file)}
    wanted = [*PROJECT["dependencies"]]
    for extra in extras:
        wanted += PROJECT["optional-dependencies"][extra]
    names = {canonicalize_name(Requirement(one).name) for one in wanted}
    assert names - locked <= {"torch"}
