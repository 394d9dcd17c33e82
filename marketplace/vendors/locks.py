"""The only row locks of this app: a job before its preparation, and that before its rows."""

from __future__ import annotations

from collections.abc import Collection

from django.db import connection
from django.db.models import QuerySet

from marketplace.jobs.locks import lock_job
from marketplace.vendors.models import (
    DataPlan,
    Dispute,
    Preparation,
    RowOpinion,
    Vendor,
    WorkRow,
)


def lock_preparation(preparation_id: str) -> Preparation:
    """A preparation as it is now, after locking its job."""
    found = Preparation.objects.select_related("vendor", "source")
    job = lock_job(Preparation.objects.values_list("job_id", flat=True).get(pk=preparation_id))
    held = found.select_for_update(of=("self",), no_key=True).get(pk=preparation_id)
    held.job = job
    return held


def share_preparation(preparation_id: str) -> Preparation:
    """A preparation that stays as it is until the transaction ends; several may share it.

    People who edit rows share it; who hands the rows in waits for them.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id FROM vendors_preparation WHERE id = %s FOR SHARE", [preparation_id]
        )
    return Preparation.objects.select_related("vendor").get(pk=preparation_id)


def lock_row(preparation_id: str, number: int) -> WorkRow | None:
    rows = WorkRow.objects.select_for_update(of=("self",), no_key=True)
    return (
        rows.select_related("leased_by").filter(preparation=preparation_id, number=number).first()
    )


def lock_first_row(rows: QuerySet[WorkRow]) -> WorkRow | None:
    """The first of these that no other transaction has locked."""
    return rows.select_for_update(of=("self",), no_key=True, skip_locked=True).first()


def lock_free_rows(rows: QuerySet[WorkRow]) -> list[WorkRow]:
    """Those of these that no other transaction has locked, by number."""
    held = rows.select_for_update(of=("self",), no_key=True, skip_locked=True)
    return list(held.order_by("number"))


def lock_rows(row_ids: Collection[int]) -> dict[int, WorkRow]:
    rows = WorkRow.objects.select_for_update(of=("self",), no_key=True).filter(pk__in=row_ids)
    return {row.pk: row for row in rows.order_by("pk")}


def lock_opinion(opinion_id: int) -> RowOpinion:
    """A row's second opinion. Call while holding its preparation."""
    return RowOpinion.objects.select_for_update(no_key=True).get(pk=opinion_id)


def lock_open_dispute(preparation: Preparation) -> Dispute | None:
    """The dispute about a preparation. Call while holding the preparation."""
    open_ones = Dispute.objects.filter(preparation=preparation, decided_at__isnull=True)
    return open_ones.select_for_update(of=("self",), no_key=True).first()


def lock_vendor(vendor_id: str) -> Vendor:
    return Vendor.objects.select_for_update(no_key=True).get(pk=vendor_id)


def lock_plan(plan_id: str) -> DataPlan | None:
    """Lock a plan, if it is still there. Call in a transaction."""
    return DataPlan.objects.select_for_update().filter(pk=plan_id).first()
