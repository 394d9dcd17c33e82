"""Secrets of nodes: random, shown once, kept as hashes.

They hold 256 random bits, so a plain SHA-256 cannot be searched and needs no salt.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from django.conf import settings

JOIN_PREFIX = "ftjoin_"
NODE_PREFIX = "ftnode_"
_BYTES = 32


def create_join_secret() -> str:
    return JOIN_PREFIX + secrets.token_urlsafe(_BYTES)


def create_node_secret() -> str:
    """A bearer token in place of an older one."""
    return NODE_PREFIX + secrets.token_urlsafe(_BYTES)


def create_session() -> str:
    """The name of a session; the node's token is what opens it."""
    return secrets.token_urlsafe(16)


def hash_secret(secret: str) -> str:
    # What somebody sends may hold half of a surrogate pair; no secret of ours does.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def derive_node_token(*, join_secret: str, node_id: str) -> str:
    """A node's first bearer token, derived so that a retried join gets the same one.

    Computing it takes both the join token and the site's ``SECRET_KEY``. So the answer to a join
    can be repeated if it was lost on the way, although no secret is stored.
    """
    message = "\0".join(("api", node_id, join_secret)).encode()
    return NODE_PREFIX + hmac.new(settings.SECRET_KEY.encode(), message, hashlib.sha256).hexdigest()


def hash_user(*, name: str, hostname: str) -> str:
    return hash_secret(f"{name}\0{hostname}")
