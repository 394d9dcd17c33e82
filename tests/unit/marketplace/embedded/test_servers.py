"""The embedded servers start, survive what a crash leaves, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import psycopg
import pytest
import redis

from marketplace.embedded import servers
from marketplace.embedded.house import house
from marketplace.embedded.servers import (
    Program,
    ServiceFailed,
    prepare_postgres,
    prepare_redis,
    wait_for_postgres,
    wait_for_redis,
)
from marketplace.embedded.stack import Stack, StackInUse, hold_directory
from tests.waiting import until

ROOT = Path(__file__).parents[4]


def test_data_written_before_a_stop_are_there_after_the_next_start(tmp_path: Path) -> None:
    for expected in ([], [("kept",)]):
        postgres, server = (
            prepare_postgres(data_dir=tmp_path, durable=True),
            prepare_redis(data_dir=tmp_path),
        )
        with Stack(data_dir=tmp_path, programs=[postgres.program, server.program]) as stack:
            stack.start("postgres", "redis")
            wait_for_postgres(postgres)
            wait_for_redis(server)
            with (
                psycopg.connect(postgres.owner_url) as connection,
                redis.Redis.from_url(server.url, decode_responses=True) as client,
            ):
                connection.execute("CREATE TABLE IF NOT EXISTS memory (word text)")
                rows = connection.execute("SELECT word FROM memory").fetchall()
                assert rows == expected
                assert client.get("word") == (expected[0][0] if expected else None)
                connection.execute("INSERT INTO memory VALUES ('kept')")
                client.set("word", "kept")


def test_a_wrong_password_is_refused_by_redis(tmp_path: Path) -> None:
    server = prepare_redis(data_dir=tmp_path)
    with Stack(data_dir=tmp_path, programs=[server.program]) as stack:
        stack.start("redis")
        wait_for_redis(server)
        with (
            redis.Redis(port=server.port, password="guess") as client,
            pytest.raises(redis.AuthenticationError),
        ):
            client.ping()


def test_a_second_house_on_the_same_directory_is_refused_and_the_firsts_servers_run_on(
    tmp_path: Path,
) -> None:
    with hold_directory(tmp_path):
        postgres = prepare_postgres(data_dir=tmp_path, durable=False)
        first = Stack(data_dir=tmp_path, programs=[postgres.program])
    with hold_directory(tmp_path), first:
        first.start("postgres")
        wait_for_postgres(postgres)
        pid = first.pid("postgres")
        with pytest.raises(StackInUse, match="in use"), house(data_dir=tmp_path, own_servers=True):
            pass
        assert first.pid("postgres") == pid
        with psycopg.connect(postgres.owner_url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_dead_process_is_started_again(tmp_path: Path) -> None:
    sleeper = Program(name="sleeper", command=("sleep", "600"))
    with Stack(data_dir=tmp_path, programs=[sleeper]) as stack:
        stack.start("sleeper")
        before = stack.pid("sleeper")
        os.kill(before, signal.SIGKILL)
        until(lambda: stack.pid("sleeper") not in {0, before}, what="it runs again")


def test_a_program_that_keeps_failing_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    # It ends at once on a busy machine too: one that ran for a second would count as up.
    broken = Program(name="broken", command=("/bin/sh", "-c", "echo no such thing; exit 1"))
    with (
        Stack(data_dir=tmp_path, programs=[broken]) as stack,
        pytest.raises(ServiceFailed, match=r"(?s)broken does not stay up.*no such thing"),
    ):
        stack.start("broken")


# SIGINT and SIGTERM are taken by one handler.
@pytest.mark.parametrize(
    "ending",
    [signal.SIGKILL, signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)],
)
def test_no_process_outlives_its_starter_however_that_one_ends(
    tmp_path: Path, ending: signal.Signals
) -> None:
    script = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        from marketplace.embedded.servers import *
        from marketplace.embedded.stack import Stack, exit_on_signals
        exit_on_signals()
        directory = Path(sys.argv[1])
        postgres = prepare_postgres(data_dir=directory, durable=False)
        server = prepare_redis(data_dir=directory)
        with Stack(data_dir=directory, programs=[postgres.program, server.program]) as stack:
            stack.start("postgres", "redis")
            print(stack.pid("postgres"), stack.pid("redis"), flush=True)
            time.sleep(600)
        """
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert starter.stdout is not None
    pids = [int(word) for word in starter.stdout.readline().split()]
    assert len(pids) == 2
    children = [child for pid in pids for child in psutil.Process(pid).children()]
    starter.send_signal(ending)
    starter.wait(60)
    starter.stdout.close()
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids), what="the servers end")
    until(lambda: not any(child.is_running() for child in children), what="their children end")


def test_a_port_is_none_that_an_outgoing_connection_may_take(monkeypatch, tmp_path) -> None:
    given = tmp_path / "ip_local_port_range"
    given.write_text("20003\t60999\n")
    monkeypatch.setattr(servers, "GIVEN", given)
    monkeypatch.setattr(servers, "is_port_free", lambda port: port != 20001)
    assert {servers.find_free_port() for _ in range(100)} == {20000, 20002}
    given.write_text("1024 60999")
    assert all(20_000 <= servers.find_free_port() < 32_768 for _ in range(100))


def test_a_port_that_another_has_is_not_free() -> None:
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0")):
        with socket.socket(family) as server:
            server.bind((address, 0))
            server.listen()
            assert not servers.is_port_free(server.getsockname()[1])


def test_no_free_port_is_said(monkeypatch) -> None:
    monkeypatch.setattr(servers, "is_port_free", lambda port: False)
    with pytest.raises(ServiceFailed, match="No port from 20000 to"):
        servers.find_free_port()
