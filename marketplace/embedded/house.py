"""The processes of one whole house on one machine, and the order they start in."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from marketplace.embedded.command_shell import ROOT, CommandShell
from marketplace.embedded.servers import (
    Postgres,
    Program,
    Redis,
    ServiceFailed,
    find_free_port,
    is_port_free,
    prepare_postgres,
    prepare_redis,
    wait_for_postgres,
    wait_for_redis,
    write_private,
)
from marketplace.embedded.stack import Progress, Stack, hold_directory

CELERY = ("-m", "celery", "--app", "marketplace.config.celery")
#: Everything that runs beside the servers, in the order of starting.
MARKET_PROGRAMS = ("lane", "worker", "beat", "web")
#: In the data folder: which tables its database was made with.
TABLES = "tables"
#: What the processes of this directory run with, for commands from outside.
ENVIRONMENT = "environment.json"
#: Address and keys for programs; there while they open something.
ACCESS = "access.json"


@dataclass(frozen=True, slots=True)
class House:
    """A running house: where it is and how to act on its processes."""

    stack: Stack
    commands: CommandShell
    url: str
    data_dir: Path
    environment: dict[str, str] = field(repr=False)

    def manage(self, *arguments: str) -> str:
        """Run a management command and return what it printed.

        Raises
        ------
        ServiceFailed
            With the command's own words when it fails.
        """
        return self.commands.manage(*arguments)

    def run(self, *command: str) -> str:
        """Run a command in the market's environment."""
        return _run(command, self.environment)


