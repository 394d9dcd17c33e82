"""Seed faults one at a time, and see that the tests find each.

``python -m tests.mutations [NAME ...]`` works on a clone of the last commit. Run it by hand after
tests were shortened; it takes some ten minutes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
import traceback
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAULTS: dict[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("faults.toml").read_text()
)
#: What pytest returns where tests failed: an error of another kind finds nothing.
FAILED = 1
#: Loaded once for all runs, unlike what is ours and may have a fault.
LIBRARIES = ("numba", "torch", "transformers")
OURS = ("marketplace", "scheduler", "workers", "tests")


def find_fault(clone: Path, fault: dict[str, str]) -> str | None:
    """Name the first test that fails with a fault; ``None``: all pass."""
    path = clone / fault["file"]
    right = path.read_text()
    if right.count(fault["was"]) != 1:
        raise SystemExit(f"{fault['was']!r} does not stand once in {fault['file']}")
    path.write_text(right.replace(fault["was"], fault["is"]))
    said = clone.parent / "said"
    try:
        child = os.fork()
        if not child:
            status = 99
            try:
                status = _run_tests(clone, fault["tests"].split(), said)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        path.write_text(right)
    if status == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", said.read_text(), re.MULTILINE)
    if status != FAILED or failed is None:
        raise SystemExit(said.read_text()[-4000:])
    return failed[1]


def _run_tests(clone: Path, tests: list[str], said: Path) -> int:
    """Test a clone in this process, which must end then; pytest's status."""
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]
    os.chdir(clone)
    sys.path[0] = str(clone)
    with said.open("w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    # Some plugins came with the libraries.
    options = ["-qx", "-m", "not nightly", "-o", "timeout=0"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    status = import_module("pytest").main([*options, *tests])
    sys.stdout.flush()
    return int(status)


def main(names: list[str]) -> int:
    from tests.servers_plugin import pytest_unconfigure, start_servers

    for library in LIBRARIES:
        import_module(library)
    sys.dont_write_bytecode = True
    start_servers()
    missed = 0
    try:
        with tempfile.TemporaryDirectory() as folder:
            clone = Path(folder) / "clone"
            subprocess.run(["git", "clone", "-q", "--shared", ROOT, clone], check=True)
            built = "marketplace/web/static/web/build"
            (clone / built).symlink_to(ROOT / built)
            for name in names or FAULTS:
                found_by = find_fault(clone, FAULTS[name])
                missed += found_by is None
                print(f"{name}: {found_by or 'NOT FOUND'}", flush=True)
    finally:
        pytest_unconfigure()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
