"""``finetender nodes``: what providers do with their machines, and what they earned."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from finetender.actions import Action
from finetender.deadlines import write_deadline

_FROM_NOW = re.compile(r"(\d{1,6})([mhd])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def read_moment(text: str) -> str:
    """A moment, or a time from now such as ``90m``, as the market takes it."""
    from_now = _FROM_NOW.fullmatch(text)
    if from_now is None:
        return write_deadline(text)
    passes = timedelta(**{_UNITS[from_now[2]]: int(from_now[1])})
    return (datetime.now(UTC) + passes).isoformat()


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
