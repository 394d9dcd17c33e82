"""Who allows what: an organisation, then a data set, then an adapter, the nearest word counts."""

from __future__ import annotations

from datetime import datetime

from django.db.models import BooleanField, OuterRef, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce

from marketplace.accounts.models import Organisation
from marketplace.common.errors import NotFound
from marketplace.jobs.models import Dataset
from marketplace.warm.models import Consent, DatasetConsent, Donor


def set_consent(
    *, organisation: Organisation, uses_donors: bool, gives_adapters: bool, now: datetime
) -> Consent:
    """Say what holds for all data sets and adapters of an organisation that say nothing else."""
    consent, _ = Consent.objects.update_or_create(
        organisation=organisation,
        defaults={
            "uses_donors": uses_donors,
            "gives_adapters": gives_adapters,
            "changed_at": now,
        },
    )
    return consent


def set_dataset_consent(
    *, dataset: Dataset, uses_donors: bool | None, gives_adapters: bool | None
) -> DatasetConsent:
    """Say what holds for jobs on a data set; ``None``: as the organisation."""
    consent, _ = DatasetConsent.objects.update_or_create(
        dataset=dataset,
        defaults={"uses_donors": uses_donors, "gives_adapters": gives_adapters},
    )
    return consent


def set_adapter_consent(*, organisation: Organisation, job_id: str, is_given: bool | None) -> Donor:
    """Give an adapter to others' jobs, or withdraw it; ``None``: as its data set.

    A withdrawal ends offers that no job has begun with.

    Raises
    ------
    NotFound
        ``unknown_donor``: the organisation has no such adapter.
    """
    donor = Donor.objects.filter(organisation=organisation, job_id=job_id).first()
    if donor is None:
        raise NotFound("unknown_donor", "You have no such adapter that a job could begin with.")
    donor.is_given = is_given
    donor.save(update_fields=["is_given"])
    return donor


def may_use_donors(dataset: Dataset) -> bool:
    """Whether jobs on a data set may begin with adapters of others."""
    own = DatasetConsent.objects.filter(dataset=dataset).first()
    if own is not None and own.uses_donors is not None:
        return own.uses_donors
    consent = Consent.objects.filter(organisation_id=dataset.organisation_id).first()
    return consent is not None and consent.uses_donors


def filter_given(donors: QuerySet[Donor]) -> QuerySet[Donor]:
    """Donors whose owners give them to others' jobs, and in which the scan found no text."""
    return annotate_given(donors).filter(given=True, has_memorised=False)


def annotate_given(donors: QuerySet[Donor]) -> QuerySet[Donor]:
    """The same donors with ``given``: what their owners say of them."""
    of_dataset = DatasetConsent.objects.filter(dataset=OuterRef("job__dataset"))
    of_owner = Consent.objects.filter(organisation=OuterRef("organisation"))
    said = Coalesce(
        "is_given",
        Subquery(of_dataset.values("gives_adapters")[:1]),
        Subquery(of_owner.values("gives_adapters")[:1]),
        Value(False),
        output_field=BooleanField(),
    )
    return donors.annotate(given=said)
