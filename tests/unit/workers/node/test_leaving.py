"""A node that leaves for good takes nothing of the owners with it, even if killed meanwhile."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from workers.node import leaving
from workers.node.credentials import StateDir
from workers.node.kept_jobs import BLOBS
from workers.node.leaving import forget_owners
from workers.node.node_process import remove_leftovers
from workers.protocol.messages import HeartbeatReply


@pytest.fixture
def state(tmp_path) -> StateDir:
    state = StateDir(tmp_path / "state")
    state.prepare()
    state.credentials.write_text("of the node")
    for path in (state.work / "job-a" / "step-1", state.cache / "rows", state.outbox / "adapter"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("of an owner")
    return state


def list_files(state: StateDir) -> list[str]:
    return sorted(path.name for path in state.path.rglob("*") if path.is_file())


def test_all_that_is_of_owners_goes_and_the_credentials_stay(state, capsys):
    forget_owners(state)
    assert list_files(state) == ["node.json"]
    assert f"owners are deleted from {state.path}" in capsys.readouterr().out


def test_a_start_after_a_kill_goes_on_with_it(state, monkeypatch, capsys):
    rmtree = shutil.rmtree

    def delete(folder: Path, **_: bool) -> None:
        if folder == state.cache:
            raise KeyboardInterrupt
        rmtree(folder)

    with monkeypatch.context() as patch:
        patch.setattr(leaving.shutil, "rmtree", delete)
        with pytest.raises(KeyboardInterrupt):
            forget_owners(state)
    assert list_files(state) == ["adapter", "leaving", "node.json", "rows"]
    remove_leftovers(state)
    assert list_files(state) == ["node.json"]
    assert "are deleted" in capsys.readouterr().out


def test_a_start_keeps_what_jobs_may_come_back_to_and_nothing_of_checks(state, capsys):
    old = state.work / "job-b"
    for folder in (state.work / "job-a", old):
        folder.mkdir(exist_ok=True)
        (folder / BLOBS).write_text("[]")
    (state.work / "check-1").mkdir()
    (state.work / "check-1" / "step-1").write_text("of an owner")
    os.utime(old, (1000, 1000))
    remove_leftovers(state)
    assert [path.name for path in state.work.iterdir()] == ["job-a"]
    assert sorted(path.name for path in (state.work / "job-a").iterdir()) == [BLOBS, "step-1"]
    assert capsys.readouterr().out == ""


def test_what_cannot_be_deleted_is_named_and_tried_again(state, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(leaving.shutil, "rmtree", lambda folder, **_: None)
        forget_owners(state)
    assert f"Delete {state.work} and {state.cache}" in capsys.readouterr().out
    remove_leftovers(state)
    assert list_files(state) == ["node.json"]


@pytest.mark.parametrize(
    ("act", "leaves"),
    [
        (lambda node: node.heard(HeartbeatReply(drain=True)), True),
        (lambda node: node.refused("Not known."), True),
        (lambda node: node.refused("Another process.", for_good=False), False),
        (lambda node: node.drain(), False),
    ],
    ids=["asked to leave", "not known", "replaced", "stopped"],
)
def test_who_is_stopped_or_replaced_comes_back(world, act, leaves):
    act(world.node)
    assert world.node.finished.wait(30)
    assert world.node.leaves is leaves
