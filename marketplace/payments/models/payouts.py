"""How earnings reach who earned them: accounts at the gateway, payouts and their transfers."""

import pgtrigger
from django.db import models
from django.db.models import F, Q

from marketplace.accounts.models import Organisation
from marketplace.common.models import IdField
from marketplace.payments.models.cards import MICROS_PER_CENT


class PayoutAccount(models.Model):
    """An organisation's account at the gateway, which pays it out to its bank."""

    organisation = models.OneToOneField(
        Organisation, on_delete=models.PROTECT, primary_key=True, related_name="payout_account"
    )
    gateway_id = models.CharField(max_length=120, unique=True)
    #: What it settles in, and its bank is paid in.
    currency = models.CharField(max_length=3, default="usd")
    #: The gateway knows who it is and where its bank account is.
    is_ready = models.BooleanField(default=False)
    #: What the gateway still wants to know, in its words.
    needs = models.JSONField(default=list, blank=True)
    made_at = models.DateTimeField()

    organisation_id: str

    def __str__(self) -> str:
        return self.gateway_id


class PayoutStatus(models.TextChoices):
    #: Its transfers are on their way to the account.
    MOVING = "moving", "On its way"
    #: At the account; the bank is to get it.
    SENT = "sent", "Sent to the bank"
    PAID = "paid", "Paid"
    #: The bank did not take it; tried again.
    FAILED = "failed", "Failed"
    #: Nothing of it could be moved, and it is payable again; or all of it was taken back.
    RETURNED = "returned", "Returned"


class Payout(models.Model):
    """Earnings of one organisation that leave together."""

    id = IdField(prefix="pout")
    organisation = models.ForeignKey(Organisation, on_delete=models.PROTECT, related_name="payouts")
    amount_cents = models.PositiveBigIntegerField()
    status = models.CharField(
        max_length=10, choices=PayoutStatus.choices, default=PayoutStatus.MOVING
    )
    made_at = models.DateTimeField()
    #: Attempts to pay it out to the bank.
    attempts = models.PositiveIntegerField(default=0)
    #: The gateway's payout of the last attempt.
    gateway_id = models.CharField(max_length=120, default="", blank=True, db_index=True)
    #: Why the last attempt failed.
    failure = models.CharField(max_length=300, default="", blank=True)
    #: When the next attempt is due, after a failed one.
    retry_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    organisation_id: str
    transfers: "models.Manager[Transfer]"

    class Meta:
        constraints = [
            models.CheckConstraint(name="payout_positive", condition=Q(amount_cents__gt=0)),
            # One at a time: two would count the same earnings.
            models.UniqueConstraint(
                name="payout_one_moving",
                fields=["organisation"],
                condition=Q(status="moving"),
            ),
        ]
        indexes = [models.Index(name="payout_latest", fields=["organisation", "-made_at"])]
        triggers = [
            pgtrigger.Protect(name="keep", operation=pgtrigger.Delete),
            pgtrigger.ReadOnly(
                name="keep_terms", fields=["id", "organisation", "amount_cents", "made_at"]
            ),
        ]

    def __str__(self) -> str:
        return f"{self.amount_cents} cents to {self.organisation_id} ({self.status})"

    @property
    def amount_micros(self) -> int:
        return self.amount_cents * MICROS_PER_CENT


class TransferStatus(models.TextChoices):
    WAITING = "waiting"
    DONE = "done"
    REFUSED = "refused"


class Transfer(models.Model):
    """One job's part of a payout, in whole cents."""

    id = IdField(prefix="trf")
    payout = models.ForeignKey(Payout, on_delete=models.PROTECT, related_name="transfers")
    #: What it was earned with, such as a bid's id: the gateway's ``transfer_group``.
    group = models.CharField(max_length=200)
    amount_cents = models.PositiveBigIntegerField()
    #: What the gateway settled in when it was priced, and what leaves there.
    currency = models.CharField(max_length=3, default="usd")
    settled_cents = models.PositiveBigIntegerField()
    status = models.CharField(
        max_length=10, choices=TransferStatus.choices, default=TransferStatus.WAITING
    )
    gateway_id = models.CharField(max_length=120, default="", blank=True)
    #: Taken back by the operator.
    reversed_cents = models.PositiveBigIntegerField(default=0)
    ended_at = models.DateTimeField(null=True)

    payout_id: str

    class Meta:
        constraints = [
            models.UniqueConstraint(name="transfer_once", fields=["payout", "group"]),
            models.CheckConstraint(
                name="transfer_reversed_within",
                condition=Q(amount_cents__gt=0, reversed_cents__lte=F("amount_cents")),
            ),
        ]
        indexes = [
            models.Index(
                name="transfer_waiting",
                fields=["payout"],
                condition=Q(status=TransferStatus.WAITING),
            )
        ]
        triggers = [
            pgtrigger.Protect(name="keep", operation=pgtrigger.Delete),
            pgtrigger.ReadOnly(
                name="keep_terms",
                fields=["id", "payout", "group", "amount_cents"],
            ),
            # What was not moved yet is priced again where the gateway settles in another currency.
            pgtrigger.Protect(
                name="keep_price",
                operation=pgtrigger.Update,
                condition=pgtrigger.Condition(
                    "OLD.status <> 'waiting' AND (OLD.currency, OLD.settled_cents)"
                    " IS DISTINCT FROM (NEW.currency, NEW.settled_cents)"
                ),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.amount_cents} cents for {self.group}"

    @property
    def settled_back_cents(self) -> int:
        """What was taken back of ``settled_cents``."""
        return round(self.settled_cents * self.reversed_cents / self.amount_cents)

    @property
    def amount_micros(self) -> int:
        return self.amount_cents * MICROS_PER_CENT
