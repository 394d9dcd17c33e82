"""The client of the payment gateway, Stripe: its version, its faults in our words, its ids."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import stripe
from django.conf import settings
from stripe import StripeClient

from marketplace.common.errors import MarketFault, NotAllowed, NotFound, UserError

#: What the requests and the answers look like; the client's own.
API_VERSION = "2026-10-28.endive"
#: Seconds that one call may take.
TIMEOUT_S = 20.0
#: Names our row in the gateway's objects.
OUR_ROW = "finetender"
Answer = TypeVar("Answer")
Listed = TypeVar("Listed", bound=stripe.StripeObject)


class GatewayFault(MarketFault):
    """The gateway is down or answered a fault; what it did is not known."""

    def __init__(self, message: str, *, is_kept: bool) -> None:
        super().__init__(message)
        #: Whether the same idempotency key would be answered with the same fault.
        self.is_kept = is_kept


class GatewayRefused(UserError):
    """The gateway's answer is no."""

    default_status = 402


def is_configured() -> bool:
    """Whether this market takes cards."""
    return bool(settings.STRIPE_SECRET_KEY)


def is_test_money() -> bool:
    """Whether the gateway is the stand-in, which charges no card."""
    return bool(settings.STRIPE_API_URL)


def call_gateway(call: Callable[[], Answer]) -> Answer:
    """Make one call and put its failures into our words."""
    try:
        return call()
    except stripe.APIConnectionError as error:
        raise GatewayFault(f"the gateway did not answer: {error}", is_kept=False) from None
    except stripe.RateLimitError as error:
        raise GatewayFault(f"the gateway wants fewer calls: {error}", is_kept=False) from None
    except (stripe.CardError, stripe.InvalidRequestError, stripe.IdempotencyError) as error:
        # 409: the first call with this key is still at work, or a lock timed out.
        if error.http_status == 409:
            raise GatewayFault(f"the gateway is at it: {error}", is_kept=False) from None
        decline_code = error.error and error.error.to_dict().get("decline_code")
        code = str(decline_code or error.code or "gateway_refused")
        message = error.user_message or "The gateway refused the payment."
        if error.code == "resource_missing":
            raise NotFound("unknown_at_gateway", message) from None
        raise GatewayRefused(code, message, extra={"code": error.code or ""}) from None
    except (stripe.AuthenticationError, stripe.PermissionError) as error:
        raise GatewayFault(f"the gateway does not take our key: {error}", is_kept=False) from None
    except stripe.StripeError as error:
        raise GatewayFault(f"the gateway failed: {error}", is_kept=True) from None


def find_named(name: str, start: Callable[[], stripe.ListObject[Listed]]) -> Listed | None:
    """The object of a list that names our row so, on whichever of its pages."""
    return call_gateway(
        lambda: next(
            (found for found in start().auto_paging_iter() if read_row_name(found) == name), None
        )
    )


def get_client() -> StripeClient:
    return _make_client(settings.STRIPE_SECRET_KEY, settings.STRIPE_API_URL)


@cache
def _make_client(secret_key: str, api_url: str) -> StripeClient:
    if not secret_key:
        raise NotAllowed("no_cards", "This market takes no cards.")
    # Repeats are the outbox's: it knows what to look for before the next attempt.
    return StripeClient(
        secret_key,
        stripe_version=API_VERSION,
        base_addresses={"api": api_url} if api_url else {},
        max_network_retries=0,
        http_client=stripe.RequestsClient(timeout=TIMEOUT_S),
    )


def read_row_name(found: Any) -> str:
    """Our row, as the gateway's object names it."""
    return getattr(found.metadata, OUR_ROW, "") or ""


def read_id(value: Any) -> str:
    """The id of an object that may stand there whole."""
    return value if isinstance(value, str) else getattr(value, "id", "") or ""