@contextmanager
def house(
    *,
    data_dir: Path,
    port: int | None = None,
    settings: str = "marketplace.config.settings.dev",
    durable: bool = True,
    own_servers: bool = False,
    node_names: Sequence[str] = ("node",),
    extra_environment: dict[str, str] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[House]:
    """Start servers and market; migrate; stop all at the end.

    Parameters
    ----------
    data_dir
        Database, files, logs and secrets of this house.
    port
        Port of the web server; a free one when it is ``None`` or taken.
    durable
        ``False`` trades crash safety of PostgreSQL for speed, for tests.
    own_servers
        Start PostgreSQL and Redis even where ``DATABASE_URL`` and ``REDIS_URL`` name some.
    node_names
        Nodes that may be started on this machine, by the folders of their credentials.
    say
        Called with a sentence on what happens next.
    """
    with hold_directory(data_dir):
        # A house that was killed could not remove it.
        (data_dir / ACCESS).unlink(missing_ok=True)
        _check_tables(data_dir)
        _close_to_others(data_dir)
        port = port if port is not None and is_port_free(port) else find_free_port()
        postgres, redis = _prepare_servers(data_dir, durable=durable, own=own_servers)
        url = f"http://127.0.0.1:{port}"
        environment = _build_environment(
            data_dir=data_dir, url=url, settings=settings, postgres=postgres, redis=redis
        ) | (extra_environment or {})
        servers = [server.program for server in (postgres, redis) if server is not None]
        nodes = [build_node_program(data_dir, name) for name in node_names]
        gateway = _prepare_gateway(data_dir, environment, url=url)
        # Only commands act as the owner of the tables; the market's processes do not know how.
        for_owner = {} if postgres is None else {"DATABASE_OWNER_URL": postgres.owner_url}
        write_private(data_dir / ENVIRONMENT, json.dumps(environment | for_owner))
        programs = [*servers, *gateway, *build_market_programs(port), *nodes]
        with Stack(data_dir=data_dir, programs=programs, environment=environment) as stack:
            start_servers(stack, postgres, redis, say=say)
            _prepare_market(environment | for_owner, say=say)
            log = stack.log_dir / "commands.log"
            with CommandShell(environment=environment, log=log) as commands:
                running = House(stack, commands, url, data_dir, environment)
                say("Starting the market: auction lane, workers, beat, web")
                stack.start(*(program.name for program in gateway), *MARKET_PROGRAMS)
                wait_for_web(running)
                yield running


def note_tables(data_dir: Path) -> None:
    """Note in a data folder that its database is made by this version."""
    (data_dir / TABLES).write_text(_compute_tables_digest())


def _compute_tables_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(ROOT.glob("marketplace/*/migrations/*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _check_tables(data_dir: Path) -> None:
    """Refuse a folder whose database another version of Finetender made.

    Before the first release there is one migration an app, which changes with the models: no
    earlier database can be brought up to date.

    Raises
    ------
    ServiceFailed
    """
    noted = data_dir / TABLES
    if not (data_dir / "postgres").exists():
        note_tables(data_dir)
    elif not noted.exists() or noted.read_text() != _compute_tables_digest():
        raise ServiceFailed(
            f"The data in {data_dir} are of another version of Finetender, which this one cannot "
            f"read. Remove them (rm -r {data_dir}), or start beside them (DATA_DIR=another-folder)."
        )


#: Customers' files, logs and messages; PostgreSQL and nodes close their own folders.
_PRIVATE_FOLDERS = ("media", "logs", "redis", "adapters", "machines")


def _close_to_others(data_dir: Path) -> None:
    """Let no other account of this machine read what customers uploaded."""
    for name in _PRIVATE_FOLDERS:
        path = data_dir / name
        path.mkdir(exist_ok=True)
        path.chmod(0o700)


def start_servers(
    stack: Stack,
    postgres: Postgres | None,
    redis: Redis | None,
    *,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Start the servers that are ours and wait until they answer."""
    servers = [server.program for server in (postgres, redis) if server is not None]
    if servers:
        say("Starting " + " and ".join(_proper(server.name) for server in servers))
        stack.start(*(server.name for server in servers))
    if postgres is not None:
        wait_for_postgres(postgres)
    if redis is not None:
        wait_for_redis(redis)


def _prepare_market(environment: dict[str, str], *, say: Callable[[str], None]) -> None:
    """Migrate, and compile what is not compiled yet."""
    say("Bringing the database up to date; compiling the auction where that is still to do")
    # It checks the project, which the processes that follow do no more.
    quiet = ("--no-input", "-v", "0")
    migrate = ("-W", "ignore", str(ROOT / "manage.py"), "migrate", *quiet)
    with ThreadPoolExecutor() as together:
        compiling = together.submit(
            _run, (sys.executable, "-m", "marketplace.config.warm"), environment
        )
        _run((sys.executable, *migrate), environment)
        compiling.result()


def _run(command: Sequence[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        words = " ".join(Path(part).name for part in command if part not in {"-W", "ignore"})
        raise ServiceFailed(f"This failed: {words}\n{done.stdout}{done.stderr}")
    return done.stdout


def wait_for_web(running: House) -> None:
    """Wait until the web server answers that it is healthy."""
    progress = Progress()
    while True:
        running.stack.check()
        try:
            answer = httpx.get(f"{running.url}/healthz", timeout=5)
        except httpx.TransportError:
            answer = None
        if answer is not None and answer.status_code == 200:
            return
        if progress.is_stuck(running.stack.pid("web")):
            raise ServiceFailed(running.stack.failure("web"))
        time.sleep(0.1)


def build_node_program(data_dir: Path, name: str = "node") -> Program:
    """The GPU node whose credentials lie in ``data_dir/<name>``."""
    # A node of a provider has none of the market's settings, so this one has none either.
    hidden = ("DATABASE_URL", "DATABASE_OWNER_URL", "REDIS_URL", "SECRET_KEY", "DATA_DIR")
    hidden += ("DJANGO_SETTINGS_MODULE", "METRICS_TOKEN", "STRIPE_SECRET_KEY", "STRIPE_API_URL")
    hidden += ("STRIPE_WEBHOOK_SECRET", "STRIPE_ACCOUNTS_WEBHOOK_SECRET")
    without = tuple(part for variable in hidden for part in ("-u", variable))
    return Program(
        name=name,
        command=("env", *without)
        + (sys.executable, "-m", "workers", "run", "--state-dir", str(data_dir / name)),
        priority=900,
        # Time to write checkpoints and hand them in.
        stop_within_s=30,
    )


def _prepare_servers(
    data_dir: Path, *, durable: bool, own: bool
) -> tuple[Postgres | None, Redis | None]:
    """Own servers for what the environment does not name."""
    own_postgres = own or not os.environ.get("DATABASE_URL")
    own_redis = own or not os.environ.get("REDIS_URL")
    return (
        prepare_postgres(data_dir=data_dir, durable=durable) if own_postgres else None,
        prepare_redis(data_dir=data_dir) if own_redis else None,
    )


def _build_environment(
    *, data_dir: Path, url: str, settings: str, postgres: Postgres | None, redis: Redis | None
) -> dict[str, str]:
    environment = {
        "DJANGO_SETTINGS_MODULE": settings,
        "DATA_DIR": str(data_dir.resolve()),
        "PUBLIC_URL": url,
        "SECRET_KEY": _ensure_secret(data_dir / "secret_key"),
        "METRICS_TOKEN": os.environ.get("METRICS_TOKEN")
        or _ensure_secret(data_dir / "metrics_token"),
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": str(ROOT),
    }
    if postgres is not None:
        environment["DATABASE_URL"] = postgres.url
    if redis is not None:
        environment["REDIS_URL"] = redis.url
    return environment


def _prepare_gateway(data_dir: Path, environment: dict[str, str], *, url: str) -> list[Program]:
    """The stand-in for the payment gateway, and where the market finds it.

    There is none where the gateway's own keys are given.
    """
    if (os.environ | environment).get("STRIPE_SECRET_KEY"):
        return []
    secret = _ensure_secret(data_dir / "gateway_key")
    port = find_free_port()
    environment |= {
        "STRIPE_SECRET_KEY": f"sk_test_{secret}",
        "STRIPE_PUBLISHABLE_KEY": f"pk_test_{port}",
        "STRIPE_WEBHOOK_SECRET": f"whsec_{secret}",
        "STRIPE_ACCOUNTS_WEBHOOK_SECRET": f"whsec_accounts_{secret}",
        "STRIPE_API_URL": f"http://127.0.0.1:{port}",
    }
    command = (sys.executable, "-m", "marketplace.embedded.stripe_stand_in")
    asked = ("--port", str(port), "--state", str(data_dir / "gateway.json"))
    to = ("--webhook-url", f"{url}/webhooks/stripe")
    return [Program(name="gateway", command=(*command, *asked, *to), priority=90)]


def _ensure_secret(path: Path) -> str:
    if not path.exists():
        write_private(path, secrets.token_urlsafe(48))
    return path.read_text()


#: What comes by the clock gives way to bids, pages and the lane, whose answers people wait for.
_NICE = ("nice", "-n", "5") if shutil.which("nice") else ()
#: Workers tell each other nothing: nobody listens.
_QUIET = ("--without-gossip", "--without-heartbeat")


def build_market_programs(port: int) -> list[Program]:
    """What runs beside the servers, with the web server on a port."""
    python = sys.executable
    worker = (python, *CELERY, "worker", "--loglevel", "INFO", *_QUIET)
    return [
        Program(
            name="lane",
            command=(*worker, "--queues", "lane", "--pool", "solo", "--hostname", "lane@%h"),
            priority=100,
        ),
        Program(
            name="worker",
            command=(*_NICE, *worker, "--queues", "default,preparation", "--pool", "threads")
            + ("--concurrency", "4", "--hostname", "worker@%h"),
            priority=200,
        ),
        Program(
            name="beat",
            command=(*_NICE, python, *CELERY, "beat", "--loglevel", "INFO"),
            priority=300,
        ),
        Program(
            name="web",
            command=(python, "-m", "marketplace.config.web_server", "--port", str(port)),
            priority=400,
        ),
    ]


def _proper(name: str) -> str:
    return {"postgres": "PostgreSQL", "redis": "Redis"}[name]
