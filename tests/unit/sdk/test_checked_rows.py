"""``finetender check``: the market's own reader, without a market."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from finetender import commands
from finetender.__main__ import main
from finetender.values import Zone
from packaging.requirements import Requirement

from marketplace.fleet.base_models import find_tokenizer_files
from marketplace.fleet.text_encoder import load_text_encoder
from marketplace.jobs.dataset_reader import read_dataset

ROOT = Path(__file__).parents[3]
BASE = "bundled:finetender-tiny"
#: What Windows has not.
POSIX = ("fcntl", "grp", "pwd", "resource", "termios")
ZONE = {"name": "tiny", "base_model": "finetender-tiny", "slot_s": 15, "max_sequence_length": 3}


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (['{"text": "hello"}', '{"text": "there"}'], 0),
        # Longer than three tokens: an upload refuses it unless it is told to cut it.
        (['{"text": "hello there"}', '{"text": "hello"}'], 5),
        (['{"text": "hello there"}', '{"txt": 3}'], 5),
        (['{"txt": 3}'], 5),
    ],
)
def test_rows_are_what_an_upload_would_find_them_to_be(tmp_path, capfd, lines, code):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines))
    assert main(["check", str(path), "--base", BASE, "--longest", "3", "--json"]) == code
    found = json.loads(capfd.readouterr().out)
    encoder = load_text_encoder(find_tokenizer_files(BASE))
    with path.open("rb") as file:
        reading, _ = read_dataset(file, name=path.name, encoder=encoder, max_tokens=3)
    for name in ("rows", "tokens", "longest_row_tokens", "long_rows", "faulty_lines", "errors"):
        assert found[name] == getattr(reading, name)


def test_what_would_be_refused_is_told_by_line_and_an_unknown_base_at_once(tmp_path, capfd):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "hello there"}\n{"txt": 3}\n')
    assert main(["check", str(path), "--base", BASE]) == 5
    fault, sums = capfd.readouterr().out.splitlines()
    assert fault.startswith("line 2: Key txt is not known. Did you mean text by txt?")
    assert sums == "1 rows, 4 tokens, the longest row has 4."
    assert main(["check", str(path), "--base", "bundled:none"]) == 5
    assert capfd.readouterr().out == "No model named 'none' is bundled.\n"


def test_long_rows_are_told_by_line_with_what_an_upload_can_do_about_them(tmp_path, capfd):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "hello there"}\n' * 12)
    assert main(["check", str(path), "--base", BASE, "--longest", "3"]) == 5
    assert capfd.readouterr().out.splitlines()[1] == (
        "Longer than the 3 tokens that training reads: line 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, …. "
        "Upload with --long-rows cut or leave_out, or shorten them."
    )


def test_without_a_base_the_market_says_what_rows_are_checked_for(tmp_path, capfd, monkeypatch):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "hello there"}\n')
    zones = [Zone.read(ZONE | {"latest_deadline": "2026-11-29T00:00:00+00:00", "name": "tiny"})]

    class Market:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def list_zones(self):
            return zones

    monkeypatch.setattr(commands, "open_client", lambda _: Market())
    # Its model takes three tokens.
    assert main(["check", str(path)]) == 5
    assert "Longer than the 3 tokens" in capfd.readouterr().out
    assert main(["check", str(path), "--longest", "4"]) == 0
    zones.append(Zone.read(zones[0].raw | {"name": "other"}))
    for more in ([], ["--zone", "none"]):
        assert main(["check", str(path), *more]) == 2
        refused = capfd.readouterr().err
        assert refused == "finetender: Choose one zone by --zone; there are: tiny, other.\n"
    assert main(["check", str(path), "--zone", "other", "--longest", "4"]) == 0


@pytest.fixture(scope="module")
def clean_python(tmp_path_factory):
    """An environment with the SDK, and the market's package with its extra ``check`` alone."""
    made = tmp_path_factory.mktemp("check")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made / "own")], check=True)
    [site] = (made / "own" / "lib").glob("python*/site-packages")
    ours = [ROOT / name for name in ("marketplace", "scheduler", "workers")]
    for folder in (*ours, ROOT / "frontend" / "sdk" / "finetender"):
        (site / folder.name).symlink_to(folder)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # The SDK's own are its business.
    wanted = [*project["dependencies"], *project["optional-dependencies"]["check"], "httpx"]
    for name in list_needed([*wanted, "shtab"]):
        for file in metadata.files(name) or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (site / top).exists():
                (site / top).symlink_to(metadata.distribution(name).locate_file(top))
    hidden = "; ".join(f"sys.modules[{name!r}] = None" for name in POSIX)
    (site / "windows.pth").write_text(f"import sys; {hidden}\n")
    return made / "own" / "bin" / "python"


def list_needed(wanted):
    """Names of the packages that requirements need, directly or not."""
    found, waiting = set(), [Requirement(text) for text in wanted]
    while waiting:
        one = waiting.pop()
        if one.name in found:
            continue
        found.add(one.name)
        others = map(Requirement, metadata.distribution(one.name).requires or ())
        waiting += [one for one in others if not one.marker or one.marker.evaluate({"extra": ""})]
    return found


def test_it_runs_with_its_extra_alone_and_where_windows_lacks_posixs_modules(
    tmp_path, clean_python
):
    rows, folder = tmp_path / "rows.jsonl", tmp_path / "base"
    rows.write_text('{"text": "hello there"}\n')
    folder.symlink_to(ROOT / "workers" / "models" / "finetender-tiny")
    absent = "import importlib.util as u; print([n for n in ('django', 'torch') if u.find_spec(n)])"
    assert run(clean_python, "-c", absent, cwd=tmp_path) == (0, "[]\n", "")
    for base in (BASE, "finetender-tiny", "base"):
        told = run(clean_python, "-m", "finetender", "check", rows, "--base", base, cwd=tmp_path)
        assert told == (0, "1 rows, 4 tokens, the longest row has 4.\n", "")


def test_without_its_extra_it_says_what_to_install(tmp_path, clean_python):
    [package] = (clean_python.parents[1] / "lib").glob("python*/site-packages/tokenizers")
    aside = package.rename(package.with_name("aside"))
    (tmp_path / "rows.jsonl").touch()
    command = ("-m", "finetender", "check", "rows.jsonl", "--base", "x")
    code, out, told = run(clean_python, *command, cwd=tmp_path)
    aside.rename(package)
    assert (code, out) == (2, "")
    assert told.endswith("In its repository: pip install '.[check]'\n")


def run(python, *command, cwd):
    """Exit code, and what was printed to each stream."""
    environment = {name: os.environ[name] for name in ("PATH",)} | {"HOME": str(cwd)}
    done = subprocess.run(
        [str(python), *map(str, command)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr
