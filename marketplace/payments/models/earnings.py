"""What organisations earned."""

import pgtrigger
from django.db import models
from django.db.models import Q

from marketplace.accounts.models import Organisation
from marketplace.common.models import IdField
from marketplace.payments.models.payouts import Payout


class EarningKind(models.TextChoices):
    #: For the work a provider's nodes did.
    PROVIDER = "provider"
    #: For labelling or cleaning data.
    VENDOR = "vendor"
    #: For an adapter that another's job began with.
    ROYALTY = "royalty"
    #: For cells that an owner gave back too late to be sold again.
    IDLE = "idle"


#: What follows a hold's reference in that of pay for its idle cells that was put back.
IDLE_SUFFIX = ":idle"


class Earning(models.Model):
    """One line of what an organisation earned: pending until ``payable_at``, then payable.

    One posting may book several, such as pay and a royalty, and each is paid out or taken back by
    itself. ``ledger_checks`` compares their sums with postings.
    """

    organisation_id: str
    payout_id: str | None

    id = IdField(prefix="earn")
    # An index below begins with it.
    organisation = models.ForeignKey(
        Organisation, on_delete=models.PROTECT, related_name="earnings", db_index=False
    )
    kind = models.CharField(max_length=10, choices=EarningKind.choices)
    #: What it was earned with: a hold's reference, or the caller's own.
    reference = models.CharField(max_length=200)
    amount_micros = models.BigIntegerField()
    accrued_at = models.DateTimeField()
    payable_at = models.DateTimeField()
    #: Until then the card payments may be contested that it was earned with; set only where who
    #: bought and who earned are one: members or a card are the same. It is not payable before.
    contestable_until_at = models.DateTimeField(null=True, blank=True)
    #: When it moved to the payable account.
    matured_at = models.DateTimeField(null=True)
    #: Since when a dispute keeps it from maturing; lifted where it is decided for who earned it.
    withheld_at = models.DateTimeField(null=True, blank=True)
    #: When it went back to who paid it, after a dispute.
    returned_at = models.DateTimeField(null=True, blank=True)
    #: The payout that takes it along; null while it is not paid out.
    payout = models.ForeignKey(Payout, null=True, on_delete=models.PROTECT, related_name="earnings")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                name="earning_once", fields=["organisation", "kind", "reference"]
            ),
            models.CheckConstraint(name="earning_positive", condition=Q(amount_micros__gt=0)),
        ]
        indexes = [
            models.Index(
                name="earning_pending",
                fields=["payable_at"],
                condition=Q(matured_at__isnull=True),
            ),
            models.Index(name="earning_by_organisation", fields=["organisation", "accrued_at"]),
            models.Index(name="earning_by_reference", fields=["reference"]),
        ]
        triggers = [
            pgtrigger.Protect(name="keep", operation=pgtrigger.Delete),
            pgtrigger.ReadOnly(
                name="keep_terms",
                fields=["id", "organisation", "kind", "reference", "amount_micros", "accrued_at"],
            ),
        ]

    def __str__(self) -> str:
        return f"{self.amount_micros} to {self.organisation_id} for {self.reference}"
