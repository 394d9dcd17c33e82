"""What a provider may ask, and when."""

from __future__ import annotations

from datetime import datetime

from marketplace.common.errors import UserError

#: A thousand dollars a slot: above it, a slip of the keyboard.
ASK_LIMIT_MICROS = 1_000 * 1_000_000


def check_ask(ask_micros: int) -> None:
    """Refuse an ask that is negative or beyond the limit, with ``invalid_ask``."""
    if not 0 <= ask_micros <= ASK_LIMIT_MICROS:
        raise UserError(
            "invalid_ask",
            f"An ask is from 0 to {ASK_LIMIT_MICROS // 1_000_000} dollars per slot.",
            param="ask",
        )


def check_availability(from_at: datetime | None, until_at: datetime | None, now: datetime) -> None:
    """Refuse an availability that is over before it starts, with ``invalid_availability``."""
    if until_at is not None and until_at <= max(now, from_at or now):
        raise UserError(
            "invalid_availability",
            "The end of the availability must be in the future and after its start.",
            param="available_until_at",
        )
