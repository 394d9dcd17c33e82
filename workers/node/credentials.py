"""What a node knows: its state directory, and the credentials the market gave it.

Everything a node keeps lies in one directory that only its user may read::

    node.json        address of the market, node id, API token
    cache/           data sets by their hash
    work/            the runtime's files: checkpoints and adapters, a folder per job
    outbox/          files on their way to the market
    leaving          there until a node that left has deleted the three above
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from workers.protocol.job_spec import BaseModelRef
from workers.protocol.wire import ProtocolError, dumps, loads

#: Overrides the state directory when no ``--state-dir`` is given.
STATE_DIR_VARIABLE = "FINETENDER_STATE_DIR"
_CREDENTIALS = "node.json"


class NodeSettingsError(Exception):
    """The node cannot start like this; the text says what to do."""


#: Room for credentials and the lock, many times over.
_LEAST_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Credentials:
    """What joining the market gave this node."""

    market_url: str
    name: str
    node_id: str
    api_token: str
    heartbeat_every_s: float
    base_models: tuple[BaseModelRef, ...]
    #: ``cpu`` or ``cuda``.
    device: str = "cpu"
    #: What the node may use for training; ``None`` for all there is.
    memory_gb: float | None = None
    #: The key that signs the market's heads and the node's releases, in hex.
    market_key: str = ""
    #: Of the last release that this node saw; it installs none of a lower one.
    release_serial: int = 0

    def __repr__(self) -> str:
        return f"Credentials(node_id={self.node_id!r}, market_url={self.market_url!r})"


@dataclass(frozen=True, slots=True)
class StateDir:
    """The node's directory and the places in it."""

    path: Path

    @property
    def credentials(self) -> Path:
        return self.path / _CREDENTIALS

    @property
    def cache(self) -> Path:
        return self.path / "cache"

    @property
    def work(self) -> Path:
        return self.path / "work"

    @property
    def outbox(self) -> Path:
        return self.path / "outbox"

    @property
    def leaving(self) -> Path:
        return self.path / "leaving"

    @property
    def heard(self) -> Path:
        """Touched whenever the market answered a heartbeat."""
        return self.path / "heard"

    def prepare(self) -> None:
        """Make the directories, for this user only.

        Raises
        ------
        NodeSettingsError
            When they cannot be made, or hold no further file: credentials must have a place.
        """
        try:
            for folder in (self.path, self.cache, self.work):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path) as file:
                file.write(bytes(_LEAST_BYTES))
                file.flush()
        except OSError as error:
            raise NodeSettingsError(
                f"The state directory {self.path} cannot be made or written: {error.strerror}. "
                "Free space there, or choose another with --state-dir."
            ) from None


def find_default_state_dir() -> Path:
    """``$FINETENDER_STATE_DIR``, else a folder in the user's own state directory."""
    chosen = os.environ.get(STATE_DIR_VARIABLE)
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "finetender-node"


def save_credentials(state: StateDir, credentials: Credentials) -> None:
    """Write ``node.json`` whole, readable by its owner alone from its first byte on."""
    state.prepare()
    # mkstemp makes the file with mode 0600.
    descriptor, name = tempfile.mkstemp(prefix=f".{_CREDENTIALS}.", dir=state.path)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(dumps(credentials))
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(state.credentials)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def load_credentials(state: StateDir) -> Credentials:
    """What ``save_credentials`` wrote.

    Raises
    ------
    NodeSettingsError
        When there are none, they are damaged, or others may read them.
    """
    path = state.credentials
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NodeSettingsError(
            f"This node has not joined a market: {path} is missing. "
            "Run: python -m workers join --url URL --token TOKEN"
        ) from None
    except OSError as error:
        raise NodeSettingsError(f"{path} cannot be read: {error.strerror}.") from None
    if mode & 0o077:
        raise NodeSettingsError(
            f"{path} holds the node's token but others can read it. Run: chmod 600 {path}"
        )
    try:
        return loads(Credentials, text)
    except ProtocolError as error:
        raise NodeSettingsError(f"{path} is damaged ({error}). Join the market again.") from None
