"""The client of the payment gateway, Stripe: its version, its faults in our words, its ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from django.conf import settings

from marketplace.common.errors import MarketFault, NotAllowed, NotFound, UserError

if TYPE_CHECKING:
    import stripe

#: What the requests and the answers look like; the client's own.
API_VERSION = "2026-10-28.endive"
#: Seconds that one call may take.
TIMEOUT_S = 20.0
#: Names our row in the gateway's objects.
OUR_ROW = "finetender"
Answer = TypeVar("Answer")
Listed = TypeVar("Listed", bound="stripe.StripeObject")


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
    # The library takes 15 MB of every process; those that call no gateway never load it.
    import stripe

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


def find_named(
    names: Mapping[str, str], start: Callable[[], stripe.ListObject[Listed]]
) -> Listed | None:
    """The object of a list that has one of these names of our row, on whichever of its pages.

    ``names`` are by what ``name_row`` calls them, the row itself by nothing.
    """
    return call_gateway(
        lambda: next(
            (
                found
                for found in start().auto_paging_iter()
                if any(name and read_row_name(found, what) == name for what, name in names.items())
            ),
            None,
        )
    )


def get_client() -> stripe.StripeClient:
    return _make_client(settings.STRIPE_SECRET_KEY, settings.STRIPE_API_URL)


@cache
def _make_client(secret_key: str, api_url: str) -> stripe.StripeClient:
    import stripe

    if not secret_key:
        raise NotAllowed("no_cards", "This market takes no cards.")
    # Repeats are the outbox's: it knows what to look for before the next attempt.
    return stripe.StripeClient(
        secret_key,
        stripe_version=API_VERSION,
        base_addresses={"api": api_url} if api_url else {},
        max_network_retries=0,
        http_client=stripe.RequestsClient(timeout=TIMEOUT_S),
    )


def name_row(row_id: str, **more: object) -> dict[str, str]:
    """The metadata that names our row, and what a market that lost it needs to write it again."""
    known = {f"{OUR_ROW}_{what}": str(value) for what, value in more.items() if value != ""}
    return {OUR_ROW: row_id} | known


def read_row_name(found: Any, what: str = "") -> str:
    """Our row, or what else ``name_row`` wrote of it, as the gateway's object names it."""
    return getattr(found.metadata, f"{OUR_ROW}_{what}" if what else OUR_ROW, "") or ""


def read_id(value: Any) -> str:
    """The id of an object that may stand there whole."""
    return value if isinstance(value, str) else getattr(value, "id", "") or ""
