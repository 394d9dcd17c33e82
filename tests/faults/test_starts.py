"""``make demo`` starts, is stopped in every way there is, and starts again on the same folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from marketplace.embedded.house import ROOT
from marketplace.embedded.servers import find_free_port
from tests.servers_plugin import RUNS_DIR

#: The tests are one story in the order of this file: each finds the folder as the last left it.
pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

#: Of the tests' own servers: a house that finds them starts none.
SERVERS = ("DATABASE_URL", "DATABASE_OWNER_URL", "REDIS_URL")
#: Nothing but this machine answers: what was installed once needs no network.
OFFLINE = {
    **{f"{kind}_proxy": "http://127.0.0.1:9" for kind in ("http", "https", "all")},
    "no_proxy": "127.0.0.1,localhost",
}
WITHIN_S = 900.0


class Demo:
    """One ``make demo``, after the installation."""

    def __init__(self, folder: Path, *options: str, port: int) -> None:
        self.folder = folder
        self.started = time.monotonic()
        folder.parent.mkdir(parents=True, exist_ok=True)
        self._log = folder.parent / f"{folder.name}-{time.monotonic_ns()}.log"
        command = [sys.executable, "-m", "marketplace.embedded", "demo", *options]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--data-dir", str(folder), "--port", str(port)],
                cwd=ROOT,
                env={k: v for k, v in os.environ.items() if k not in SERVERS} | OFFLINE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self._log.read_text()

    def wait_until_said(self, words: str) -> None:
        while words not in self.said:
            assert self.process.poll() is None, self.said
            assert time.monotonic() < self.started + WITHIN_S, self.said
            time.sleep(0.1)
        self._note(words)

    def _note(self, event: str) -> None:
        """Say when it was, for a table of starts (``pytest -rP``)."""
        print(f"{self.folder.name}: {time.monotonic() - self.started:.1f} s: {event}")

    def wait_for_access(self) -> dict[str, Any]:
        """What examples read; it is there while its keys open something."""
        # By then what a house left that was killed is gone.
        self.wait_until_said("Starting PostgreSQL")
        while not (self.folder / "access.json").exists():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < self.started + WITHIN_S, self.said
            time.sleep(0.05)
        access = json.loads((self.folder / "access.json").read_text())
        keys = {"Authorization": f"Bearer {access['api_key']}"}
        answer = httpx.get(f"{access['url']}/api/wallet", headers=keys, timeout=30)
        assert answer.status_code == 200, answer.text
        self._note("the site answers, access.json is there")
        return access

    def interrupt(self) -> None:
        """Press Ctrl-C, which ends it in order."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=120)
        assert not (self.folder / "access.json").exists()
        self._note("ended by Ctrl-C")

    def kill_everything(self) -> None:
        """Do what a power cut does to every process of the house."""
        top = psutil.Process(self.process.pid)
        everyone = [top, *top.children(recursive=True)]
        for each in everyone:
            each.kill()
        psutil.wait_procs(everyone, timeout=30)
        self.process.wait(timeout=30)
        self._note("all processes killed")


@contextmanager
def demo(folder: Path, *options: str, port: int) -> Iterator[Demo]:
    running = Demo(folder, *options, port=port)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.interrupt()


@pytest.fixture(scope="module")
def folder(load: int) -> Iterator[Path]:
    """Where PostgreSQL may go that root starts: not among pytest's own folders."""
    of_run = RUNS_DIR / f"starts-{load}-{os.getpid()}"
    try:
        yield of_run / "demo"
    finally:
        shutil.rmtree(of_run, ignore_errors=True)


@pytest.fixture(scope="module")
def port() -> int:
    return find_free_port()


def run_example(folder: Path, where: Path) -> subprocess.Popen[str]:
    """Begin to train with OpenAI's client on the house in ``folder``."""
    return subprocess.Popen(
        [sys.executable, "-u", str(ROOT / "examples" / "openai_client.py")],
        cwd=where,
        env=os.environ | {"ACCESS": str(folder / "access.json")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_the_example_buys_from_the_first_moment_of_a_fresh_start(
    folder: Path, port: int, tmp_path: Path
) -> None:
    with demo(folder, port=port) as first:
        access = first.wait_for_access()
        assert access["url"].endswith(f":{port}")
        with run_example(folder, tmp_path) as example:
            assert example.stdout is not None
            said = "Nothing"
            while said and "was bought for $" not in said:
                said = example.stdout.readline()
            assert said, first.said
            # In the middle of its job.
            first.interrupt()
            example.kill()


def test_it_starts_again_where_it_was_ended_in_the_middle_of_a_job(folder: Path, port: int) -> None:
    with demo(folder, port=port) as second:
        second.wait_until_said("jobs of an earlier run go on")
        second.kill_everything()


@pytest.mark.nightly
def test_it_starts_again_after_all_its_processes_were_killed_beside_a_second_clone(
    folder: Path, port: int
) -> None:
    with demo(folder, port=port) as again:
        again.wait_for_access()
        with demo(folder.parent / "clone", port=port) as clone:
            # The port is the other's: it takes one that is free and says where it is.
            access = clone.wait_for_access()
            assert not access["url"].endswith(f":{port}")
            assert f"Finetender is open at {access['url']}" in clone.said
            again.wait_until_said("The first adapter is trained and on this disk")
            clone.wait_until_said("Admitted: pays $")


@pytest.mark.nightly
def test_it_sells_delivers_and_ends_where_once_was_asked(folder: Path, port: int) -> None:
    with demo(folder, "--once", port=port) as once:
        assert once.process.wait(timeout=WITHIN_S) == 0, once.said
    story = json.loads(once.said.splitlines()[-1])
    assert story["valid_loss_after"] < story["valid_loss_before"]
    assert (Path(story["adapter_path"]) / "adapter_model.safetensors").stat().st_size > 0
    assert not (folder / "access.json").exists()


@pytest.mark.nightly
def test_the_example_runs_to_its_end_beside_the_first_sale_of_a_fresh_start(
    folder: Path, port: int, tmp_path: Path
) -> None:
    fresh = folder.parent / "fresh"
    with demo(fresh, port=port) as first:
        first.wait_for_access()
        with run_example(fresh, tmp_path) as example:
            said, _ = example.communicate(timeout=WITHIN_S)
        assert example.returncode == 0, said + first.said
        [adapter] = tmp_path.iterdir()
        assert "adapter_model.safetensors" in zipfile.ZipFile(adapter).namelist()
        assert first.process.poll() is None
