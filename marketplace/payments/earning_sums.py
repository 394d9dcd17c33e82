"""Whether the sums of earnings are those of their lines, which a trigger sees to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.db.models import Count, DateTimeField, Func, Sum, Value

from marketplace.payments.models import Earning, EarningSum


def find_wrong_sums() -> tuple[str, ...]:
    """Organisations of which the sum of a quarter of an hour is not that of its earnings."""
    quarter, origin = timedelta(minutes=15), datetime(2000, 1, 1, tzinfo=UTC)
    begins = Func(
        Value(quarter),
        "accrued_at",
        Value(origin),
        function="date_bin",
        output_field=DateTimeField(),
    )
    lines = Earning.objects.filter(returned_at=None).values("organisation", starts_at=begins)
    summed = lines.annotate(amount_micros=Sum("amount_micros"), lines=Count("pk"))
    columns = ("organisation", "starts_at", "amount_micros", "lines")
    stored = EarningSum.objects.filter(lines__gt=0).values_list(*columns)
    found = summed.values_list(*columns)
    wrong = stored.difference(found).union(found.difference(stored))
    return tuple(sorted({row[0] for row in wrong}))
