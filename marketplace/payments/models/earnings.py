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


#: Lines that count in a statement, or no longer do, by organisation and quarter of an hour.
_MOVED = (
    "SELECT organisation_id, date_bin('15 minutes', accrued_at, TIMESTAMPTZ '2000-01-01 00:00+00')"
    " AS starts_at, sum(sign * amount_micros)::bigint AS amount_micros, sum(sign)::bigint AS lines"
    " FROM "
)
_ADDED = "(SELECT *, 1 AS sign FROM added WHERE returned_at IS NULL) AS line GROUP BY 1, 2"
_RETURNED = (
    "(SELECT after.*, CASE WHEN after.returned_at IS NULL THEN 1 ELSE -1 END AS sign"
    " FROM after JOIN before USING (id)"
    " WHERE (after.returned_at IS NULL) <> (before.returned_at IS NULL)) AS line GROUP BY 1, 2"
)


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
            # In this order it finds all that was earned with a reference, too.
            models.UniqueConstraint(
                name="earning_once", fields=["reference", "kind", "organisation"]
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
        ]
        triggers = [
            pgtrigger.Protect(name="keep", operation=pgtrigger.Delete),
            pgtrigger.ReadOnly(
                name="keep_terms",
                fields=["id", "organisation", "kind", "reference", "amount_micros", "accrued_at"],
            ),
            # Once for the lines of a statement.
            pgtrigger.Trigger(
                name="add_to_sums",
                level=pgtrigger.Statement,
                when=pgtrigger.After,
                operation=pgtrigger.Insert,
                referencing=pgtrigger.Referencing(new="added"),
                func="".join(
                    (
                        "INSERT INTO payments_earningsum AS stored"
                        " (organisation_id, starts_at, amount_micros, lines) ",
                        # In one order: two transactions must not wait for each other.
                        *(_MOVED, _ADDED, " ORDER BY 1, 2"),
                        " ON CONFLICT (organisation_id, starts_at) DO UPDATE"
                        " SET amount_micros = stored.amount_micros + excluded.amount_micros,"
                        " lines = stored.lines + excluded.lines; RETURN NULL;",
                    )
                ),
            ),
            pgtrigger.Trigger(
                name="take_from_sums",
                level=pgtrigger.Statement,
                when=pgtrigger.After,
                operation=pgtrigger.Update,
                referencing=pgtrigger.Referencing(old="before", new="after"),
                func="".join(
                    (
                        "UPDATE payments_earningsum AS stored"
                        " SET amount_micros = stored.amount_micros + moved.amount_micros,"
                        " lines = stored.lines + moved.lines FROM (",
                        *(_MOVED, _RETURNED, ") AS moved"),
                        " WHERE stored.organisation_id = moved.organisation_id"
                        " AND stored.starts_at = moved.starts_at; RETURN NULL;",
                    )
                ),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.amount_micros} to {self.organisation_id} for {self.reference}"


class EarningSum(models.Model):
    """What an organisation's lines of a quarter of an hour come to, less what was taken back.

    A trigger of the lines keeps it, in their transaction: a page of days adds up these rows. In
    every time zone days begin with a quarter of an hour.
    """

    organisation_id: str

    # The constraint below has an index that begins with it.
    organisation = models.ForeignKey(
        Organisation, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    starts_at = models.DateTimeField()
    amount_micros = models.BigIntegerField()
    lines = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(name="earning_sum_once", fields=["organisation", "starts_at"]),
            models.CheckConstraint(
                name="earning_sum_not_negative", condition=Q(amount_micros__gte=0, lines__gte=0)
            ),
        ]
        triggers = [pgtrigger.Protect(name="keep", operation=pgtrigger.Delete)]

    def __str__(self) -> str:
        return f"{self.amount_micros} to {self.organisation_id} from {self.starts_at}"
