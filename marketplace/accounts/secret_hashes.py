"""How secrets of API keys and invitations are stored: as their hashes."""

import hashlib


def hash_secret(secret: str) -> str:
    """A secret is long and random: one round is enough, and the hash finds its row."""
    return hashlib.sha256(secret.encode()).hexdigest()
