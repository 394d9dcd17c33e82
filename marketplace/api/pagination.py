"""Pages of a list, newest first: ``?limit=20&after=<id of the last item>``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.db.models import QuerySet
from rest_framework.request import Request

from marketplace.common.errors import UserError
from marketplace.common.ids import is_id

LIMIT_DEFAULT = 20
LIMIT_MAX = 100


def build_page(
    request: Request,
    rows: QuerySet[Any],
    show: Callable[[Sequence[Any]], list[dict[str, Any]]],
) -> dict[str, Any]:
    """One page of ``rows``, which have ids that sort by time.

    A page begins after an id, not at a number, so rows that arrive while
    somebody turns pages neither repeat nor hide any.
    """
    limit = read_page_limit(request)
    after = request.query_params.get("after")
    rows = rows.order_by("-pk")
    if after is not None:
        # Only its form is looked at: whether somebody else has such a row is not to be learnt.
        if not is_id(after):
            raise UserError(
                "invalid_cursor",
                "'after' must be the id of the last item of the page before.",
                param="after",
            )
        rows = rows.filter(pk__lt=after)
    found = list(rows[: limit + 1])
    return {"data": show(found[:limit]), "has_more": len(found) > limit}


def read_page_limit(request: Request) -> int:
    text = request.query_params.get("limit", str(LIMIT_DEFAULT))
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= LIMIT_MAX:
        raise UserError(
            "invalid_limit", f"'limit' must be a number from 1 to {LIMIT_MAX}.", param="limit"
        )
    return int(text)
