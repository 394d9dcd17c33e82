"""Whether payments were shared out as their sealed entries say."""

from collections.abc import Iterable
from typing import Any, cast

from django.db.models import Exists, OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce

from marketplace.payments.models import AccountKind, Distribution, Entry, EntryKind, Posting


def find_wrong_shares(entries: QuerySet[Entry], *, is_whole: bool) -> tuple[str, ...]:
    """References of holds whose distribution is another than its entry says, or is missing.

    One that has no entry is found by the whole check only: nothing sealed leads to it.
    """
    booked = entries.filter(kind=EntryKind.DISTRIBUTION)
    rows = Distribution.objects.filter(hold__reference=OuterRef("reference"))
    missing = booked.filter(~Exists(rows)).order_by("pk").values_list("reference", flat=True)
    said = Entry.objects.filter(kind=EntryKind.DISTRIBUTION, reference=OuterRef("hold__reference"))
    shared = Distribution.objects.annotate(said=Subquery(said.values("memo")))
    if not is_whole:
        shared = shared.filter(hold__reference__in=booked.values("reference"))
    noted = cast("Iterable[Any]", shared.select_related("hold").order_by("pk").iterator())
    return (*missing, *(row.hold.reference for row in noted if not _is_right(row, row.said)))


def _is_right(row: Distribution, said: str | None) -> bool:
    """Whether a distribution is what its entry says of it.

    There is none where nothing was left to be shared out: then all went back, and the market bore
    nothing but a credit, which has an entry of its own.
    """
    if said is not None:
        return row.described == said
    credited = Posting.objects.filter(
        entry__kind=EntryKind.SLA_CREDIT,
        entry__reference=row.hold.reference,
        account__kind=AccountKind.SLA_CREDITS,
    ).aggregate(total=Coalesce(Sum("amount_micros"), 0))["total"]
    is_borne = row.borne_credit_micros in (0, -credited)
    is_blamed = row.at_fault_id is None or row.borne_credit_micros > 0
    return row.hold.distributed_at is not None and row.is_empty and is_borne and is_blamed
