"""Commands that ask for one operation of the market each, by a line of a table."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from string import Formatter
from typing import Any, cast

from finetender.operation_list import OPERATIONS
from finetender.output import open_client, print_json, print_table
from finetender.progress import say

#: Characters of a list that is shown whole.
_LONGEST_LINE = 500
_Options = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Action:
    """A command that asks for one operation; parts of its address are arguments."""

    operation: str
    help: str
    #: Members that are shown of each item, where the answer is a list.
    shows: tuple[str, ...] = ()
    #: The member that holds the list.
    items: str = "data"
    #: Arguments that are members of the request, and of the query.
    members: _Options = field(default_factory=dict[str, Mapping[str, Any]])
    query: _Options = field(default_factory=dict[str, Mapping[str, Any]])
    #: Members of the request, and of the query, that are always the same.
    constants: Mapping[str, Any] = field(default_factory=dict[str, Any])
    fixed: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def is_page(self) -> bool:
        return bool(self.shows) and OPERATIONS[self.operation].is_paged


def add_arguments(parser: argparse.ArgumentParser, action: Action) -> None:
    """Add the arguments of a command."""
    parser.set_defaults(command=act, action_of=action)
    for name in _list_parts(action):
        parser.add_argument(name, metavar=name.removesuffix("_id").removesuffix("_name").upper())
    for name, options in {**action.members, **action.query}.items():
        parser.add_argument(name, **options)
    if action.is_page:
        parser.add_argument("--limit", type=int, default=20, help="at most so many (default: 20)")
        parser.add_argument("--after", metavar="ID", help="the last one of the page before")


def act(chosen: argparse.Namespace) -> None:
    """Ask for the operation of a command, and show what came."""
    action: Action = chosen.action_of
    values: dict[str, Any] = {name: getattr(chosen, name) for name in _list_parts(action)}
    values |= {**action.fixed, **_read_given(chosen, action.query)}
    if action.is_page:
        values |= {"limit": chosen.limit}
        values |= {} if chosen.after is None else {"after": chosen.after}
    body = {**action.constants, **_read_given(chosen, action.members)}
    with open_client(chosen) as client:
        answer = client.call(action.operation, body=body or None, **values)
    if chosen.json:
        print_json(answer)
        return
    if action.shows:
        _show_list(action, answer)
    elif not answer:
        say("Done.")
    else:
        show_members({name: of for name, of in answer.items() if name != "commands"})
        for way in answer.get("commands", ()):
            say(f"\n{way['title']}:\n{way['lines']}", also="\n")
    if answer.get("secret"):
        say("The secret is shown this once.", file=sys.stderr)


def _list_parts(action: Action) -> list[str]:
    path = OPERATIONS[action.operation].path
    return [name for _, name, _, _ in Formatter().parse(path) if name]


def _read_given(chosen: argparse.Namespace, options: _Options) -> dict[str, Any]:
    names = [str(of.get("dest", name.removeprefix("--"))) for name, of in options.items()]
    return {name: getattr(chosen, name) for name in names if getattr(chosen, name) is not None}


def _show_list(action: Action, page: Mapping[str, Any]) -> None:
    rows = [
        ["" if item.get(name) is None else str(item[name]) for name in action.shows]
        for item in page.get(action.items, ())
    ]
    if rows:
        print_table(action.shows, rows)
    else:
        say("None.", file=sys.stderr)
    if page.get("has_more"):
        say("There are more: give the first column of the last line as --after.", file=sys.stderr)


def show_members(value: Mapping[str, Any]) -> None:
    """Print an answer's members that say something, a line each; of a long list only its length."""
    for name, member in value.items():
        if member in (None, "", [], {}):
            continue
        text = member if isinstance(member, str) else json.dumps(member)
        if isinstance(member, list) and len(text) > _LONGEST_LINE:
            text = f"{len(cast(list[Any], member))}, which --json shows"
        say(f"{name}: {text}")
