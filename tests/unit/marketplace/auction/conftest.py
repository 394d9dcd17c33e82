"""What the auction's tests share."""

from __future__ import annotations

import pytest

from marketplace.auction.pricing import solve


@pytest.fixture(autouse=True)
def no_rest(monkeypatch):
    """So that how long a solve takes on this machine does not decide when the next is due."""
    monkeypatch.setattr(solve, "REST", 0.0)
