"""Commands about nodes are operations of the market, with arguments that it takes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
import time_machine
from finetender.command_line import build_parser
from finetender.node_actions import ACTIONS, Action, read_moment
from finetender.operation_list import OPERATIONS

DOCUMENT = json.loads((Path(__file__).parents[3] / "docs" / "api" / "market.json").read_text())
#: Operations of providers that have no command: ``finetender api`` asks for them.
BY_NAME_ONLY = {"payouts_statement_csv"}


def find_members(operation: str, where: str) -> set[str]:
    """Names of the members of a request's body, or of its query."""
    route = OPERATIONS[operation]
    described = DOCUMENT["paths"][route.path][route.method.lower()]
    if where == "query":
        return {one["name"] for one in described["parameters"] if one["in"] == "query"}
    schema = described["requestBody"]["content"]["application/json"]["schema"]
    return set(DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]["properties"])


def name_all(options: dict[str, dict[str, object]]) -> set[str]:
    return {str(of.get("dest", name.removeprefix("--"))) for name, of in options.items()}


def test_each_operation_of_providers_has_a_command() -> None:
    provided = {
        name
        for name, route in OPERATIONS.items()
        if route.path.startswith(
            ("/api/nodes", "/api/join-tokens", "/api/earnings", "/api/payouts")
        )
    }
    assert {action.operation for action in ACTIONS.values()} == provided - BY_NAME_ONLY


@pytest.mark.parametrize("verb", ACTIONS)
def test_a_command_sends_what_its_operation_takes(verb: str) -> None:
    action: Action = ACTIONS[verb]
    body = name_all(dict(action.members)) | set(action.constants)  # type: ignore[arg-type]
    if body:
        assert body <= find_members(action.operation, "body")
    query = name_all(dict(action.query))  # type: ignore[arg-type]
    if action.shows and action.items == "data":
        query |= {"limit", "after"}
    if query:
        assert query <= find_members(action.operation, "query")


def test_hours_of_all_day_are_sent_as_none() -> None:
    chosen = build_parser().parse_args(["nodes", "all-day", "node_1"])
    assert chosen.action_of.constants == {"opens": None, "closes": None}
    assert chosen.node_id == "node_1"


@time_machine.travel(datetime(2026, 3, 2, 9, tzinfo=UTC), tick=False)
def test_moments_are_read_as_people_write_them() -> None:
    assert read_moment("2h") == "2026-03-02T11:00:00+00:00"
    assert read_moment("0m") == "2026-03-02T09:00:00+00:00"
    assert read_moment("2026-03-02T12:00:00+01:00") == "2026-03-02T11:00:00+00:00"
    # The market refuses what is none, with an example.
    assert read_moment("soon") == "soon"
