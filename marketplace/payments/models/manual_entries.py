"""What operators book themselves, and months that are closed."""

import pgtrigger
from django.conf import settings
from django.db import models
from django.db.models import F, Q

from marketplace.accounts.models import Organisation
from marketplace.common.models import IdField
from marketplace.payments.models.ledger import AccountKind, Entry


class ManualKind(models.TextChoices):
    #: Tax went from the house's bank to a tax office.
    TAX_PAID = "tax_paid", "Tax paid"
    #: Rent went from the house's bank to a supplier.
    RENT_PAID = "rent_paid", "Rent paid"
    #: What a contested or uncollected payment left is given up.
    WRITE_OFF = "write_off", "Write-off"
    #: An earlier entry was wrong.
    CORRECTION = "correction", "Correction"


class ManualEntry(models.Model):
    """An entry that one operator proposes and another one books or declines."""

    proposed_by_id: int
    decided_by_id: int | None

    id = IdField(prefix="man")
    kind = models.CharField(max_length=10, choices=ManualKind.choices)
    #: The account that loses the amount, and the one that gains it.
    source = models.CharField(max_length=20, choices=AccountKind.choices)
    target = models.CharField(max_length=20, choices=AccountKind.choices)
    #: Whose wallet it is, where one of the two is a wallet.
    organisation = models.ForeignKey(
        Organisation, null=True, on_delete=models.PROTECT, related_name="+"
    )
    amount_micros = models.BigIntegerField()
    reason = models.CharField(max_length=300)
    proposed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+"
    )
    proposed_at = models.DateTimeField()
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    decided_at = models.DateTimeField(null=True)
    #: What was booked; none where it was declined.
    entry = models.OneToOneField(Entry, null=True, on_delete=models.PROTECT, related_name="+")

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="manual_entry_moves_something",
                condition=Q(amount_micros__gt=0) & ~Q(source=F("target")) & ~Q(reason=""),
            ),
            models.CheckConstraint(
                name="manual_entry_by_two",
                condition=Q(decided_by__isnull=True, decided_at__isnull=True, entry__isnull=True)
                | (Q(decided_by__isnull=False, decided_at__isnull=False))
                & (Q(entry__isnull=True) | ~Q(decided_by=F("proposed_by"))),
            ),
        ]
        triggers = [
            pgtrigger.Protect(name="keep", operation=pgtrigger.Delete),
            pgtrigger.ReadOnly(
                name="keep_terms",
                fields=[
                    *("id", "kind", "source", "target", "organisation", "amount_micros", "reason"),
                    *("proposed_by", "proposed_at"),
                ],
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"


class ClosedMonth(models.Model):
    """A month whose books are closed: no entry is booked into it, or before it, any more."""

    #: ``2026-03``, in UTC.
    month = models.CharField(max_length=7, primary_key=True)
    ends_at = models.DateTimeField(unique=True)
    #: By kind of account, the sum of all postings up to its end.
    sums = models.JSONField()
    #: Of the ledger's seal that covers all of it.
    seal = models.PositiveBigIntegerField()
    digest = models.CharField(max_length=64)
    closed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+"
    )
    closed_at = models.DateTimeField()

    class Meta:
        triggers = [
            pgtrigger.Protect(name="append_only", operation=pgtrigger.Update | pgtrigger.Delete)
        ]

    def __str__(self) -> str:
        return self.month
