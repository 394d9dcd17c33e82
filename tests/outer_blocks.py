"""Transactions that tests open around what the market does in transactions of its own."""

from __future__ import annotations

from django.db import transaction
from django.db.transaction import Atomic


def build_outer_block() -> Atomic:
    """A transaction that the market's durable blocks may be nested in."""
    block = transaction.atomic()
    # As Django's own test cases mark theirs.
    block._from_testcase = True  # type: ignore[attr-defined]
    return block
