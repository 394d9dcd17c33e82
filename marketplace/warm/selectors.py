"""What may be asked about donors and warm starts; nothing here writes."""

from __future__ import annotations

from django.db.models import Sum

from marketplace.accounts.models import Organisation
from marketplace.jobs.models import Dataset, Job
from marketplace.warm.consents import annotate_given
from marketplace.warm.models import Consent, DatasetConsent, Donor, Offer


def find_donor(job: Job) -> Donor | None:
    """A job's adapter as a donor, with ``given``: whether others' jobs may begin with it."""
    return annotate_given(Donor.objects.filter(job=job)).first()


def list_starts_from(job: Job) -> list[Offer]:
    """Warm starts that ended and began with a job's adapter."""
    offers = Offer.objects.filter(donor__job=job, job__isnull=False).select_related("job")
    return list(offers.order_by("-measured_at"))


def get_consent(organisation: Organisation) -> Consent:
    """What an organisation allows; nothing where it has said nothing."""
    found = Consent.objects.filter(organisation=organisation).first()
    return found or Consent(organisation=organisation)


def get_dataset_consent(dataset: Dataset) -> DatasetConsent:
    """What is said otherwise for a data set."""
    found = DatasetConsent.objects.filter(dataset=dataset).first()
    return found or DatasetConsent(dataset=dataset)


def list_royalties(organisation: Organisation, *, most: int = 20) -> tuple[int, list[Offer]]:
    """All that an organisation's adapters earned, and the latest starts that earned it."""
    paid = Offer.objects.filter(donor__organisation=organisation, royalty_paid_micros__gt=0)
    total = paid.aggregate(total=Sum("royalty_paid_micros"))["total"] or 0
    return total, list(paid.select_related("donor__job").order_by("-measured_at")[:most])
