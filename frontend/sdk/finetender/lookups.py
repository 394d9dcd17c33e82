"""Commands that show what the market has of yours, and ``finetender api`` for all the rest."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from finetender.client import Client
from finetender.commands import print_json
from finetender.errors import UsageError
from finetender.operation_list import OPERATIONS
from finetender.progress import keep_printable

#: Lists by their command: the operation, its help, and the members that are shown of each item.
LISTS: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "data": ("datasets_list", "your data sets", ("id", "rows", "tokens", "name")),
    "bids": ("bids_list", "your bids", ("id", "status", "price", "deadline", "name")),
    "keys": ("keys_list", "your API keys", ("id", "prefix", "name")),
    "members": ("members_list", "who works for your organisation", ("id", "role", "email")),
    "webhooks": ("webhooks_list", "your webhooks", ("id", "url", "disabled_at")),
    "entries": (
        "wallet_entries",
        "what happened to your wallet",
        ("cursor", "at", "available_change", "memo"),
    ),
}


def show_list(chosen: argparse.Namespace) -> None:
    operation, _, members = LISTS[chosen.list]
    asked = {"limit": chosen.limit} | ({"after": chosen.after} if chosen.after else {})
    with Client() as client:
        page = client.call(operation, **asked)
    if chosen.json:
        print_json(page)
        return
    print_page(page["data"], members, has_more=page["has_more"])


def print_page(
    items: Sequence[Mapping[str, Any]], members: Sequence[str], *, has_more: bool
) -> None:
    """Print a line for each item, and whether more come after them."""
    for item in items:
        shown = (keep_printable(str(item[name])) for name in members if item.get(name) is not None)
        print("  ".join(shown))
    if has_more:
        print("There are more: give the first column of the last line as --after.", file=sys.stderr)


def show_wallet(chosen: argparse.Namespace) -> None:
    with Client() as client:
        _show_answer(client.call("wallet_read"), as_json=chosen.json)


def show_job(chosen: argparse.Namespace) -> None:
    with Client() as client:
        _show_answer(client.call("jobs_read", job_id=chosen.job), as_json=chosen.json)


def ask_operation(chosen: argparse.Namespace) -> None:
    """Ask for any operation of the market."""
    body = _read_body(chosen.body)
    with Client() as client:
        route = OPERATIONS.get(chosen.operation)
        values = _read_values(chosen.values)
        if route is not None and route.is_file:
            path = client.download_file(
                chosen.operation, chosen.output or chosen.operation, **values
            )
            print(json.dumps({"path": str(path)}))
            return
        file = None if chosen.file is None else Path(chosen.file)
        print_json(client.call(chosen.operation, body=body, file=file, **values))


def _read_body(text: str | None) -> Mapping[str, Any] | None:
    if text is None:
        return None
    try:
        body = json.loads(sys.stdin.read() if text == "-" else text)
    except ValueError as error:
        raise UsageError(f"The body is no JSON: {error}.") from None
    if not isinstance(body, dict):
        raise UsageError("The body must be a JSON object.")
    return cast(Mapping[str, Any], body)


def _read_values(given: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    if not all(name and sign for name, sign, _ in pairs):
        raise UsageError("Write parts of the address and of the query as NAME=VALUE.")
    return {name: value for name, _, value in pairs}


def _show_answer(value: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(value)
    else:
        show_members(value)


def show_members(value: Mapping[str, Any]) -> None:
    """Print an answer's members that say something, a line each."""
    for name, member in value.items():
        if member not in (None, "", [], {}):
            text = member if isinstance(member, str) else json.dumps(member)
            print(f"{name}: {keep_printable(text)}")
