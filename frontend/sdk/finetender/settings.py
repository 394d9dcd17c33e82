"""Where the market is and who asks: arguments, environment, or what ``finetender login`` stored."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from finetender.errors import UsageError

URL_VARIABLE, KEY_VARIABLE = "FINETENDER_URL", "FINETENDER_API_KEY"


@dataclass(frozen=True, slots=True)
class Access:
    """A market's address, without a slash at the end, and a key of it."""

    url: str
    api_key: str


def find_config_path() -> Path:
    """The file in which the command line keeps the key."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.environ.get("APPDATA") or "~/.config"
    return Path(folder).expanduser() / "finetender" / "access.json"


def find_access(url: str | None = None, api_key: str | None = None) -> Access:
    """What is given, else what the environment says, else what was stored.

    Raises
    ------
    UsageError
        Something is nowhere.
    """
    stored: dict[str, str] = {}
    with suppress(OSError, ValueError):
        stored = json.loads(find_config_path().read_text())
    url = url or os.environ.get(URL_VARIABLE) or stored.get("url")
    key = api_key or os.environ.get(KEY_VARIABLE)
    if key is None and url is not None and url.rstrip("/") == stored.get("url"):
        # A key is for the market that it was stored with, and is sent to no other.
        key = stored.get("api_key")
    if not url or not key:
        raise UsageError(
            f"Run 'finetender login', or set {URL_VARIABLE} and {KEY_VARIABLE} (a key is made "
            "under API keys in the market's settings)."
        )
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"{url!r} is no address; give one such as https://market.example.")
    if not key.isascii() or not key.isprintable():
        raise UsageError("The API key holds characters that no key has. Copy it again.")
    return Access(url.rstrip("/"), key)


def store_access(access: Access) -> Path:
    """Keep an address and a key for later commands, readable by this person only."""
    path = find_config_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        # One that was there before keeps its rights otherwise. Windows has no such rights: what
        # stands in a person's own folder is theirs alone there.
        if hasattr(os, "fchmod"):
            os.fchmod(file.fileno(), 0o600)
        json.dump({"url": access.url, "api_key": access.api_key}, file)
    return path
