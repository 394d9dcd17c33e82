"""How many processes serve, and that none outlives the one that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile

import httpx
import psutil
import pytest

from marketplace.config import web_server
from marketplace.embedded.servers import find_free_port
from tests import lane_process
from tests.waiting import until


def test_as_many_processes_as_cores_and_four_at_most(monkeypatch):
    monkeypatch.delenv("WEB_WORKERS", raising=False)
    for cores, wanted in ((1, 1), (2, 2), (4, 4), (64, 4)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=cores: set(range(n)))
        assert web_server.count_web_workers() == wanted
    monkeypatch.setenv("WEB_WORKERS", "7")
    assert web_server.count_web_workers() == 7


def test_wrong_number_of_processes_is_named(monkeypatch):
    monkeypatch.setenv("WEB_WORKERS", "none")
    with pytest.raises(Exception, match="WEB_WORKERS is 'none'"):
        web_server.count_web_workers()


def test_what_a_killed_server_counted_is_removed_and_a_living_ones_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(web_server.uvicorn, "run", lambda *_, **__: None)
    # What the server tells its own processes must not reach those of later tests.
    monkeypatch.setattr(os, "environ", dict(os.environ))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = [f"finetender-metrics-a-{ended.pid}", f"finetender-metrics-b-{os.getpid()}", "other"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "counter.db").write_text("1")
    web_server.main([])
    assert sorted(path.name for path in tmp_path.iterdir()) == names[1:]


def test_pages_are_loaded_before_the_first_request():
    program = (
        "import sys; from marketplace.config.web_server import application; application();"
        "print('marketplace.config.urls' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=lane_process.ROOT,
        env=lane_process.environment(),
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stdout) == (0, "True\n"), ran.stderr


@pytest.mark.django_db(transaction=True)
def test_processes_end_with_their_parent_and_tell_of_all_they_counted(tmp_path):
    port = str(find_free_port())
    url = f"http://127.0.0.1:{port}"
    with (tmp_path / "web.log").open("w") as log:
        parent = subprocess.Popen(
            [sys.executable, "-m", "marketplace.config.web_server", "--port", port],
            cwd=lane_process.ROOT,
            env=lane_process.environment() | {"WEB_WORKERS": "2", "METRICS_TOKEN": "let me see"},
            stdout=log,
            stderr=log,
        )

    def answers() -> bool:
        assert parent.poll() is None, (tmp_path / "web.log").read_text()
        try:
            return httpx.get(f"{url}/api/zones", timeout=10).status_code == 200
        except httpx.TransportError:
            return False

    children: list[psutil.Process] = []
    try:
        until(answers, what="the server is up")
        children = psutil.Process(parent.pid).children(recursive=True)
        with httpx.Client(headers={"Connection": "close"}, timeout=10) as client:
            for _ in range(12):
                client.get(f"{url}/api/zones")
            counted = client.get(
                f"{url}/metrics", headers={"Authorization": "Bearer let me see"}
            ).text
        [total] = [
            float(line.rpartition(" ")[2])
            for line in counted.splitlines()
            if line.startswith("finetender_django_http_requests_before_middlewares_total ")
        ]
        # The one that was waited for, twelve, and the one that asked.
        assert total >= 14
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait(30)
    assert len(children) >= 2
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []
