"""Sums of accounts: the sealed sums of each, and what its postings added since."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC

from django.db.models import DateField, OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import Cast, Coalesce, TruncMonth

from marketplace.payments.models import LedgerAccount, Posting, SealedKindSum, SealedSum


def annotate_totals(accounts: QuerySet[LedgerAccount]) -> QuerySet[LedgerAccount]:
    """Add ``total``, the sum of each account's postings, at a cost that grows with months only."""
    sealed, since = (
        rows.filter(account=OuterRef("pk"))
        .values("account")
        .annotate(total=Sum("amount_micros"))
        .values("total")
        for rows in (SealedSum.objects.all(), _list_unsealed())
    )
    return accounts.annotate(total=Coalesce(Subquery(sealed), 0) + Coalesce(Subquery(since), 0))


def annotate_all_totals(accounts: QuerySet[LedgerAccount]) -> QuerySet[LedgerAccount]:
    """Add the same ``total``, from every posting that there is."""
    return accounts.annotate(total=Coalesce(Sum("postings__amount_micros"), 0))


def sum_by_month(
    accounts: QuerySet[LedgerAccount] | None = None,
) -> dict[tuple[str, str], int]:
    """What was booked to accounts, or to all, by their kind and by month like ``2026-03``.

    Of all it reads a row for each kind and month, however many accounts there are; of some a row
    for each account and month; and what is not sealed yet. That is one statement: so nothing is in
    both parts, or in neither, that is sealed meanwhile.
    """
    booked_in = Cast(TruncMonth("entry__booked_at", tzinfo=UTC), DateField())
    since = _list_unsealed().annotate(month=booked_in)
    if accounts is None:
        sealed = SealedKindSum.objects.values_list("kind", "month")
    else:
        sealed = SealedSum.objects.filter(account__in=accounts)
        sealed = sealed.values_list("account__kind", "month")
        since = since.filter(account__in=accounts)
    sealed = sealed.annotate(total=Sum("amount_micros"))
    since = since.values_list("account__kind", "month").annotate(total=Sum("amount_micros"))
    sums: defaultdict[tuple[str, str], int] = defaultdict(int)
    for kind, month, total in sealed.union(since, all=True):
        sums[kind, f"{month:%Y-%m}"] += total
    return sums


def _list_unsealed() -> QuerySet[Posting]:
    return Posting.objects.filter(entry__unsealed__isnull=False)
