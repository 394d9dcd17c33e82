"""What a house looks at before it starts, and how long it waits."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from marketplace.embedded import house, stack
from marketplace.embedded.__main__ import ACCESS, access_file
from marketplace.embedded.servers import ServiceFailed

SEEDED = {"api_key": "ft_a", "neighbour_api_key": "ft_b", "zone": "z"}


def build_house(**parts: Any) -> house.House:
    return cast(house.House, SimpleNamespace(**parts))


def test_data_of_another_version_are_left_alone_with_a_sentence(tmp_path):
    house._check_tables(tmp_path)
    (tmp_path / "postgres").mkdir()
    house._check_tables(tmp_path)
    (tmp_path / house.TABLES).write_text("of another version")
    with pytest.raises(ServiceFailed, match=r"another version of Finetender.*rm -r"):
        house._check_tables(tmp_path)
    (tmp_path / house.TABLES).unlink()
    with pytest.raises(ServiceFailed, match="DATA_DIR=another-folder"):
        house._check_tables(tmp_path)


def test_a_house_that_was_stopped_before_its_database_was_made_starts_again(tmp_path):
    (tmp_path / house.TABLES).write_text("of a start that was interrupted")
    house._check_tables(tmp_path)
    (tmp_path / "postgres").mkdir()
    house._check_tables(tmp_path)


def test_keys_are_in_the_folder_while_they_open_something(tmp_path):
    running = build_house(data_dir=tmp_path, url="http://127.0.0.1:1")
    with access_file(running, SEEDED):
        assert json.loads((tmp_path / ACCESS).read_text())["api_key"] == "ft_a"
        assert (tmp_path / ACCESS).stat().st_mode & 0o077 == 0
    assert not (tmp_path / ACCESS).exists()
    with pytest.raises(KeyboardInterrupt), access_file(running, SEEDED):
        raise KeyboardInterrupt
    assert not (tmp_path / ACCESS).exists()


class Clock:
    """Each look at the clock is half a minute later."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        self.now_s += 30.0
        return self.now_s

    def sleep(self, _: float) -> None:
        pass


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(house, "time", made)
    monkeypatch.setattr(stack, "time", made)
    return made


def wait(monkeypatch, *, answers: list[int], used_s: list[float]) -> None:
    """Wait for a web server that answers so, having used so much processor time at each look."""

    def get(*_: object, **__: object) -> httpx.Response:
        status = answers.pop(0)
        if not status:
            raise httpx.ConnectError("not there yet")
        return httpx.Response(status)

    monkeypatch.setattr(house.httpx, "get", get)
    monkeypatch.setattr(stack, "_sum_processor_time", lambda _: used_s.pop(0))
    processes = SimpleNamespace(
        check=lambda: None, pid=lambda _: os.getpid(), failure=lambda name: f"{name} is stuck"
    )
    house.wait_for_web(build_house(stack=processes, url="http://127.0.0.1:1"))


def test_a_slow_web_server_is_waited_for_as_long_as_it_makes_progress(monkeypatch, clock):
    wait(monkeypatch, answers=[0] * 20 + [200], used_s=[float(n) for n in range(21)])
    assert clock.now_s > 10 * stack.STUCK_S


def test_a_web_server_that_does_nothing_is_given_up(monkeypatch, clock):
    with pytest.raises(ServiceFailed, match="web is stuck"):
        wait(monkeypatch, answers=[0] * 20, used_s=[1.0] * 20)
    assert clock.now_s < 4 * stack.STUCK_S


@pytest.mark.parametrize("gets_on", [True, False])
def test_a_supervisor_that_is_slow_to_answer_is_waited_for_while_it_gets_on(
    monkeypatch, clock, tmp_path, gets_on
):
    looks = iter(range(100))
    monkeypatch.setattr(stack, "_sum_processor_time", lambda _: next(looks) if gets_on else 1.0)
    answers = [OSError("not there yet")] * 20

    def answer(*_: object) -> None:
        if answers:
            raise answers.pop()

    made = stack.Stack(data_dir=tmp_path, programs=[])
    made._process = SimpleNamespace(pid=os.getpid(), poll=lambda: None)
    monkeypatch.setattr(made, "_call", answer)
    if gets_on:
        made._control_wait()
        assert clock.now_s > 10 * stack.STUCK_S
    else:
        with pytest.raises(ServiceFailed, match="The supervisor did not start"):
            made._control_wait()
        assert clock.now_s < 4 * stack.STUCK_S
