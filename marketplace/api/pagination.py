"""Pages of a list by age: ``?limit=20&after=<id of the last item>&order=asc``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from django.db.models import QuerySet
from rest_framework.request import Request

from marketplace.common.errors import UserError
from marketplace.common.ids import is_id

LIMIT_DEFAULT = 20
LIMIT_MAX = 100
#: Members of a query that choose rows. A list takes those that its view has among its ``queries``.
_CHOOSING = {
    "name": "name",
    "zone": "zone__name",
    "created_after": "created_at__gte",
    "created_before": "created_at__lt",
}


def build_page(
    request: Request,
    rows: QuerySet[Any],
    show: Callable[[Sequence[Any]], list[dict[str, Any]]],
) -> dict[str, Any]:
    """One page of ``rows``, which have ids that sort by time.

    A page begins after an id, not at a number, so rows that arrive while
    somebody turns pages neither repeat nor hide any.

    Raises
    ------
    UserError
        ``invalid_limit``, ``invalid_cursor``, ``invalid_order`` or ``invalid_moment``.
    """
    limit = read_limit(request)
    after = request.query_params.get("after")
    order = request.query_params.get("order", "desc")
    if order not in ("desc", "asc"):
        raise UserError("invalid_order", "An order is 'desc' or 'asc'.", param="order")
    rows = _choose(request, rows).order_by("pk" if order == "asc" else "-pk")
    if after is not None:
        # Only its form is looked at: whether somebody else has such a row is not to be learnt.
        if not is_id(after):
            raise UserError(
                "invalid_cursor",
                "'after' must be the id of the last item of the page before.",
                param="after",
            )
        rows = rows.filter(**{"pk__gt" if order == "asc" else "pk__lt": after})
    found = list(rows[: limit + 1])
    return {"data": show(found[:limit]), "has_more": len(found) > limit}


def _choose(request: Request, rows: QuerySet[Any]) -> QuerySet[Any]:
    """Keep the rows that the query asks for."""
    for name, lookup in _CHOOSING.items():
        text = request.query_params.get(name)
        if text is not None:
            is_moment = name.startswith("created")
            # PostgreSQL takes no NUL in a text, and no row has one.
            value = read_moment(name, text) if is_moment else text.replace("\0", "")
            rows = rows.filter(**{lookup: value})
    return rows


def read_moment(name: str, text: str) -> datetime:
    """A moment with a time zone, in UTC.

    Raises
    ------
    UserError
        ``invalid_moment``.
    """
    if "T" in text:
        # A plus that was not escaped comes as a space.
        text = text.replace(" ", "+")
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is not None:
            return found.astimezone(UTC)
    except (ValueError, OverflowError):
        # Also what lies in another zone before the year 1 or after the year 9999.
        pass
    raise UserError(
        "invalid_moment",
        f"{name!r} must be a moment with a time zone, such as 2026-11-21T06:00:00Z.",
        param=name,
    )


def read_limit(request: Request, *, default: int = LIMIT_DEFAULT, most: int = LIMIT_MAX) -> int:
    """How many items a page shall have.

    Raises
    ------
    UserError
        ``invalid_limit``.
    """
    text = request.query_params.get("limit", str(default))
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(most))
    if not is_number or not 1 <= int(text) <= most:
        raise UserError(
            "invalid_limit", f"'limit' must be a number from 1 to {most}.", param="limit"
        )
    return int(text)


def read_number(request: Request, name: str) -> int | None:
    """A cursor that is a number; ``None`` without one.

    Raises
    ------
    UserError
        ``invalid_cursor``.
    """
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise UserError(
            "invalid_cursor", f"{name!r} must be the cursor of the last entry.", param=name
        )
    return int(text[:18])
