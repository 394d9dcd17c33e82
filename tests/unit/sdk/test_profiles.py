"""Markets and keys that are kept for later commands, on systems with POSIX's modes and without."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from finetender import UsageError, settings
from finetender.__main__ import main
from finetender.settings import Access, Profiles

HOME, WORK = Access("https://home.example", "key-home"), Access("https://work.example", "key-work")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("URL", "API_KEY", "PROFILE", "CA"):
        monkeypatch.delenv(f"FINETENDER_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("APPDATA", str(tmp_path / "roaming"))
    return tmp_path


def store_both() -> None:
    settings.store_profile("default", HOME)
    settings.store_profile("work", WORK)


def test_a_profile_is_named_by_an_argument_the_environment_or_by_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store_both()
    assert settings.find_access() == HOME
    assert settings.find_access(profile="work") == WORK
    monkeypatch.setenv("FINETENDER_PROFILE", "work")
    assert settings.find_access() == WORK
    assert settings.find_access(profile="default") == HOME
    monkeypatch.delenv("FINETENDER_PROFILE")
    settings.choose_profile("work")
    assert settings.find_access() == WORK
    with pytest.raises(UsageError, match="no profile 'other'; there are: default, work"):
        settings.find_access(profile="other")


def test_the_environment_comes_before_what_was_chosen_and_after_what_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store_both()
    monkeypatch.setenv("FINETENDER_URL", "https://third.example")
    with pytest.raises(UsageError, match="finetender login"):
        # No stored key is sent to another market.
        settings.find_access()
    monkeypatch.setenv("FINETENDER_API_KEY", "key-third")
    assert settings.find_access() == Access("https://third.example", "key-third")
    assert settings.find_access(profile="work") == WORK


def test_the_file_is_its_owners_alone_and_is_refused_where_it_is_not() -> None:
    store_both()
    path = settings.find_config_path()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.chmod(0o644)
    with pytest.raises(UsageError, match=f"chmod 600 {path}"):
        settings.find_access()
    path.chmod(0o600)
    assert settings.find_access() == HOME


def test_keys_are_stored_where_no_modes_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Windows has neither ``fchmod`` nor modes; there ``%APPDATA%`` is the person's own."""
    monkeypatch.delattr(os, "fchmod")
    monkeypatch.delattr(os, "chmod")
    monkeypatch.delattr(os, "getuid")
    monkeypatch.setattr(settings, "IS_WINDOWS", True)
    store_both()
    path = folder / "roaming" / "finetender" / "profiles.json"
    assert settings.find_config_path() == path
    # What another program makes of the modes says nothing there.
    os.umask(os.umask(0o022))
    assert settings.read_profiles() == Profiles("default", {"default": HOME, "work": WORK})
    assert main(["profiles", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["profile"] for each in told] == ["default", "work"]


def test_a_file_that_is_none_is_named_and_nothing_is_lost(folder: Path) -> None:
    store_both()
    path = settings.find_config_path()
    whole = path.read_text()
    for text in ("", "[]", '{"profiles": 5, "current": "x"}', '{"profiles": {"a": {}}}', "\x00"):
        path.write_text(text)
        with pytest.raises(UsageError, match="no file of profiles"):
            settings.store_profile("more", HOME)
        assert path.read_text() == text
    path.write_text(whole)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_write_that_fails_leaves_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    store_both()
    path = settings.find_config_path()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(UsageError, match="No space left"):
        settings.store_profile("more", HOME)
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert list(settings.read_profiles().by_name) == ["default", "work"]


def test_commands_list_choose_and_forget_profiles_and_print_no_key(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store_both()
    assert main(["profiles"]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines() == [
        "   profile  market",
        "*  default  https://home.example",
        "   work     https://work.example",
    ]
    assert main(["profiles", "use", "work"]) == 0
    assert main(["profiles", "remove", "work"]) == 0
    assert settings.read_profiles() == Profiles("default", {"default": HOME})
    assert main(["profiles", "use", "work"]) == 2
    assert main(["profiles", "remove", "work", "--json"]) == 2
    assert "key-" not in shown + capsys.readouterr().out
