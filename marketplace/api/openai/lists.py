"""Pages of lists as OpenAI's clients turn them: ``?limit=20&after=<id of the last item>``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rest_framework.request import Request

from marketplace.common.errors import UserError
from marketplace.common.ids import ULID_LENGTH, is_id


def read_after(request: Request) -> str | None:
    """The ULID of the id that a page begins after; only its form is looked at.

    Raises
    ------
    UserError
        ``invalid_cursor``.
    """
    after = request.query_params.get("after")
    if after is None:
        return None
    if not is_id(after):
        raise invalid_cursor()
    return after[-ULID_LENGTH:]


def invalid_cursor() -> UserError:
    return UserError(
        "invalid_cursor",
        "'after' must be the id of the last item of the page before.",
        param="after",
    )


def build_list(
    found: Sequence[Any],
    *,
    limit: int,
    show: Callable[[Sequence[Any]], list[dict[str, Any]]],
    has_ends: bool = False,
) -> dict[str, Any]:
    """A page of the first ``limit`` items, with whether ``found`` has more.

    ``has_ends`` adds the ids of its first and last item.
    """
    data = show(found[:limit])
    page: dict[str, Any] = {"object": "list", "data": data, "has_more": len(found) > limit}
    if has_ends:
        page["first_id"] = data[0]["id"] if data else None
        page["last_id"] = data[-1]["id"] if data else None
    return page
