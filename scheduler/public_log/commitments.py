"""Commitments: what stands in the chain for a bid, and for what would tell of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from .canonical_json import serialize_canonical


def compute_commitment(*, bid: float, salt: str) -> str:
    """Give what stands for a bid in the chain: it can be opened, not guessed."""
    return _commit(serialize_canonical(float(bid)), salt=salt)


def commit_private(hidden: Mapping[str, Any], *, salt: str) -> str:
    """Give what stands in the chain for the parts of a decision that tell of its bid."""
    return _commit(serialize_canonical(hidden), salt=salt)


def _commit(text: str, *, salt: str) -> str:
    return hashlib.sha256(f"{salt}|{text}".encode()).hexdigest()
