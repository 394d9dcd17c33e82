"""What the stand-in knows, and what each call does to it."""

from __future__ import annotations

from marketplace.embedded.stripe_stand_in.connected_accounts import ConnectedAccounts
from marketplace.embedded.stripe_stand_in.doubts import Doubts
from marketplace.embedded.stripe_stand_in.payments import Payments
from marketplace.embedded.stripe_stand_in.taxes import Taxes


class Books(Payments, Doubts, ConnectedAccounts, Taxes):
    """All of it. Call its methods while holding the server's lock."""
