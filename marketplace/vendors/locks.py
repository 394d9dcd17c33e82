"""The only row locks of this app; a job is locked before its preparation."""

from __future__ import annotations

from django.db.models import QuerySet

from marketplace.jobs.locks import lock_job
from marketplace.vendors.models import Preparation, Vendor


def lock_preparation(preparation_id: str) -> Preparation:
    """A preparation as it is now, after locking its job."""
    found = Preparation.objects.select_related("vendor", "source")
    job = lock_job(Preparation.objects.values_list("job_id", flat=True).get(pk=preparation_id))
    held = found.select_for_update(of=("self",), no_key=True).get(pk=preparation_id)
    held.job = job
    return held


def lock_first(preparations: QuerySet[Preparation]) -> Preparation | None:
    """The first of these that no other worker holds at this moment."""
    return preparations.select_for_update(of=("self",), no_key=True, skip_locked=True).first()


def lock_vendor(vendor_id: str) -> Vendor:
    return Vendor.objects.select_for_update(no_key=True).get(pk=vendor_id)
