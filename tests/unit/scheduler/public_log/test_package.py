"""``finetender-verify`` is these modules and nothing else, and runs with ``cryptography`` alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from scheduler import public_log
from tests.unit.scheduler.public_log.test_transcript import LINES

ROOT = Path(__file__).parents[4]
#: What ``cryptography`` is made of and needs.
NEEDED = ("cryptography", "cffi", "pycparser")
#: What the market has beside: none of it may be there.
ABSENT = ("numpy", "cattrs", "rfc8785", "django", "scheduler", "marketplace", "httpx")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the built package and what it needs, which is all that is imported from."""
    made = tmp_path_factory.mktemp("verify")
    # Setuptools builds in the folder of the project, which is not to be left with what it built.
    shutil.copytree(ROOT / "frontend" / "verify", made / "frontend" / "verify")
    shutil.copytree(ROOT / "scheduler" / "public_log", made / "scheduler" / "public_log")
    wheels, site = made / "wheels", made / "site"
    run_pip("wheel", "--no-build-isolation", "--wheel-dir", wheels, made / "frontend" / "verify")
    [wheel] = wheels.glob("*.whl")
    run_pip("install", "--no-index", "--target", site, wheel)
    for name in NEEDED:
        for file in metadata.files(name) or ():
            top = file.parts[0]
            origin = Path(str(metadata.distribution(name).locate_file(top)))
            if top not in ("..", "__pycache__") and not (site / top).exists():
                (site / top).symlink_to(origin)
    return site


def run_pip(*arguments: object) -> None:
    command = [sys.executable, "-m", "pip", arguments[0], "--no-deps", "--quiet", *arguments[1:]]
    subprocess.run([str(each) for each in command], check=True)


def run_clean(site: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code with the standard library and the site, and nothing of this environment."""
    begin = f"import sys; sys.path.insert(0, {str(site)!r}); "
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", begin + code, *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=site,
    )


def run_command(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_clean(site, "from finetender_verify.command import run; run()", *arguments)


def test_the_package_is_the_markets_own_modules(site: Path) -> None:
    source = Path(public_log.__file__).parent
    ours = {path.name: path.read_bytes() for path in source.iterdir() if path.is_file()}
    theirs = {path.name: path.read_bytes() for path in (site / "finetender_verify").glob("*.*")}
    assert theirs == ours
    [told] = (site).glob("finetender_verify-*.dist-info/METADATA")
    needs = [line for line in told.read_text().splitlines() if line.startswith("Requires-Dist")]
    assert needs == ["Requires-Dist: cryptography>=44"]


def test_its_command_runs_where_nothing_else_is(site: Path, tmp_path: Path) -> None:
    code = "from importlib.util import find_spec; print([n for n in sys.argv[1:] if find_spec(n)])"
    assert run_clean(site, code, *ABSENT, "cryptography").stdout == "['cryptography']\n"
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(LINES))
    done = run_command(site, "transcript", str(log))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["decided"] == 4
    log.write_text("\n".join([*LINES[:4], *LINES[5:]]))
    done = run_command(site, "transcript", str(log))
    assert (done.returncode, json.loads(done.stdout)["position"]) == (1, 5)
    for text in ("", "[]", '{"rules": 5}', LINES[1], "x"):
        log.write_text(text)
        done = run_command(site, "transcript", str(log))
        assert (done.returncode, done.stdout) == (2, ""), text
        assert "Traceback" not in done.stderr
        done = run_command(site, "receipt", str(log))
        assert (done.returncode, done.stdout) == (2, ""), text
        assert "Traceback" not in done.stderr
