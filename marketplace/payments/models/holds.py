"""Holds of a wallet or card for one bid, and how a charge was shared out."""

import pgtrigger
from django.conf import settings
from django.db import models
from django.db.models import F, Q

from marketplace.accounts.models import ApiKey, Organisation
from marketplace.common.models import IdField
from marketplace.payments.models.cards import CardPayment


class HoldStatus(models.TextChoices):
    HELD = "held"
    #: Ended by a charge of part or all of it, possibly zero; the rest went back.
    CHARGED = "charged"
    #: Ended with everything given back.
    RELEASED = "released"


class Hold(models.Model):
    """Money of a wallet, or of a card, set aside for one bid, and what became of it.

    Changed only while the organisation's wallet accounts are locked. Its amounts say what its
    postings say: by them the database refuses to give back more than was charged, and finds what
    is not shared out yet without the rest. ``ledger_checks`` compares them.
    """

    organisation_id: str
    card_payment_id: str | None
    placed_by_id: str | None
    api_key_id: str | None

    id = IdField(prefix="hold")
    # An index below begins with it.
    organisation = models.ForeignKey(
        Organisation, on_delete=models.PROTECT, related_name="holds", db_index=False
    )
    #: The caller's name for it, such as the bid's id.
    reference = models.CharField(max_length=120, unique=True)
    amount_micros = models.BigIntegerField()
    status = models.CharField(max_length=10, choices=HoldStatus.choices, default=HoldStatus.HELD)
    #: What the winner paid.
    charged_micros = models.BigIntegerField(default=0)
    #: How much of it was given back later.
    refunded_micros = models.BigIntegerField(default=0)
    #: Who placed the bid, for the caps of members; null: a program of the market.
    placed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        on_delete=models.PROTECT,
        related_name="+",
        # Found by the organisation and the period.
        db_index=False,
    )
    #: The API key that it was placed with, for the key's caps; null: by a person in the browser.
    api_key = models.ForeignKey(
        ApiKey, null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    #: The card that the amount is authorised on; none where it lies in the wallet.
    card_payment = models.OneToOneField(
        CardPayment, null=True, on_delete=models.PROTECT, related_name="hold"
    )
    #: What a labour vendor got out of it, before the rest was shared out.
    vendor_micros = models.BigIntegerField(default=0, db_default=0)
    held_at = models.DateTimeField()
    #: When it was charged or released.
    ended_at = models.DateTimeField(null=True)
    #: When the payment was shared out between providers, vendor and house.
    distributed_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(name="hold_positive", condition=Q(amount_micros__gt=0)),
            models.CheckConstraint(
                name="hold_charge_within_amount",
                condition=Q(charged_micros__gte=0, charged_micros__lte=F("amount_micros")),
            ),
            models.CheckConstraint(
                name="hold_refund_within_charge",
                condition=Q(refunded_micros__gte=0, refunded_micros__lte=F("charged_micros")),
            ),
            models.CheckConstraint(
                name="hold_vendor_of_charge",
                condition=Q(vendor_micros=0) | Q(vendor_micros__gt=0, status=HoldStatus.CHARGED),
            ),
            models.CheckConstraint(
                name="hold_status_known",
                condition=Q(
                    status=HoldStatus.HELD,
                    charged_micros=0,
                    ended_at__isnull=True,
                    distributed_at__isnull=True,
                )
                | Q(
                    status=HoldStatus.RELEASED,
                    charged_micros=0,
                    ended_at__isnull=False,
                    distributed_at__isnull=True,
                )
                | Q(status=HoldStatus.CHARGED, ended_at__isnull=False),
            ),
        ]
        indexes = [
            models.Index(
                name="hold_open", fields=["organisation"], condition=Q(status=HoldStatus.HELD)
            ),
            # What is charged and not shared out yet.
            models.Index(
                name="hold_in_clearing",
                fields=["status"],
                condition=Q(status=HoldStatus.CHARGED, distributed_at__isnull=True)
                & ~Q(charged_micros=F("refunded_micros") + F("vendor_micros")),
            ),
            models.Index(name="hold_of_period", fields=["organisation", "held_at"]),
        ]
        triggers = [
            pgtrigger.Protect(name="keep", operation=pgtrigger.Delete),
            pgtrigger.ReadOnly(
                name="keep_terms",
                fields=[
                    "id",
                    "organisation",
                    "reference",
                    "amount_micros",
                    "held_at",
                    "card_payment",
                ],
            ),
            pgtrigger.FSM(
                name="status_ends_once",
                field="status",
                transitions=[("held", "charged"), ("held", "released")],
            ),
        ]

    def __str__(self) -> str:
        return f"{self.reference} ({self.status})"


class Distribution(models.Model):
    """How the operational cost in one charge was shared out, which no posting tells apart.

    ``asks_micros + borne_pay_micros`` is what providers earned with the hold, what went back to
    the owner and what was kept of work that was not done. The entry that booked it says the same
    in words (``described``), under its seal; ``check_ledger`` sees to both.
    """

    hold_id: str
    at_fault_id: str | None

    hold = models.OneToOneField(
        Hold, primary_key=True, on_delete=models.PROTECT, related_name="distribution"
    )
    #: The operational cost in the payment.
    asks_micros = models.BigIntegerField()
    #: Of it, what went back to the owner, with a refund or in a credit.
    asks_returned_micros = models.BigIntegerField()
    #: Of it, what was kept of work that was not done.
    asks_kept_micros = models.BigIntegerField(default=0, db_default=0)
    #: What the house added for work of a job that it refunded, and its part of a credit.
    borne_pay_micros = models.BigIntegerField()
    borne_credit_micros = models.BigIntegerField()
    #: Of a refund, what a vendor kept all the same.
    borne_vendor_micros = models.BigIntegerField(default=0, db_default=0)
    #: The provider at fault for whom the market bears this, if there is one.
    at_fault = models.ForeignKey(
        Organisation, null=True, on_delete=models.PROTECT, related_name="+"
    )
    made_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="distribution_parts_not_negative",
                condition=Q(
                    asks_micros__gte=0,
                    asks_returned_micros__gte=0,
                    borne_pay_micros__gte=0,
                    borne_credit_micros__gte=0,
                    asks_kept_micros__gte=0,
                ),
            )
        ]
        indexes = [
            models.Index(
                name="distribution_at_fault",
                fields=["at_fault", "made_at"],
                condition=Q(at_fault__isnull=False),
            )
        ]
        triggers = [
            pgtrigger.Protect(name="append_only", operation=pgtrigger.Update | pgtrigger.Delete)
        ]

    def __str__(self) -> str:
        return f"{self.asks_micros} of {self.hold_id}"

    @property
    def is_empty(self) -> bool:
        """Whether nobody earned or kept anything of it, and the market bore no pay."""
        moved = (
            self.asks_micros - self.asks_returned_micros,
            self.asks_kept_micros,
            self.borne_pay_micros,
            self.borne_vendor_micros,
        )
        return not any(moved)

    @property
    def described(self) -> str:
        """All of it but the time, in micro-dollars: the memo of the entry that booked it."""
        parts = {
            "asks": self.asks_micros,
            "returned": self.asks_returned_micros,
            "kept": self.asks_kept_micros,
            "pay borne": self.borne_pay_micros,
            "credit borne": self.borne_credit_micros,
            "vendor borne": self.borne_vendor_micros,
            "at fault": self.at_fault_id,
        }
        return ", ".join(f"{name} {value}" for name, value in parts.items() if value)
