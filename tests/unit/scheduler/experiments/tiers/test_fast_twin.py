"""The compiled loop against the same code interpreted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.experiments.tiers import compiled
from scheduler.experiments.tiers.command import main
from scheduler.experiments.tiers.policies import POLICIES

ARGUMENTS = ["--trace", "burst", "--jobs", "10", "--seed", "4", "--cap", "6", "--json"]
HARD = ["--die-early", "0.4", "--vanish", "0.2", "--mean-life-h", "3"]
IMPORT = r"^from scheduler\.experiments\.tiers\.(\w+) import"
SCRIPT = """
import sys
from scheduler.experiments.tiers.command import main
for policy in sys.argv[1].split(","):
    main(["--policy", policy, *sys.argv[2:]])
"""


def test_machine_code_is_made_anew_when_any_source_of_it_changes() -> None:
    folder = Path(compiled.__file__).parent
    sources = {path.stem: path.read_text() for path in folder.glob("*.py")}
    users = {name for name, text in sources.items() if "@compiled\n" in text}
    assert users < set(compiled.TOGETHER)
    for name in compiled.TOGETHER:
        imported = re.findall(IMPORT, sources[name], re.MULTILINE)
        assert set(imported) <= set(compiled.TOGETHER), name


@pytest.mark.parametrize(
    "more", [pytest.param([], id="calm"), pytest.param(HARD, id="hard", marks=pytest.mark.nightly)]
)
def test_compiled_and_interpreted_runs_print_the_same(
    more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    names = sorted(POLICIES)
    for name in names:
        assert main(["--policy", name, *ARGUMENTS, *more]) == 0
    compiled = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    plain = subprocess.run(
        [sys.executable, "-c", SCRIPT, ",".join(names), *ARGUMENTS, *more],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [json.loads(line) for line in plain.stdout.splitlines()] == compiled
