"""What may be asked about donors and warm starts; nothing here writes."""

from __future__ import annotations

from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet, Sum

from marketplace.accounts.models import Organisation
from marketplace.jobs.models import Dataset, Job
from marketplace.warm.consents import IS_FIT, annotate_given, refuse_unknown_donor
from marketplace.warm.models import Consent, DatasetConsent, Donor, Offer


def find_donor(job: Job) -> Donor | None:
    """A job's adapter as a donor, with ``given``: whether others' jobs may begin with it.

    ``is_offered``: it is given, and fit for it.
    """
    donors = annotate_given(Donor.objects.filter(job=job))
    is_offered = ExpressionWrapper(IS_FIT & Q(given=True), output_field=BooleanField())
    return donors.annotate(is_offered=is_offered).first()


def get_donor(job: Job) -> Donor:
    """As ``find_donor``.

    Raises
    ------
    NotFound
        ``unknown_donor``.
    """
    found = find_donor(job)
    if found is None:
        raise refuse_unknown_donor()
    return found


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


def list_royalties(organisation: Organisation) -> QuerySet[Offer]:
    """Starts of others' jobs with an organisation's adapters that it was paid for."""
    paid = Offer.objects.filter(donor__organisation=organisation, royalty_paid_micros__gt=0)
    return paid.select_related("donor__job")


def sum_royalties(paid: QuerySet[Offer]) -> int:
    """All that those starts earned."""
    return paid.aggregate(total=Sum("royalty_paid_micros", default=0))["total"]
