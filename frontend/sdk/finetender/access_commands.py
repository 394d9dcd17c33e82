"""Commands about this machine: signing in, profiles, and completion of a shell's lines."""

from __future__ import annotations

import argparse
import getpass
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from ipaddress import ip_address
from typing import Any, cast
from urllib.parse import urlsplit

from finetender import settings
from finetender.client import Client
from finetender.errors import NotAuthorizedError, UsageError
from finetender.exchange import Connection
from finetender.output import print_json, print_table, tell
from finetender.progress import say
from finetender.settings import Access

#: In the order in which they are listed.
SHELLS = ("bash", "zsh", "fish", "powershell")
#: Arguments that are files.
_FILES = frozenset({"FILE", "DATA", "JOB.YAML", "CONFIG", "PROOF|BID", "ZONE|FILE"})


def log_in(chosen: argparse.Namespace) -> None:
    """Try a key, and keep it under the profile's name."""
    url = chosen.url or input("Address of the market: ")
    key = chosen.key or (
        getpass.getpass("API key: ") if sys.stdin.isatty() else sys.stdin.readline().strip()
    )
    with Client(url.strip(), key.strip(), connection=Connection(ca=chosen.ca)) as client:
        access = client.access
        try:
            client.list_jobs(limit=1)
        except NotAuthorizedError as error:
            # A key may have other scopes than this one.
            if error.code != "missing_scope":
                raise
    if is_readable_on_its_way(access.url):
        say("Without https, whoever is on the way there can read the key.", file=sys.stderr)
    name = chosen.profile or settings.DEFAULT
    path = settings.store_profile(name, access)
    told = f"Signed in to {access.url}. The key is in {path}."
    tell(chosen, told, {"url": access.url, "profile": name, "stored_at": str(path)})


def is_readable_on_its_way(url: str) -> bool:
    """Whether a key goes to an address unencrypted, and leaves this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    is_here = host == "localhost" or host.endswith(".localhost")
    with suppress(ValueError):
        is_here = ip_address(host).is_loopback
    return parts.scheme == "http" and not is_here


def list_profiles(chosen: argparse.Namespace) -> None:
    """Names and addresses; keys are never printed."""
    found = settings.read_profiles()
    if chosen.json:
        print_json([_describe(found, name) for name in found.by_name])
        return
    rows = [
        ["*" if name == found.current else " ", name, access.url]
        for name, access in found.by_name.items()
    ]
    print_table(["", "profile", "market"], rows)


def _describe(found: settings.Profiles, name: str) -> dict[str, Any]:
    access: Access = found.by_name[name]
    current = name == found.current
    return {"profile": name, "url": access.url, "ca": access.ca, "is_current": current}


def use_profile(chosen: argparse.Namespace) -> None:
    settings.choose_profile(chosen.name)
    tell(chosen, f"Commands use {chosen.name} from now on.", {"profile": chosen.name})


def remove_profile(chosen: argparse.Namespace) -> None:
    settings.forget_profile(chosen.name)
    told = f"{chosen.name} is forgotten here. Revoke its key in the market's settings."
    tell(chosen, told, {"profile": chosen.name})


def write_completion(chosen: argparse.Namespace) -> None:
    """Print what a shell reads to complete our commands, arguments and files."""
    try:
        shtab: Any = import_module("shtab")
    except ImportError:
        raise UsageError("Completion needs one more package: pip install shtab") from None
    for action in _list_arguments(chosen.parser):
        if action.metavar in _FILES or action.dest in ("output", "file", "ca"):
            action.complete = shtab.FILE
    script = shtab.complete(chosen.parser, shell=chosen.shell)
    if chosen.json:
        print_json({"shell": chosen.shell, "script": script})
    else:
        print(script)


def _list_arguments(parser: argparse.ArgumentParser) -> Iterator[Any]:
    """All arguments, those of commands within commands too; argparse has no other way to them."""
    for action in cast("list[Any]", parser._actions):  # pyright: ignore[reportPrivateUsage]
        yield action
        commands: Any = action.choices
        if isinstance(commands, dict):
            for inner in cast("dict[str, argparse.ArgumentParser]", commands).values():
                yield from _list_arguments(inner)
