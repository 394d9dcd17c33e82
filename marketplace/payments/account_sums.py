"""Sums of accounts: the sealed sums of each, and what its postings added since."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC

from django.db.models import DateField, OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import Cast, Coalesce, TruncMonth

from marketplace.payments.models import LedgerAccount, Posting, SealedSum


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


def sum_by_month(accounts: QuerySet[LedgerAccount]) -> dict[tuple[str, str], int]:
    """What was booked to accounts, by their kind and by month like ``2026-03``.

    It reads a row for each account and month, and what is not sealed yet, in one statement: so
    nothing is in both parts, or in neither, that is sealed meanwhile.
    """
    booked_in = Cast(TruncMonth("entry__booked_at", tzinfo=UTC), DateField())
    sealed, since = (
        rows.filter(account__in=accounts)
        .values_list("account__kind", "month")
        .annotate(total=Sum("amount_micros"))
        for rows in (SealedSum.objects.all(), _list_unsealed().annotate(month=booked_in))
    )
    sums: defaultdict[tuple[str, str], int] = defaultdict(int)
    for kind, month, total in sealed.union(since, all=True):
        sums[kind, f"{month:%Y-%m}"] += total
    return sums


def _list_unsealed() -> QuerySet[Posting]:
    return Posting.objects.filter(entry__unsealed__isnull=False)
