"""What holds of every command, by the parser itself."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from finetender import local_programs
from finetender.__main__ import main
from finetender.access_commands import SHELLS
from finetender.actions import show_members
from finetender.command_line import build_parser
from finetender.resources import RESOURCES


def list_commands(
    parser: argparse.ArgumentParser, names: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    inner = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if names and (not inner or parser.get_default("command")):
        yield names, parser
    for group in inner:
        for name, command in group.choices.items():
            yield from list_commands(command, (*names, name))


COMMANDS = dict(list_commands(build_parser()))
#: Its arguments are those of the node's own program.
OURS = {names: of for names, of in COMMANDS.items() if names != ("nodes", "join")}


def test_every_command_has_help_and_takes_what_all_of_them_take() -> None:
    assert len(OURS) > 60
    assert build_parser().format_help()
    for names, parser in OURS.items():
        told = parser.format_help()
        for option in ("--json", "--profile NAME", "--ca FILE"):
            assert option in told, names


@pytest.mark.parametrize("place", ["before", "between", "after"])
def test_what_all_commands_take_stands_before_or_after_their_names(place: str) -> None:
    common = ["--json", "--profile", "work", "--ca", "ca.pem"]
    words = {
        "before": [*common, "webhooks", "list"],
        "between": ["webhooks", *common, "list"],
        "after": ["webhooks", "list", *common],
    }[place]
    chosen = build_parser().parse_args(words)
    assert (chosen.json, chosen.profile, chosen.ca) == (True, "work", "ca.pem")
    plain = build_parser().parse_args(["webhooks", "list"])
    assert (plain.json, plain.profile, plain.ca) == (False, None, None)


@pytest.mark.parametrize("names", OURS, ids=" ".join)
def test_arguments_that_are_none_are_refused_as_json(
    names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*names, "--json", "--no-such-thing"]) == 2
    told = capsys.readouterr()
    error = json.loads(told.out)["error"]
    assert (error["kind"], error["exit_code"], told.err) == ("UsageError", 2, "")
    assert "usage: finetender" in error["detail"]
    assert "  " not in error["detail"]


def test_a_resource_without_a_verb_is_listed() -> None:
    for name, (_, actions) in RESOURCES.items():
        first = next(iter(actions.values()))
        assert build_parser().parse_args([name]).action_of is first


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_is_given_all_commands(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for names in OURS:
        for name in names:
            assert name in script, (shell, name)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["finetender", "swe"], {"sweep"}),
        (["finetender", "webhooks", "re"], {"replay"}),
        (["finetender", "export", "JOB", "gguf"], {"gguf-f16", "gguf-q8_0"}),
        (["finetender", "logs", "--fol"], {"--follow"}),
        (["finetender", "run", "job"], {"job.yaml"}),
        (["finetender", "jobs", "--pro"], {"--profile"}),
    ],
)
def test_bash_completes_commands_options_choices_and_files(
    words: list[str], expected: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["completion", "bash"])
    (tmp_path / "complete").write_text(capsys.readouterr().out)
    (tmp_path / "job.yaml").touch()
    line = " ".join(words)
    asked = (
        "source ./complete; "
        f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; COMP_LINE='{line}'; "
        "COMP_POINT=${#COMP_LINE}; "
        'read -ra found <<< "$(complete -p finetender)"; '
        "for at in ${!found[@]}; do [ ${found[at]} = -F ] && made=${found[at+1]}; done; "
        f"$made finetender {words[-1]} {words[-2]}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-c", asked],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    found: set[Any] = {each.strip() for each in done.stdout.splitlines() if each.strip()}
    assert found == expected, done.stderr


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not on this machine")
def test_fish_completes_verbs_options_choices_and_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["completion", "fish"])
    (tmp_path / "complete.fish").write_text(capsys.readouterr().out)
    (tmp_path / "job.yaml").touch()
    for line, expected in (
        ("finetender webhooks re", {"replay"}),
        ("finetender export JOB gguf", {"gguf-f16", "gguf-q8_0"}),
        ("finetender logs --fol", {"--follow"}),
        ("finetender run job", {"job.yaml"}),
    ):
        done = subprocess.run(
            ["fish", "-c", f"source complete.fish; complete -C '{line}'"],
            cwd=tmp_path,
            env=os.environ | {"HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert {each.split("\t")[0] for each in done.stdout.splitlines()} == expected, done.stderr


def test_of_a_long_list_its_length_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    cells = [{"slot": slot, "node": "node_1"} for slot in range(60)]
    show_members({"id": "ftjob-1", "plan": cells, "few": [1, 2], "none": [], "empty": None})
    assert capsys.readouterr().out.splitlines() == [
        "id: ftjob-1",
        "plan: 60, which --json shows",
        "few: [1, 2]",
    ]


def test_a_node_is_joined_with_its_own_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local_programs, "find_spec", lambda _name: None)
    assert main(["nodes", "join", "--quick"]) == 2
    assert "finetender nodes token" in capsys.readouterr().err
