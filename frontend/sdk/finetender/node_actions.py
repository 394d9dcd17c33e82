"""``finetender nodes``: each command is an operation of the market, and stands in one table."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from string import Formatter
from typing import Any

from finetender.client import Client
from finetender.commands import print_json
from finetender.deadlines import write_deadline
from finetender.lookups import print_page, show_members
from finetender.operation_list import OPERATIONS
from finetender.progress import keep_printable

_FROM_NOW = re.compile(r"(\d{1,6})([mhd])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}
_Options = Mapping[str, Mapping[str, Any]]


def read_moment(text: str) -> str:
    """A moment, or a time from now such as ``90m``, as the market takes it."""
    from_now = _FROM_NOW.fullmatch(text)
    if from_now is None:
        return write_deadline(text)
    passes = timedelta(**{_UNITS[from_now[2]]: int(from_now[1])})
    return (datetime.now(UTC) + passes).isoformat()


@dataclass(frozen=True, slots=True)
class Action:
    """A command that asks for one operation; parts of its address are arguments."""

    operation: str
    help: str
    #: Members that are shown of each item, where the answer is a list.
    shows: tuple[str, ...] = ()
    #: The member that holds the list; a page's has more pages.
    items: str = "data"
    #: Arguments that are members of the request, and of the query.
    members: _Options = field(default_factory=dict[str, Mapping[str, Any]])
    query: _Options = field(default_factory=dict[str, Mapping[str, Any]])
    #: Members of the request that are always the same.
    constants: Mapping[str, Any] = field(default_factory=dict[str, Any])


_OPENS = {"metavar": "HH:MM", "help": "from when it is sold each day, UTC"}
_CLOSES = {"metavar": "HH:MM", "help": "until when; before --opens: on the next day"}
_ASK = {"metavar": "USD", "help": "dollars for one whole slot of a node"}
_MOMENT = {"type": read_moment, "metavar": "WHEN"}

ACTIONS: Mapping[str, Action] = {
    "list": Action(
        "nodes_list",
        "your nodes",
        ("id", "name", "zone", "ask", "status"),
        query={"--zone": {"help": "only of this zone"}, "--name": {"help": "only of this name"}},
    ),
    "show": Action("nodes_read", "one node"),
    "ask": Action("nodes_ask_set", "ask another price", members={"ask": _ASK}),
    "rates": Action(
        "nodes_rates",
        "what a node is paid by block of the day, and why it sells or not",
        ("starts_at", "day_ahead", "in_force", "state"),
        items="blocks",
    ),
    "hours": Action(
        "nodes_hours_change",
        "sell a node in some hours of the day only",
        members={
            "--opens": {**_OPENS, "required": True},
            "--closes": {**_CLOSES, "required": True},
        },
    ),
    "all-day": Action(
        "nodes_hours_change", "sell a node all day", constants={"opens": None, "closes": None}
    ),
    "maintenance": Action(
        "nodes_hours_change",
        "sell nothing of a node for a time",
        members={
            "--from": {
                **_MOMENT,
                "dest": "maintenance_from_at",
                "required": True,
                "help": "a moment, or a time from now: 0m, 2h, 3d",
            },
            "--until": {
                **_MOMENT,
                "dest": "maintenance_until_at",
                "required": True,
                "help": "the same; within 90 days",
            },
        },
    ),
    "no-maintenance": Action(
        "nodes_hours_change",
        "call maintenance off",
        constants={"maintenance_from_at": None, "maintenance_until_at": None},
    ),
    "drain": Action("nodes_drain", "sell nothing more of a node; what was sold is served"),
    "undrain": Action("nodes_undrain", "put a drained node back on sale"),
    "withdraw": Action("nodes_withdraw", "let a node leave once what was sold is served"),
    "revoke": Action("nodes_revoke", "end a node's credentials; its jobs go on elsewhere"),
    "reset-speed": Action("nodes_speed_reset", "forget how fast its jobs were"),
    "token": Action(
        "join_tokens_create",
        "a token that lists a machine, shown once, and the lines that use it",
        members={
            "--zone": {"required": True, "help": "what it serves, see 'finetender api zones_list'"},
            "--ask": {**_ASK, "required": True},
            "--nodes": {"type": int, "help": "GPUs of the machine (default: 1)"},
            "--tier": {"choices": ["serverless", "marketplace", "conventional"]},
            "--opens": _OPENS,
            "--closes": _CLOSES,
            "--until": {**_MOMENT, "dest": "available_until", "help": "it is on sale until then"},
            "--shared": {
                "action": "store_const",
                "const": True,
                "dest": "is_shared",
                "help": "its GPUs serve another zone at other hours",
            },
        },
    ),
    "tokens": Action(
        "join_tokens_list",
        "your join tokens",
        ("id", "zone", "ask", "status", "uses_left", "expires_at"),
    ),
    "joining": Action("join_tokens_read", "how far the machines are that join with a token"),
    "revoke-token": Action("join_tokens_revoke", "let a join token list nothing more"),
    "earnings": Action(
        "earnings_list", "what you earned, line by line", ("id", "kind", "amount", "accrued_at")
    ),
    "work": Action(
        "earnings_work",
        "what each node did for each job, and was paid",
        ("cursor", "node", "job_id", "units", "paid"),
        query={
            "--node": {"dest": "node_id", "help": "only of this node"},
            "--job": {"dest": "job_id", "help": "only for this job"},
        },
    ),
    "days": Action("earnings_days", "what you earned by day", ("day", "amount", "lines")),
    "payouts": Action("payouts_list", "your payouts", ("id", "amount", "status", "made_at")),
    "statement": Action("payouts_statement", "what you earned and were paid in a month"),
    "account": Action("payouts_account", "where you are paid, what waits, and when it leaves"),
    "set-up-payouts": Action("payouts_account_open", "the page that asks who you are"),
}


def add_arguments(parser: argparse.ArgumentParser, action: Action) -> None:
    """Add the arguments of a command."""
    parser.set_defaults(command=act, action_of=action)
    for name in _list_parts(action):
        parser.add_argument(name, metavar=name.removesuffix("_id").upper())
    for name, options in {**action.members, **action.query}.items():
        parser.add_argument(name, **options)
    if action.shows and action.items == "data":
        parser.add_argument("--limit", type=int, default=20, help="at most so many (default: 20)")
        parser.add_argument("--after", metavar="ID", help="the last one of the page before")


def act(chosen: argparse.Namespace) -> None:
    """Ask for the operation of a command, and show what came."""
    action: Action = chosen.action_of
    values = {name: getattr(chosen, name) for name in _list_parts(action)}
    values |= _read_given(chosen, action.query)
    if action.shows and action.items == "data":
        values |= {"limit": chosen.limit} | (
            {} if chosen.after is None else {"after": chosen.after}
        )
    body = {**action.constants, **_read_given(chosen, action.members)}
    with Client() as client:
        answer = client.call(action.operation, body=body or None, **values)
    if chosen.json:
        print_json(answer)
    elif action.shows:
        print_page(
            answer.get(action.items, ()), action.shows, has_more=bool(answer.get("has_more"))
        )
    elif not answer:
        print("Done.")
    else:
        show_members({name: of for name, of in answer.items() if name != "commands"})
        for way in answer.get("commands", ()):
            print(f"\n{way['title']}:\n{keep_printable(way['lines'], also=chr(10))}")
    if answer.get("secret"):
        print("The secret is shown this once.", file=sys.stderr)


def _read_given(chosen: argparse.Namespace, options: _Options) -> dict[str, Any]:
    names = [str(of.get("dest", name.removeprefix("--"))) for name, of in options.items()]
    return {name: getattr(chosen, name) for name in names if getattr(chosen, name) is not None}


def _list_parts(action: Action) -> list[str]:
    path = OPERATIONS[action.operation].path
    return [name for _, name, _, _ in Formatter().parse(path) if name]
