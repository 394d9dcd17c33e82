"""Taking credentials back: a join token before its use, a node's token after it."""

from __future__ import annotations

from datetime import datetime
from functools import partial

from django.db import transaction

from marketplace.fleet import locks, selectors
from marketplace.fleet.broker import delete_broker_user
from marketplace.fleet.models import JoinToken, Node, NodeStatus
from marketplace.fleet.secrets import create_join_secret, secret_hash


def revoke_join_token(*, token: JoinToken, now: datetime) -> None:
    """Let a token list no node; doing so twice changes nothing."""
    JoinToken.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=now)


def revoke_node_token(*, node: Node, now: datetime) -> Node:
    """End the node's credentials at once, with the market and with the broker.

    The node is silent from then on: its jobs are planned again, and it comes back only with a new
    join token. The one it joined with gives its credentials to nobody again.

    Raises
    ------
    Conflict
        ``node_left``.
    """
    with transaction.atomic():
        # Tokens before nodes, as joining locks them.
        JoinToken.objects.filter(node=node, revoked_at=None).update(revoked_at=now)
        node = locks.lock_present_node(node.pk)
        # The hash of a secret that nobody was given.
        node.api_token_hash = secret_hash(create_join_secret())
        node.broker_password_hash = ""
        node.last_heartbeat_at = selectors.silent_since(node.zone, now)
        if node.status != NodeStatus.SUSPENDED:
            node.status = NodeStatus.OFFLINE
        node.save(
            update_fields=[
                *("api_token_hash", "broker_password_hash", "last_heartbeat_at", "status")
            ]
        )
        transaction.on_commit(partial(delete_broker_user, node))
    return node
