"""Who allows what: an organisation, then a data set, then an adapter, the nearest word counts."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import BooleanField, F, OuterRef, Q, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce

from marketplace.accounts.models import Organisation
from marketplace.common.errors import NotFound
from marketplace.jobs.models import Dataset
from marketplace.jobs.services import withdraw_start
from marketplace.warm.locks import lock_offers
from marketplace.warm.models import Consent, DatasetConsent, Donor, Offer

#: Donors that others' jobs may begin with where their owners give them.
IS_FIT = Q(has_memorised=False, builds_on_others=False, did_harm=False)


def set_consent(
    *, organisation: Organisation, uses_donors: bool, gives_adapters: bool, now: datetime
) -> Consent:
    """Say what holds for all data sets and adapters of an organisation that say nothing else."""
    with transaction.atomic():
        consent, _ = Consent.objects.update_or_create(
            organisation=organisation,
            defaults={
                "uses_donors": uses_donors,
                "gives_adapters": gives_adapters,
                "changed_at": now,
            },
        )
        end_withdrawn_starts(Offer.objects.filter(donor__organisation=organisation), now=now)
    return consent


def set_dataset_consent(
    *, dataset: Dataset, uses_donors: bool | None, gives_adapters: bool | None, now: datetime
) -> DatasetConsent:
    """Say what holds for jobs on a data set; ``None``: as the organisation."""
    with transaction.atomic():
        consent, _ = DatasetConsent.objects.update_or_create(
            dataset=dataset,
            defaults={"uses_donors": uses_donors, "gives_adapters": gives_adapters},
        )
        end_withdrawn_starts(Offer.objects.filter(donor__job__dataset=dataset), now=now)
    return consent


def set_adapter_consent(
    *, organisation: Organisation, job_id: str, is_given: bool | None, now: datetime
) -> Donor:
    """Give an adapter to others' jobs, or withdraw it; ``None``: as its data set.

    A withdrawal ends offers; a job that was sold one and has not begun does without the adapter.

    Raises
    ------
    NotFound
        ``unknown_donor``: the organisation has no such adapter.
    """
    donor = Donor.objects.filter(organisation=organisation, job_id=job_id).first()
    if donor is None:
        raise refuse_unknown_donor()
    with transaction.atomic():
        donor.is_given = is_given
        donor.save(update_fields=["is_given"])
        end_withdrawn_starts(Offer.objects.filter(donor=donor), now=now)
    return donor


def refuse_unknown_donor() -> NotFound:
    """Say that there is no such adapter, or that none could begin with it."""
    return NotFound("unknown_donor", "You have no such adapter that a job could begin with.")


def end_withdrawn_starts(offers: QuerySet[Offer], *, now: datetime) -> int:
    """Have jobs that have not begun do without an adapter withdrawn since; of how many.

    The lane calls it when it opens jobs, and a withdrawal after it is stored. Both hold the offers,
    so that one of them sees what the other did. Call in a transaction.
    """
    sold = offers.filter(bid_id__isnull=False, measured_at=None)
    others = sold.exclude(donor__organisation=F("organisation"))
    held = lock_offers(offer_ids=set(others.values_list("pk", flat=True)))
    donors = Donor.objects.filter(pk__in={offer.donor_id for offer in held})
    given = set(filter_given(donors).values_list("pk", flat=True))
    return sum(
        withdraw_start(bid_id=offer.bid_id, now=now)
        for offer in held
        if offer.donor_id not in given and offer.bid_id is not None
    )


def may_use_donors(dataset: Dataset) -> bool:
    """Whether jobs on a data set may begin with adapters of others."""
    own = DatasetConsent.objects.filter(dataset=dataset).first()
    if own is not None and own.uses_donors is not None:
        return own.uses_donors
    consent = Consent.objects.filter(organisation_id=dataset.organisation_id).first()
    return consent is not None and consent.uses_donors


def filter_given(donors: QuerySet[Donor]) -> QuerySet[Donor]:
    """Fit donors that their owners give to other organisations' jobs."""
    return annotate_given(donors.filter(IS_FIT)).filter(given=True)


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
