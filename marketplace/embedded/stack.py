"""A set of processes under one supervisord, as a context manager.

``with Stack(data_dir, programs) as stack`` starts nothing by itself;
``stack.start("redis")`` does. Leaving the block stops everything, and when this
process dies without leaving it, the kernel stops supervisord, which stops the
rest (``marketplace/config/bound_process.py``).
"""

from __future__ import annotations

import fcntl
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import xmlrpc.client
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from marketplace.embedded.servers import Program, ServiceFailed, prepare_runtime_dir, write_private

BOUND = Path(__file__).parents[1] / "config" / "bound_process.py"
#: Lines of a dead process's log that are shown with the error.
LOG_LINES = 25
#: Seconds without any progress after which a process is given up that does not answer yet. It makes
#: progress while it uses processor time: a busy machine takes its time.
STUCK_S = 60.0
STOP_WITHIN_S = 60.0


class StackInUse(ServiceFailed):
    """Another running stack holds the data directory."""


class Progress:
    """Whether a process that does not answer yet gets on, by the processor time that it uses."""

    def __init__(self) -> None:
        self._used_s, self._moved_at = 0.0, time.monotonic()

    def is_stuck(self, pid: int) -> bool:
        """Look again; true once a process and those it started used none for ``STUCK_S``."""
        used_s = _sum_processor_time(pid)
        if used_s != self._used_s:
            self._used_s, self._moved_at = used_s, time.monotonic()
        return time.monotonic() > self._moved_at + STUCK_S


def _sum_processor_time(pid: int) -> float:
    """Seconds of processor time of a process and those it started; 0 for one that has ended."""
    try:
        process = psutil.Process(pid)
        everyone = [process, *process.children(recursive=True)]
        return sum(sum(each.cpu_times()[:2]) for each in everyone)
    except psutil.Error:
        return 0.0


