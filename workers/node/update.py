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
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from workers.node.credentials import (
    Credentials,
    NodeSettingsError,
    StateDir,
    find_default_state_dir,
    load_credentials,
    save_credentials,
)
from workers.node.machine import load_machine
from workers.node.market_client import MarketClient, MarketError, Patience
from workers.node.process import EXIT_OK, EXIT_SETTINGS, build_run_arguments, find_running
from workers.node.release_check import ReleaseError, check_release
from workers.protocol.job_spec import BlobRef
from workers.protocol.joining import PATH_RELEASE, RELEASE
from workers.protocol.release_signing import NodeRelease

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
            install_release(find_joined(state))
            print("Nothing runs here; start it with: finetender-node run", flush=True)
            return EXIT_OK
        os.kill(running, signal.SIGHUP)
    except (NodeSettingsError, ProcessLookupError, PermissionError) as error:
        print(error, file=sys.stderr)
        return EXIT_SETTINGS
    print(f"Process {running} hands over its jobs and goes on as the market's release.", flush=True)
    return EXIT_OK


def find_joined(state: StateDir) -> StateDir:
    """Where the credentials of this node are, or of the machine's first one that joined."""
    machine = load_machine(state)
    folders = [""] if machine is None else [member.folder for member in machine.members]
    joined = [StateDir(state.path / folder) for folder in folders]
    there = [one for one in joined if one.credentials.exists()]
    return (there or joined)[0]


def install_release(joined: StateDir) -> bool:
    """Install the node's package that the market serves; whether another one is here now.

    Nothing is installed that the market's key, as the node knows it, did not sign, or signed before
    the last release that the node saw.

    Raises
    ------
    NodeSettingsError
        No node joined a market here.
    """
    credentials = load_credentials(joined)
    with tempfile.TemporaryDirectory() as folder:
        try:
            with MarketClient(credentials.market_url, patience=_PATIENCE) as client:
                release = client.post(PATH_RELEASE, {}, NodeRelease)
                _remember(release, joined=joined, credentials=credentials)
                if release.release == RELEASE:
                    log.info("release %s is here already", RELEASE)
                    return False
                files = {blob: Path(folder) / Path(blob.url).name for blob in _list_files(release)}
                for blob, path in files.items():
                    client.download(blob, path)
        except (MarketError, ReleaseError) as error:
            log.error("no release is installed: %s; going on as %s", error, RELEASE)
            return False
        return _install(release, wheel=files[release.wheel], constraints=files[release.constraints])


def _remember(release: NodeRelease, *, joined: StateDir, credentials: Credentials) -> None:
    """Keep the key and the serial of a release, which it must have.

    Raises
    ------
    ReleaseError
    """
    serial = credentials.release_serial
    key = check_release(release, key=credentials.market_key, serial=serial)
    newer = replace(credentials, market_key=key, release_serial=release.serial)
    if newer != credentials:
        save_credentials(joined, newer)


def _list_files(release: NodeRelease) -> tuple[BlobRef, BlobRef]:
    return release.wheel, release.constraints


def _install(release: NodeRelease, *, wheel: Path, constraints: Path) -> bool:
    command = [
        *(sys.executable, "-m", "pip", "install", "--progress-bar", "off"),
        *("--constraint", str(constraints), str(wheel)),
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
