"""``python -m workers update``: hand over, install the market's release, and go on as that.

The running process does it itself, so that a service manager sees one process throughout. If the
release cannot be installed, the one that is here goes on.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from workers.node.credentials import (
    NodeSettingsError,
    StateDir,
    find_default_state_dir,
    load_credentials,
)
from workers.node.machine import load_machine
from workers.node.market_client import MarketClient, MarketError, Patience
from workers.node.process import (
    EXIT_OK,
    EXIT_SETTINGS,
    build_run_arguments,
    find_running,
)
from workers.protocol.joining import PATH_RELEASE, RELEASE, NodeRelease

log = logging.getLogger(__name__)

_PATIENCE = Patience(total_s=30.0)
#: The installation of a release, with PyTorch where that is another one.
_INSTALL_LIMIT_S = 3600.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m workers update", description=__doc__)
    parser.add_argument(
        "--state-dir", type=Path, default=find_default_state_dir(), help="the node's (%(default)s)"
    )
    options = parser.parse_args(arguments)
    state = StateDir(options.state_dir)
    try:
        running = find_running(state)
        if running is None:
            install_release(find_market_url(state))
            print("Nothing runs here; start it with: finetender-node run", flush=True)
            return EXIT_OK
        os.kill(running, signal.SIGHUP)
    except (NodeSettingsError, ProcessLookupError, PermissionError) as error:
        print(error, file=sys.stderr)
        return EXIT_SETTINGS
    print(f"Process {running} hands over its jobs and goes on as the market's release.", flush=True)
    return EXIT_OK


def find_market_url(state: StateDir) -> str:
    """The market that this node, or the machine's first one, joined.

    Raises
    ------
    NodeSettingsError
        None did.
    """
    machine = load_machine(state)
    folders = [""] if machine is None else [member.folder for member in machine.members]
    joined = [StateDir(state.path / folder) for folder in folders]
    there = [one for one in joined if one.credentials.exists()]
    return load_credentials((there or joined)[0]).market_url


def install_release(market_url: str) -> bool:
    """Install the node's package that the market serves; whether another one is here now."""
    try:
        with MarketClient(market_url, patience=_PATIENCE) as client:
            release = client.post(PATH_RELEASE, {}, NodeRelease)
    except MarketError as error:
        log.error("the market does not say which release it is: %s", error)
        return False
    if release.release == RELEASE:
        log.info("release %s is here already", RELEASE)
        return False
    base = market_url.rstrip("/")
    command = [
        *(sys.executable, "-m", "pip", "install", "--progress-bar", "off"),
        *("--constraint", base + release.constraints, base + release.wheel),
    ]
    log.info("installing release %s", release.release)
    try:
        done = subprocess.run(command, check=False, timeout=_INSTALL_LIMIT_S)
    except subprocess.TimeoutExpired:
        log.error("release %s did not install in time; going on as %s", release.release, RELEASE)
        return False
    if done.returncode != 0:
        log.error("release %s cannot be installed; going on as %s", release.release, RELEASE)
    return done.returncode == 0


def start_again(options: argparse.Namespace) -> None:
    """Become ``workers run`` as it is installed now; does not return."""
    arguments = ["run", "--state-dir", str(options.state_dir), *build_run_arguments(options)]
    command = [sys.executable, "-m", "workers", *arguments]
    os.execv(sys.executable, command)  # noqa: S606 - our own interpreter


if __name__ == "__main__":
    sys.exit(main())