class Stack:
    """Processes that live and die together.

    Parameters
    ----------
    data_dir
        Logs, sockets and the configuration go here; call while holding it (``hold_directory``).
    programs
        What may run. All are registered, none is started.
    environment
        Environment of every program, on top of this process's own.
    """

    def __init__(
        self,
        *,
        data_dir: Path,
        programs: Iterable[Program],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.data_dir = data_dir.resolve()
        self.programs = {program.name: program for program in programs}
        self.environment = dict(environment or {})
        self.log_dir = self.data_dir / "logs"
        self._process: subprocess.Popen[bytes] | None = None
        self._control = build_socket_path(self.data_dir)

    def __enter__(self) -> Self:
        self.log_dir.mkdir(parents=True, exist_ok=True)
        self._control.unlink(missing_ok=True)
        configuration = self.data_dir / "supervisord.conf"
        write_private(configuration, self._configuration())
        self._process = subprocess.Popen(
            [sys.executable, str(BOUND), "--"]
            + [sys.executable, "-W", "ignore", "-m", "supervisor.supervisord"]
            + ["-n", "-c", str(configuration)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | self.environment,
            # Ctrl-C belongs to the person at the terminal; we pass it on in order.
            start_new_session=True,
        )
        try:
            self._control_wait()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop every process, in reverse order of priority. Safe to call twice."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            shutil.rmtree(self._control.parent, ignore_errors=True)

    def start(self, *names: str) -> None:
        """Start programs together; returns when each has been up for a second.

        Raises
        ------
        ServiceFailed
            With the end of the log of the program that did not stay up.
        """
        for name in names:
            try:
                self._call("startProcess", name, False)
            except xmlrpc.client.Fault as fault:
                if "ALREADY_STARTED" not in fault.faultString:
                    raise ServiceFailed(self.failure(name)) from None
        while any(self._info(name)["statename"] != "RUNNING" for name in names):
            self.check()
            time.sleep(0.05)

    def stop(self, *names: str) -> None:
        """Stop programs that run; the others are left as they are."""
        for name in names:
            try:
                self._call("stopProcess", name)
            except xmlrpc.client.Fault as fault:
                if "NOT_RUNNING" not in fault.faultString:
                    raise

    def restart(self, name: str) -> None:
        self.stop(name)
        self.start(name)

    def pid(self, name: str) -> int:
        """Process id; 0 when it is not running."""
        return int(self._info(name)["pid"])

    def states(self) -> dict[str, str]:
        """supervisord's state of every program, by name."""
        return {row["name"]: row["statename"] for row in self._call("getAllProcessInfo")}

    def check(self) -> None:
        """Raise ``ServiceFailed`` when supervisord has given a program up."""
        if self._process is None or self._process.poll() is not None:
            raise ServiceFailed(f"The supervisor stopped. Its log: {self.log_dir}/supervisord.log")
        for name, state in self.states().items():
            if state == "FATAL":
                raise ServiceFailed(self.failure(name))

    def failure(self, name: str) -> str:
        """What to show a person about a program that does not stay up."""
        path = self.log_dir / f"{name}.log"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        tail = "\n".join(f"  {name} | {line}" for line in lines[-LOG_LINES:])
        return f"{name} does not stay up. The end of {path}:\n{tail}"

    def _info(self, name: str) -> dict[str, Any]:
        return dict(self._call("getProcessInfo", name))

    def _call(self, method: str, *arguments: object) -> Any:
        transport = _UnixTransport(str(self._control))
        with xmlrpc.client.ServerProxy("http://localhost", transport=transport) as server:
            return getattr(server.supervisor, method)(*arguments)

    def _control_wait(self) -> None:
        assert self._process is not None
        progress = Progress()
        while True:
            try:
                self._call("getState")
            except OSError:
                if self._process.poll() is not None or progress.is_stuck(self._process.pid):
                    log = self.log_dir / "supervisord.log"
                    tail = log.read_text()[-2000:] if log.exists() else ""
                    raise ServiceFailed(f"The supervisor did not start. {log}:\n{tail}") from None
                time.sleep(0.02)
            else:
                return

    def _configuration(self) -> str:
        sections = [
            "[supervisord]\n"
            f"logfile={self.log_dir}/supervisord.log\n"
            "logfile_maxbytes=5MB\nlogfile_backups=1\n"
            f"pidfile={self.data_dir}/supervisord.pid\n"
            f"childlogdir={self.log_dir}\nnodaemon=true\nsilent=true\n",
            f"[unix_http_server]\nfile={self._control}\nchmod=0700\n",
            "[rpcinterface:supervisor]\nsupervisor.rpcinterface_factory = "
            "supervisor.rpcinterface:make_main_rpcinterface\n",
        ]
        sections += [self._section(program) for program in self.programs.values()]
        return "\n".join(sections)

    def _section(self, program: Program) -> str:
        user = ("--user", program.user) if program.user else ()
        ending = ("--signal", program.stop_signal)
        command = (sys.executable, str(BOUND), *user, *ending, "--", *program.command)
        environment = ",".join(f'{key}="{_escape(value)}"' for key, value in program.environment)
        return (
            f"[program:{program.name}]\n"
            f"command={' '.join(_quote(part) for part in command)}\n"
            f"priority={program.priority}\nautostart=false\nautorestart=true\n"
            "startsecs=1\nstartretries=3\n"
            f"stopsignal={program.stop_signal}\nstopwaitsecs={program.stop_within_s}\n"
            "killasgroup=true\nredirect_stderr=true\n"
            f"stdout_logfile={self.log_dir}/{program.name}.log\n"
            "stdout_logfile_maxbytes=20MB\nstdout_logfile_backups=1\n"
            + (f"environment={environment}\n" if environment else "")
        )


def build_socket_path(data_dir: Path) -> Path:
    """Control socket of the stack in ``data_dir``, short enough for the kernel."""
    return prepare_runtime_dir(data_dir) / "supervisor.sock"


@contextmanager
def hold_directory(data_dir: Path) -> Iterator[None]:
    """Hold ``data_dir`` for this process, before anything in it is looked at or changed.

    Raises
    ------
    StackInUse
        Another process holds it.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    with (data_dir / "stack.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StackInUse(
                f"{data_dir} is in use by a running Finetender. Stop that one first, "
                "or set DATA_DIR to another directory."
            ) from None
        yield


def _quote(part: str) -> str:
    escaped = _escape(part).replace('"', '\\"')
    return f'"{escaped}"'


def _escape(value: str) -> str:
    """supervisord expands ``%`` in its configuration."""
    return value.replace("%", "%%")


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=STOP_WITHIN_S)
        self._path = path

    def connect(self) -> None:
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connecting.settimeout(self.timeout)
            connecting.connect(self._path)
        except OSError:
            connecting.close()
            raise
        self.sock = connecting


class _UnixTransport(xmlrpc.client.Transport):
    """XML-RPC over supervisord's Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def make_connection(self, host: Any) -> http.client.HTTPConnection:
        # Kept where the base class looks for what it should close.
        connection = _UnixConnection(self._path)
        self._connection = host, connection
        return connection

    def request(self, *arguments: Any, **named: Any) -> Any:
        # Each call is a proxy of its own, so no other code would close its connection.
        try:
            return super().request(*arguments, **named)
        finally:
            self.close()


def exit_on_signals() -> None:
    """Make SIGTERM and SIGHUP leave ``with`` blocks as Ctrl-C does."""

    def leave(number: int, _frame: object) -> None:
        # One is enough: a second must not interrupt the clean-up.
        for name in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(name, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for name in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(name, leave)
