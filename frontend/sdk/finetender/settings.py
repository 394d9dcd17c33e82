"""Where the market is and who asks: arguments, environment, or what ``finetender login`` stored.

The file of profiles is written whole beside the old one and then takes its place, so that it is
never half there, and is open to its owner alone from its first byte on. Windows has no such modes:
there it lies in the person's own ``%APPDATA%``, whose rights it takes over.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from finetender.errors import UsageError

URL_VARIABLE, KEY_VARIABLE = "FINETENDER_URL", "FINETENDER_API_KEY"
PROFILE_VARIABLE, CA_VARIABLE = "FINETENDER_PROFILE", "FINETENDER_CA"
#: The profile that is meant where none is named and none was chosen.
DEFAULT = "default"
IS_WINDOWS = os.name == "nt"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class Access:
    """A market's address, without a slash at the end, and a key of it."""

    url: str
    api_key: str
    #: A file of certificates that sign the market's own, beside those of this machine.
    ca: str | None = None


@dataclass(frozen=True, slots=True)
class Profiles:
    """The markets that were signed in to, by name."""

    current: str
    by_name: Mapping[str, Access]


def find_config_path() -> Path:
    """The file in which the command line keeps its profiles."""
    variable = "APPDATA" if IS_WINDOWS else "XDG_CONFIG_HOME"
    folder = os.environ.get(variable) or "~/.config"
    return Path(folder).expanduser() / "finetender" / "profiles.json"


def find_access(
    url: str | None = None,
    api_key: str | None = None,
    *,
    profile: str | None = None,
    ca: str | None = None,
) -> Access:
    """What is given, else what the environment says, else what was stored.

    A profile that is named comes before the environment.

    Raises
    ------
    UsageError
        Something is nowhere, or there is no such profile.
    """
    stored = _find_profile(profile)
    if profile is None:
        url = url or os.environ.get(URL_VARIABLE)
        api_key = api_key or os.environ.get(KEY_VARIABLE)
    ca = ca or os.environ.get(CA_VARIABLE)
    if stored is not None:
        url = url or stored.url
        if url.rstrip("/") == stored.url:
            # A key is for the market that it was stored with, and is sent to no other.
            api_key, ca = api_key or stored.api_key, ca or stored.ca
    if not url or not api_key:
        raise UsageError(
            f"Run 'finetender login', or set {URL_VARIABLE} and {KEY_VARIABLE} (a key is made "
            "under API keys in the market's settings)."
        )
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"{url!r} is no address; give one such as https://market.example.")
    if not api_key.isascii() or not api_key.isprintable():
        raise UsageError("The API key holds characters that no key has. Copy it again.")
    return Access(url.rstrip("/"), api_key, ca)


def _find_profile(name: str | None) -> Access | None:
    named = name or os.environ.get(PROFILE_VARIABLE)
    found = read_profiles()
    access = found.by_name.get(named or found.current)
    if access is None and named is not None:
        names = ", ".join(found.by_name) or "none"
        raise UsageError(
            f"There is no profile {named!r}; there are: {names}. "
            f"'finetender login --profile {named}' makes it."
        )
    return access


def read_profiles() -> Profiles:
    """What is stored; nothing where no file is.

    Raises
    ------
    UsageError
        The file cannot be read, is no file of profiles, or is open to others.
    """
    path = find_config_path()
    try:
        if not IS_WINDOWS and path.stat().st_mode & _OTHERS:
            raise UsageError(f"Others can read the keys in {path}. Run: chmod 600 {path}")
        read: Any = json.loads(path.read_text(encoding="utf-8"))
        stored = cast("dict[str, dict[str, str | None]]", read["profiles"])
        by_name = {
            name: Access(str(of["url"]), str(of["api_key"]), of.get("ca"))
            for name, of in stored.items()
        }
        return Profiles(str(read["current"]), by_name)
    except FileNotFoundError:
        return Profiles(DEFAULT, {})
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{path} is no file of profiles. Delete it, and sign in again.") from None


def store_profile(name: str, access: Access) -> Path:
    """Keep an address and a key for later commands, readable by this person only."""
    found = read_profiles()
    current = name if not found.by_name else found.current
    return _write(Profiles(current, {**found.by_name, name: access}))


def choose_profile(name: str) -> Path:
    """Have later commands use a profile where they name none.

    Raises
    ------
    UsageError
    """
    found = read_profiles()
    if name not in found.by_name:
        raise UsageError(f"There is no profile {name!r}.")
    return _write(Profiles(name, found.by_name))


def forget_profile(name: str) -> Path:
    """Delete a profile with its key; the market still takes the key until it is revoked there.

    Raises
    ------
    UsageError
    """
    found = read_profiles()
    if name not in found.by_name:
        raise UsageError(f"There is no profile {name!r}.")
    left = {other: access for other, access in found.by_name.items() if other != name}
    current = next(iter(left), DEFAULT) if found.current == name else found.current
    return _write(Profiles(current, left))


def _write(profiles: Profiles) -> Path:
    path = find_config_path()
    text = json.dumps(
        {
            "current": profiles.current,
            "profiles": {name: asdict(access) for name, access in profiles.by_name.items()},
        },
        indent=2,
    )
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        return new.replace(path)
    except OSError as error:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from None
