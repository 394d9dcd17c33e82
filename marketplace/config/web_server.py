"""``python -m marketplace.config.web_server``: the web server, with one process per core.

Four at most unless ``WEB_WORKERS`` says otherwise: each holds some 190 MB, and the bids of one
process share their work. All of them end with the one that started them, for any reason, so
that nothing holds the port when another is started in its place.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from django.conf import settings

from marketplace.config.bound_process import die_with_parent
from marketplace.config.garbage_collection import freeze_gc
from marketplace.config.leftovers import remove_leftovers
from marketplace.config.settings import environment

if TYPE_CHECKING:
    from channels.routing import ProtocolTypeRouter

WORKERS_MOST = 4
#: Where the processes keep what they count, so that any of them can tell of all.
METRICS_DIR = "PROMETHEUS_MULTIPROC_DIR"
_PARENT = "FINETENDER_WEB_PARENT"
#: Begins the name of the directory they count in; the parent's process id ends it.
_COUNTS = "finetender-metrics-"


def count_web_workers() -> int:
    """``WEB_WORKERS``, or the cores this process may use, at most ``WORKERS_MOST``."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return int(environment.number("WEB_WORKERS", min(cores or 1, WORKERS_MOST), at_least=1))


def application() -> ProtocolTypeRouter:
    """What each process serves."""
    parent = os.environ.get(_PARENT)
    if parent is not None and int(parent) != os.getpid():
        die_with_parent(signal.SIGKILL)
        if os.getppid() != int(parent):
            sys.exit("the web server that started this process is gone")
    from marketplace.config.asgi import application

    # Django loads the pages with the first request, which would hold the others up for a second.
    import_module(settings.ROOT_URLCONF)
    freeze_gc()
    return application


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m marketplace.config.web_server")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--log-level", default="info")
    options = parser.parse_args(arguments)
    os.environ[_PARENT] = str(os.getpid())
    remove_leftovers(Path(tempfile.gettempdir()), f"{_COUNTS}*")
    with tempfile.TemporaryDirectory(prefix=_COUNTS, suffix=f"-{os.getpid()}") as directory:
        workers = count_web_workers()
        if workers > 1:
            os.environ.setdefault(METRICS_DIR, directory)
        uvicorn.run(
            "marketplace.config.web_server:application",
            factory=True,
            host=options.host,
            port=options.port,
            workers=workers,
            access_log=False,
            log_level=options.log_level,
            http="marketplace.config.http_protocol:BoundedHttpProtocol",
            ws="websockets",
            # A process that a busy machine holds up for seconds must not be killed for it.
            timeout_worker_healthcheck=60,
            # One notion of where a request comes from: ``marketplace.common.client_address``.
            proxy_headers=False,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
