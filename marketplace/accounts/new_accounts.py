"""Organisations that nobody knows yet: for some days they may spend, store and run less.

One that an operator trusts, or that an operator belongs to, is not new.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.conf import settings

from marketplace.accounts.models import Organisation
from marketplace.common.ttl_cache import TtlCache

#: Others may store this many times what a new organisation may.
STORAGE_DIVISOR = 4
#: Seconds that an answer may be old: each batch of bids asks.
_KNOWN_S = 30.0
_known: TtlCache[bool] = TtlCache(for_s=_KNOWN_S)


def filter_new(organisation_ids: Iterable[str], *, now: datetime) -> set[str]:
    """Those of the organisations that are new, as of half a minute ago."""
    if not settings.NEW_ACCOUNT_DAYS:
        return set()
    since = now - timedelta(days=settings.NEW_ACCOUNT_DAYS)

    def read(ids: list[str]) -> dict[str, bool]:
        young = Organisation.objects.filter(pk__in=ids, created_at__gt=since, trusted_at=None)
        found = set(young.exclude(members__is_operator=True).values_list("pk", flat=True))
        return {pk: pk in found for pk in ids}

    answers = _known.get_many(organisation_ids, now=now, read=read)
    return {pk for pk, is_new in answers.items() if is_new}
