"""What every process of a node begins with: arguments, exit statuses and the lock of its state."""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workers.node.blob_cache import CACHE_DAYS
from workers.node.credentials import NodeSettingsError, StateDir, find_default_state_dir

EXIT_OK = 0
EXIT_SETTINGS = 2
#: The market does not know this node any more.
EXIT_SENT_AWAY = 3
#: A base model cannot be used here, or the device failed: what is wrong is in the log.
EXIT_UNUSABLE = 4
#: In the state directory: held by the process that runs the node, whose id is in it.
LOCK = "lock"


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state-dir",
        type=Path,
        default=find_default_state_dir(),
        help="where this node keeps its credentials and files (%(default)s)",
    )
    parser.add_argument(
        "--grace-s",
        type=float,
        default=30.0,
        help="seconds to hand over checkpoints when asked to stop (%(default)s)",
    )
    parser.add_argument(
        "--cache-days",
        type=float,
        default=CACHE_DAYS,
        help="days a file stays on disk that nothing asks for (%(default)s); those of a closed job "
        "go at once",
    )
    parser.add_argument(
        "--gang",
        default="",
        metavar="DEVICES",
        help="further devices that share the batches of soft prompts, such as cuda:1,cuda:2",
    )
    parser.add_argument("--log-level", default="INFO", help="DEBUG, INFO or WARNING")


def build_run_arguments(options: argparse.Namespace) -> list[str]:
    """What a process with another state directory is run with."""
    arguments = [
        *("--grace-s", str(options.grace_s), "--cache-days", str(options.cache_days)),
        *("--log-level", options.log_level),
    ]
    return [*arguments, *(["--gang", options.gang] if options.gang else [])]


def quiet_library_logs() -> None:
    """A line for each request and plan, and bars that redraw, would drown the node's own log."""
    for name in ("httpx", "celery.app.trace", "celery.worker.strategy"):
        logging.getLogger(name).setLevel(logging.WARNING)
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


@contextmanager
def lock_state_dir(state: StateDir) -> Iterator[None]:
    """Hold the state directory; two processes would train every job twice.

    Raises
    ------
    NodeSettingsError
        When another process holds it, or the process's id cannot be written there.
    """
    descriptor = os.open(state.path / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise NodeSettingsError(
                f"Another process runs this node already ({state.path}). "
                "Stop it first, or choose another --state-dir."
            ) from None
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, str(os.getpid()).encode())
        except OSError as error:
            raise NodeSettingsError(
                f"The state directory {state.path} cannot be written: {error.strerror}. "
                "Free space there."
            ) from None
        yield
    finally:
        os.close(descriptor)


def find_running(state: StateDir) -> int | None:
    """The process that holds the state directory; ``None`` where there is none."""
    try:
        descriptor = os.open(state.path / LOCK, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        text = os.pread(descriptor, 20, 0).decode()
        return int(text) if text.isdecimal() else None
    finally:
        os.close(descriptor)
    return None
