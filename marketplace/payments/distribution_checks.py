"""Whether payments were shared out as their sealed entries say."""

from collections.abc import Iterable
from typing import Any, cast

from django.db.models import Exists, OuterRef, QuerySet, Subquery

from marketplace.payments.models import Distribution, Entry, EntryKind


def find_wrong_shares(entries: QuerySet[Entry], *, is_whole: bool) -> tuple[str, ...]:
    """References of holds whose distribution is another than its entry says, or is missing."""
    booked = entries.filter(kind=EntryKind.DISTRIBUTION)
    rows = Distribution.objects.filter(hold__reference=OuterRef("reference"))
    missing = booked.filter(~Exists(rows)).order_by("pk").values_list("reference", flat=True)
    said = Entry.objects.filter(kind=EntryKind.DISTRIBUTION, reference=OuterRef("hold__reference"))
    shared = Distribution.objects.annotate(said=Subquery(said.values("memo")))
    if not is_whole:
        shared = shared.filter(hold__reference__in=booked.values("reference"))
    noted = cast("Iterable[Any]", shared.select_related("hold").order_by("pk").iterator())
    # Where nothing was left to be shared out there is no entry.
    wrong = (row.hold.reference for row in noted if row.said not in (None, row.described))
    return (*missing, *wrong)
