"""The broker as one node sees it: a Redis user that may touch its own queue and nothing else.

Redis forgets its users when it restarts without an ACL file, so the hash of each node's password is
kept with the node and the sweep puts missing users back.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from urllib.parse import urlsplit, urlunsplit

from django.conf import settings
from redis import Redis
from redis.exceptions import RedisError

from marketplace.common.errors import SystemFault
from marketplace.fleet.models import Node, NodeStatus
from marketplace.fleet.secrets import node_secret

log = logging.getLogger(__name__)

_PREFIX = "ftnode-"
#: What kombu's Redis transport does with the keys of one queue, and no way to look at others'.
_COMMANDS = (
    # No scripts: one that never ends would stop the market, and all users share their sandbox.
    *("+@read", "+@write", "+@connection", "+@transaction"),
    *("-@dangerous", "-@admin", "-@scripting", "-scan", "-randomkey", "-dbsize"),
    # A connection names its database and itself first.
    *("+select", "+client|setinfo", "+client|setname", "+client|id"),
)


class BrokerUnfit(SystemFault):
    """The broker cannot give each node a user of its own."""


def node_broker_url(*, node: Node, join_secret: str) -> str:
    """The address with the node's own user, or everyone's where ``NODE_BROKER_SHARED`` is set."""
    url = settings.NODE_BROKER_URL or settings.CELERY_BROKER_URL
    if settings.NODE_BROKER_SHARED:
        return url
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss"):
        raise BrokerUnfit(
            f"{parts.scheme} broker addresses cannot hold a node's own user. Set NODE_BROKER_URL "
            "to a redis:// address, or NODE_BROKER_SHARED=1 where every node is trusted."
        )
    host = parts.netloc.rpartition("@")[2]
    password = node_password(node_id=node.pk, join_secret=join_secret)
    return urlunsplit(parts._replace(netloc=f"{user_name(node.pk)}:{password}@{host}"))


def node_password(*, node_id: str, join_secret: str) -> str:
    return node_secret(join_secret=join_secret, node_id=node_id, purpose="broker")


def password_hash(password: str) -> str:
    """As Redis keeps it: SHA-256 in hex."""
    return hashlib.sha256(password.encode()).hexdigest()


def user_name(node_id: str) -> str:
    return _PREFIX + node_id


def set_broker_user(node: Node) -> None:
    """Give the node its user, with the password it has now; doing so again changes nothing.

    Raises
    ------
    BrokerUnfit
        When Redis refuses or does not answer.
    """
    if settings.NODE_BROKER_SHARED or not node.broker_password_hash:
        return
    try:
        with Redis.from_url(settings.REDIS_URL) as client:
            _set_user(client, node)
    except RedisError as error:
        raise BrokerUnfit(
            f"Redis gives nodes no users of their own ({error}). Use a Redis of version 6 or later "
            "whose user may run ACL, or set NODE_BROKER_SHARED=1 where every node is trusted."
        ) from error


def delete_broker_user(node: Node) -> None:
    """Take the node's user away and end its connections; without Redis the sweep does it later."""
    if settings.NODE_BROKER_SHARED:
        return
    try:
        with Redis.from_url(settings.REDIS_URL) as client:
            client.acl_deluser(user_name(node.pk))
    except RedisError:
        log.warning("the broker user of %s is still there", node.pk, exc_info=True)


def restore_broker_users(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Put back the users that Redis lost, and drop those without a right; the changed nodes.

    A node that has left has none, and one whose credentials were revoked.
    """
    if settings.NODE_BROKER_SHARED:
        return ()
    changed = []
    with Redis.from_url(settings.REDIS_URL, decode_responses=True) as client:
        known = {name for name in map(str, client.acl_users()) if name.startswith(_PREFIX)}
        for node in nodes:
            name = user_name(node.pk)
            if node.status == NodeStatus.LEFT or not node.broker_password_hash:
                if name in known:
                    client.acl_deluser(name)
                    changed.append(node.pk)
            elif name not in known:
                _set_user(client, node)
                changed.append(node.pk)
    return tuple(changed)


def _set_user(client: Redis, node: Node) -> None:
    # Ids have one length, so no node's queue begins with another's.
    keys = (
        f"~{node.queue}*",
        f"~_kombu.binding.{node.queue}",
        f"~_kombu.binding_permanent.{node.queue}",
    )
    client.execute_command(
        *("ACL", "SETUSER", user_name(node.pk)),
        *("reset", "on", f"#{node.broker_password_hash}", *keys, *_COMMANDS),
    )
