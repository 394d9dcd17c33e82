"""Credentials over time: taken back, exchanged, and used by one process at a time."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q

from marketplace.fleet import locks, selectors
from marketplace.fleet.models import JoinToken, JoinUse, Node, NodeStatus
from marketplace.fleet.notify import notify_nodes
from marketplace.fleet.releases import agree_on_version
from marketplace.fleet.secrets import (
    create_join_secret,
    create_node_secret,
    create_session,
    hash_secret,
)
from workers.protocol.plan_queue import PlanSessionRequest

#: Age from which a node asks for another token. Longer than a join token lives: the answer to a
#: join, given again, names the first token.
TOKEN_ROTATES_AFTER = timedelta(hours=36)
#: How long the token before stays valid once the newer one is in use: calls are under way.
OLD_TOKEN_GRACE = timedelta(minutes=1)


def revoke_join_token(*, token: JoinToken, now: datetime) -> None:
    """Let a token list no node; doing so twice changes nothing."""
    JoinToken.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=now)


def revoke_node_token(*, node: Node, now: datetime) -> Node:
    """End the node's credentials at once; a request in which it waits for plans is refused.

    The node is silent from then on: its jobs are planned again, and it comes back only with a new
    join token. The one it joined with gives its credentials to no one again.

    Raises
    ------
    Conflict
        ``node_left``.
    """
    with transaction.atomic():
        # Tokens before nodes, as joining locks them.
        listed_by = Q(node=node) | Q(pk__in=JoinUse.objects.filter(node=node).values("token"))
        JoinToken.objects.filter(listed_by, revoked_at=None).update(revoked_at=now)
        node = locks.lock_present_node(node.pk)
        # The hash of a secret that no one was given.
        node.api_token_hash = hash_secret(create_join_secret())
        node.old_api_token_hash = ""
        node.api_token_set_at = None
        node.last_heartbeat_at = selectors.compute_silence_limit(node.zone, now)
        if node.status != NodeStatus.SUSPENDED:
            node.status = NodeStatus.OFFLINE
        node.save(
            update_fields=[
                *("api_token_hash", "api_token_set_at", "old_api_token_hash"),
                *("last_heartbeat_at", "status"),
            ]
        )
        notify_nodes([node.pk])
    return node


def is_token_old(node: Node, *, now: datetime) -> bool:
    """Whether the node should ask for another token."""
    return node.api_token_set_at is None or now - node.api_token_set_at >= TOKEN_ROTATES_AFTER


def rotate_node_token(*, node: Node, token: str, now: datetime) -> str:
    """Another bearer token for the node that holds ``token``.

    The old token stays valid until shortly after the first use of the new one. So a node is not
    locked out if the answer is lost or if the node dies before it has stored the new token. Asking
    again gives another.

    Raises
    ------
    NotAllowed
        ``node_token_replaced``: it was revoked or replaced meanwhile.
    """
    secret = create_node_secret()
    with transaction.atomic():
        locked = locks.lock_token_holder(node.pk, hash_secret(token))
        if hash_secret(token) == locked.api_token_hash:
            locked.old_api_token_hash = locked.api_token_hash
        locked.old_api_token_until_at = None
        locked.api_token_hash = hash_secret(secret)
        locked.api_token_set_at = now
        locked.save(
            update_fields=[
                *("api_token_hash", "api_token_set_at"),
                *("old_api_token_hash", "old_api_token_until_at"),
            ]
        )
    return secret


def note_token_use(*, node: Node, token: str, now: datetime) -> None:
    """A node that uses its newer token needs the one before no longer."""
    unsettled = node.old_api_token_hash and node.old_api_token_until_at is None
    if unsettled and hash_secret(token) == node.api_token_hash:
        until = now + OLD_TOKEN_GRACE
        same = Node.objects.filter(pk=node.pk, api_token_hash=node.api_token_hash)
        same.filter(old_api_token_until_at=None).update(old_api_token_until_at=until)


def open_plan_session(*, node: Node, request: PlanSessionRequest) -> str:
    """Begin a process's taking of plans, and end that of the node's earlier process.

    Raises
    ------
    Conflict
        ``version_not_spoken``: the process is of a release that this market speaks with no more.
    """
    agree_on_version(least=request.least_version, most=request.version)
    session = create_session()
    with transaction.atomic():
        Node.objects.filter(pk=node.pk).update(plan_session=session)
        notify_nodes([node.pk])
    return session
