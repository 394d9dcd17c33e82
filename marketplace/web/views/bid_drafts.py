"""The draft of a bid: what the form last sent stays with the session, until it is placed.

So a way to the wallet, another day and Back lose neither data nor settings; a sign-out does. The
form sends itself when they change and when the quote is renewed: a name or limit that was typed
since is not kept.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.http import QueryDict

from marketplace.web.views.requests import PageRequest

_DRAFT = "bid_draft"
#: What is of one submission.
_NOT_KEPT = ("csrfmiddlewaretoken", "do", "key", "file", "upload", "pay", "card", "asks_price")
#: Prices and models are others by then.
_KEPT_FOR = timedelta(days=7)
#: More than any form has; a session is no store of files.
_LENGTH_MAX = 20_000


def keep_draft(request: PageRequest, fields: QueryDict, *, now: datetime) -> None:
    """Keep what the form holds, in place of what it held before."""
    kept = {name: values for name, values in fields.lists() if name not in _NOT_KEPT}
    if not any(kept.get(name, [""])[0] for name in ("dataset", "price")):
        return
    if sum(len(name) + sum(map(len, values)) for name, values in kept.items()) > _LENGTH_MAX:
        return
    request.session[_DRAFT] = {
        "organisation": request.organisation.pk,
        "at": now.timestamp(),
        "fields": kept,
    }


def find_draft(request: PageRequest, *, now: datetime, key: str) -> QueryDict | None:
    """Give the draft as the form sends it, for another submission; an address that asks wins."""
    draft: dict[str, Any] = request.session.get(_DRAFT) or {}
    if request.GET or draft.get("organisation") != request.organisation.pk:
        return None
    if now.timestamp() - draft["at"] > _KEPT_FOR.total_seconds():
        return None
    fields = QueryDict(mutable=True)
    for name, values in draft["fields"].items():
        fields.setlist(name, values)
    fields["key"] = key
    return fields


def drop_draft(request: PageRequest) -> None:
    """Forget the draft: it was placed, or its owner begins again."""
    request.session.pop(_DRAFT, None)
