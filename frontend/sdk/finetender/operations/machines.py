"""What a provider does: list machines, price them, say when they are sold, see what they earn."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from finetender.calls import Operation
from finetender.operations.named import call
from finetender.values import Raw


def list_nodes(**query: Any) -> Operation[Raw]:
    """A page of your nodes; ``name``, ``zone``, ``limit``, ``after``."""
    return (yield from call("nodes_list", **query))


def get_node(node_id: str) -> Operation[Raw]:
    return (yield from call("nodes_read", node_id=node_id))


def list_rates(node_id: str) -> Operation[Raw]:
    """What a node is paid by block of the day, and why it sells or not."""
    return (yield from call("nodes_rates", node_id=node_id))


def set_ask(node_id: str, ask: Decimal | str) -> Operation[Raw]:
    """Ask another price for a slot, in dollars, from the next sale on."""
    return (yield from call("nodes_ask_set", node_id=node_id, body={"ask": str(ask)}))


def change_hours(node_id: str, **change: str | None) -> Operation[Raw]:
    """Change when a node is sold.

    Parameters
    ----------
    change
        ``opens`` and ``closes`` (``"22:00"``, UTC), ``maintenance_from_at`` and
        ``maintenance_until_at`` (moments with a time zone). ``None`` takes one away; what is not
        named stays.
    """
    return (yield from call("nodes_hours_change", node_id=node_id, body=change))


def drain_node(node_id: str, *, idempotency_key: str | None = None) -> Operation[Raw]:
    """Sell nothing more of a node; what was sold is served."""
    return (yield from _act("nodes_drain", node_id, idempotency_key))


def undrain_node(node_id: str, *, idempotency_key: str | None = None) -> Operation[Raw]:
    """Put a drained node back on sale."""
    return (yield from _act("nodes_undrain", node_id, idempotency_key))


def withdraw_node(node_id: str, *, idempotency_key: str | None = None) -> Operation[Raw]:
    """Let a node leave once what was sold of it is served."""
    return (yield from _act("nodes_withdraw", node_id, idempotency_key))


def revoke_node(node_id: str, *, idempotency_key: str | None = None) -> Operation[Raw]:
    """End a node's credentials at once; its jobs go on elsewhere."""
    return (yield from _act("nodes_revoke", node_id, idempotency_key))


def reset_node_speed(node_id: str, *, idempotency_key: str | None = None) -> Operation[Raw]:
    """Forget how fast a node's jobs were, as after a change of the machine."""
    return (yield from _act("nodes_speed_reset", node_id, idempotency_key))


def _act(operation: str, node_id: str, idempotency_key: str | None) -> Operation[Raw]:
    return (yield from call(operation, node_id=node_id, idempotency_key=idempotency_key))


def create_join_token(
    zone: str,
    *,
    ask: Decimal | str,
    idempotency_key: str | None = None,
    **terms: Any,
) -> Operation[Raw]:
    """A join token with its ``secret``, which is shown once, and the ``commands`` that use it.

    Parameters
    ----------
    ask
        Dollars for one whole slot of a node.
    terms
        ``nodes``, ``tier``, ``opens``, ``closes``, ``available_until``, ``is_shared``.
    """
    body: Mapping[str, Any] = {"zone": zone, "ask": str(ask), **terms}
    return (yield from call("join_tokens_create", body=body, idempotency_key=idempotency_key))


def list_join_tokens(**query: Any) -> Operation[Raw]:
    return (yield from call("join_tokens_list", **query))


def get_join_token(token_id: str) -> Operation[Raw]:
    """One join token, and how far the machines are that join with it."""
    return (yield from call("join_tokens_read", token_id=token_id))


def revoke_join_token(token_id: str) -> Operation[Raw]:
    return (yield from call("join_tokens_revoke", token_id=token_id))


def list_earnings(**query: Any) -> Operation[Raw]:
    """A page of what you earned, and what is pending and payable."""
    return (yield from call("earnings_list", **query))


def list_node_work(**query: Any) -> Operation[Raw]:
    """A page of what each node did for each job; ``node_id``, ``job_id``, ``limit``, ``after``."""
    return (yield from call("earnings_work", **query))


def list_earning_days(**query: Any) -> Operation[Raw]:
    """What you earned on each day, the latest first; ``limit`` days, ``after`` a day."""
    return (yield from call("earnings_days", **query))


def list_payouts(**query: Any) -> Operation[Raw]:
    return (yield from call("payouts_list", **query))


def get_statement(month: str) -> Operation[Raw]:
    """What you earned and were paid in a month, such as ``"2026-11"``."""
    return (yield from call("payouts_statement", month=month))


def get_payout_account() -> Operation[Raw]:
    """The account that you are paid to, what waits, and when it leaves."""
    return (yield from call("payouts_account"))


def open_payout_account() -> Operation[Raw]:
    """The address where the payment service asks who you are; the key needs ``payouts:write``."""
    return (yield from call("payouts_account_open"))
