"""What the market has of yours, and what may be done to it: commands by operation.

A command of a resource is a line here. ``finetender api`` asks for any other operation.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from finetender import node_actions
from finetender.actions import Action, show_members
from finetender.errors import UsageError
from finetender.operation_list import OPERATIONS
from finetender.output import open_client, print_json

#: Groups of commands; the first one of each is meant where none is named.
RESOURCES: Mapping[str, tuple[str, Mapping[str, Action]]] = {
    "data": (
        "your data sets",
        {
            "list": Action("datasets_list", "your data sets", ("id", "rows", "tokens", "name")),
            "show": Action("datasets_read", "one data set, with what was found in it"),
            "delete": Action("datasets_delete", "delete a data set"),
        },
    ),
    "bids": (
        "your bids",
        {
            "list": Action(
                "bids_list", "your bids", ("id", "status", "price", "deadline", "job_id", "name")
            ),
            "show": Action("bids_read", "one bid, its decision and what it pays"),
            "cancel": Action("bids_cancel_create", "take back a bid that is not decided"),
        },
    ),
    "adapters": (
        "adapters that your jobs made",
        {
            "list": Action(
                "jobs_list",
                "jobs with an adapter",
                ("id", "zone", "finished_at", "name"),
                fixed={"status": "succeeded"},
            ),
            "exports": Action(
                "exports_list", "an adapter's other forms", ("id", "form", "status", "filename")
            ),
            "checkpoints": Action(
                "jobs_checkpoints_list", "stored checkpoints of a job", ("id", "step", "created_at")
            ),
            "link": Action("links_create", "an address that fetches a file without a key"),
            "delete": Action("jobs_adapter_delete", "delete an adapter"),
        },
    ),
    "webhooks": (
        "addresses that are told of events",
        {
            "list": Action("webhooks_list", "your webhooks", ("id", "url", "disabled_at")),
            "add": Action(
                "webhooks_create",
                "call an address with events; its secret is shown once",
                members={
                    "url": {"metavar": "URL"},
                    "--event": {"action": "append", "dest": "events", "metavar": "TYPE"},
                },
            ),
            "show": Action("webhooks_read", "one webhook"),
            "deliveries": Action(
                "webhooks_deliveries", "what was sent", ("id", "type", "status", "created_at")
            ),
            "replay": Action("webhooks_replay", "send a message again"),
            "test": Action("webhooks_test", "send a message to try it"),
            "enable": Action("webhooks_enable", "go on with one that was disabled"),
            "rotate": Action("webhooks_rotate", "a new secret, shown once"),
            "delete": Action("webhooks_delete", "stop calling an address"),
        },
    ),
    "wallet": (
        "your money",
        {
            "show": Action("wallet_read", "what you have, and what is held for bids"),
            "entries": Action(
                "wallet_entries",
                "what happened to it",
                ("cursor", "at", "available_change", "memo"),
            ),
        },
    ),
    "keys": (
        "your API keys",
        {
            "list": Action("keys_list", "your API keys", ("id", "prefix", "name")),
            "rotate": Action("keys_rotate", "a new secret for a key, shown once"),
            "revoke": Action("keys_revoke", "end a key"),
        },
    ),
    "members": (
        "who works for your organisation",
        {
            "list": Action("members_list", "members", ("id", "role", "email")),
            "remove": Action("members_remove", "end a membership"),
        },
    ),
    "nodes": ("machines that you offer", node_actions.ACTIONS),
    "zones": (
        "what can be bid for",
        {
            "list": Action("zones_list", "base models on sale", ("name", "base_model", "slot_s")),
            "show": Action("market_retrieve", "prices and cells of a zone"),
        },
    ),
}


def show_job(chosen: argparse.Namespace) -> None:
    with open_client(chosen) as client:
        job = client.call("jobs_read", job_id=chosen.job)
    if chosen.json:
        print_json(job)
    else:
        show_members(job)


def ask_operation(chosen: argparse.Namespace) -> None:
    """Ask for any operation of the market."""
    body = _read_body(chosen.body)
    with open_client(chosen) as client:
        route = OPERATIONS.get(chosen.operation)
        values = _read_values(chosen.values)
        if route is not None and route.is_file:
            path = client.download_file(
                chosen.operation, chosen.output or chosen.operation, **values
            )
            print_json({"path": str(path)})
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
