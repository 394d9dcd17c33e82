"""Secrets of API keys and invitations: how long they are, and their hashes, which are stored."""

import hashlib

#: Random bytes of a secret.
SECRET_BYTES = 32


def hash_secret(secret: str) -> str:
    """A secret is long and random: one round is enough, and the hash finds its row."""
    return hashlib.sha256(secret.encode()).hexdigest()
