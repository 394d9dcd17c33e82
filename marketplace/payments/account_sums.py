"""Sums of accounts: the sealed sum of each, and what its postings added since."""

from __future__ import annotations

from django.db.models import F, OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce

from marketplace.payments.models import LedgerAccount, Posting


def annotate_totals(accounts: QuerySet[LedgerAccount]) -> QuerySet[LedgerAccount]:
    """Add ``total``, the sum of each account's postings, at a cost that does not grow with them."""
    since = (
        Posting.objects.filter(account=OuterRef("pk"), entry__unsealed__isnull=False)
        .values("account")
        .annotate(total=Sum("amount_micros"))
        .values("total")
    )
    return accounts.annotate(
        total=Coalesce(F("sealed__amount_micros"), 0) + Coalesce(Subquery(since), 0)
    )


def annotate_all_totals(accounts: QuerySet[LedgerAccount]) -> QuerySet[LedgerAccount]:
    """Add the same ``total``, from every posting that there is."""
    return accounts.annotate(total=Coalesce(Sum("postings__amount_micros"), 0))
