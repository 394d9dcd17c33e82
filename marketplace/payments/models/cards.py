"""Cards: who pays with which, what was paid and given back, and what a card may do by itself."""

import pgtrigger
from django.conf import settings
from django.db import models
from django.db.models import F, Q

from marketplace.accounts.models import Organisation
from marketplace.common.models import IdField


class CardCustomer(models.Model):
    """The gateway's customer that an organisation's cards belong to."""

    organisation = models.OneToOneField(
        Organisation, on_delete=models.PROTECT, primary_key=True, related_name="card_customer"
    )
    gateway_id = models.CharField(max_length=120, unique=True)

    def __str__(self) -> str:
        return self.gateway_id


class SavedCard(models.Model):
    """A card that an organisation may pay with again; its number is never here."""

    organisation_id: str

    id = IdField(prefix="card")
    organisation = models.ForeignKey(
        Organisation, on_delete=models.PROTECT, related_name="saved_cards"
    )
    gateway_id = models.CharField(max_length=120, unique=True)
    brand = models.CharField(max_length=40)
    last4 = models.CharField(max_length=4)
    exp_month = models.PositiveSmallIntegerField()
    exp_year = models.PositiveSmallIntegerField()
    saved_at = models.DateTimeField()
    removed_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.brand.capitalize()} ending in {self.last4}"


class PaymentPurpose(models.TextChoices):
    TOP_UP = "top_up", "Top-up"
    #: Top-up that the organisation asked to have made when its wallet runs low.
    AUTO_TOP_UP = "auto_top_up", "Automatic top-up"
    BID = "bid", "Bid"


class PaymentStatus(models.TextChoices):
    #: The gateway has not answered yet.
    STARTED = "started", "Starting"
    #: It waits for a card, or for another after one was declined.
    OPEN = "open", "Waiting for a card"
    #: The bank wants a confirmation from the card's owner.
    ACTION = "action", "Waiting for your bank"
    #: The amount is set aside on the card.
    AUTHORISED = "authorised", "Authorised"
    PAID = "paid", "Paid"
    CANCELLED = "cancelled", "Cancelled"
    #: The authorisation was gone when a won bid was to be captured.
    UNCOLLECTED = "uncollected", "Not collected"


#: No further money can move by these.
PAYMENT_OVER = (PaymentStatus.PAID, PaymentStatus.CANCELLED, PaymentStatus.UNCOLLECTED)


class CardPayment(models.Model):
    """One payment by card: a top-up, or the authorisation of one bid."""

    organisation_id: str
    created_by_id: str | None
    saved_card_id: str | None
    refunds: "models.Manager[CardRefund]"
    chargebacks: "models.Manager[Chargeback]"

    id = IdField(prefix="pay")
    organisation = models.ForeignKey(
        Organisation, on_delete=models.PROTECT, related_name="card_payments"
    )
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    purpose = models.CharField(max_length=12, choices=PaymentPurpose.choices)
    #: The caller's name for it, so that sending a form twice pays once.
    key = models.CharField(max_length=120)
    amount_cents = models.PositiveBigIntegerField()
    #: The card it is paid with; none until a new one was given.
    saved_card = models.ForeignKey(
        SavedCard, null=True, on_delete=models.PROTECT, related_name="payments"
    )
    #: Whether a new card is to be saved.
    saves_card = models.BooleanField(default=False)
    #: What is to be bid for once the amount is authorised.
    terms = models.JSONField(null=True)
    status = models.CharField(
        max_length=12, choices=PaymentStatus.choices, default=PaymentStatus.STARTED
    )
    #: The PaymentIntent; null until the gateway answered.
    gateway_id = models.CharField(max_length=120, unique=True, null=True)
    #: Its latest charge.
    charge_id = models.CharField(max_length=120, default="", blank=True)
    #: ``visa 4242``: what a receipt calls the card.
    card = models.CharField(max_length=60, default="", blank=True)
    #: The gateway's name for the card, the same whoever pays with it; empty before it is known.
    card_fingerprint = models.CharField(max_length=60, default="", blank=True)
    received_cents = models.PositiveBigIntegerField(default=0)
    #: What the gateway kept of it, and keeps when money goes back; null until it has said so.
    fee_cents = models.PositiveBigIntegerField(null=True)
    #: Asked to be given back to the card.
    refunded_cents = models.PositiveBigIntegerField(default=0)
    #: Why the last card did not work, in the gateway's words.
    failure = models.CharField(max_length=300, default="", blank=True)
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="card_payment_once", fields=["organisation", "key"]),
            models.CheckConstraint(
                name="card_payment_received_within_amount",
                condition=Q(received_cents__lte=F("amount_cents")),
            ),
            models.CheckConstraint(
                name="card_payment_refund_within_received",
                condition=Q(refunded_cents__lte=F("received_cents"))
                | ~Q(status=PaymentStatus.PAID),
            ),
        ]
        indexes = [
            models.Index(name="card_payment_latest", fields=["organisation", "-created_at"]),
            models.Index(
                name="card_payment_open",
                fields=["created_at"],
                condition=~Q(status__in=PAYMENT_OVER),
            ),
            models.Index(
                name="card_payment_of_card",
                fields=["card_fingerprint"],
                condition=~Q(card_fingerprint=""),
            ),
        ]
        triggers = [
            pgtrigger.Protect(name="keep", operation=pgtrigger.Delete),
            pgtrigger.ReadOnly(
                name="keep_terms", fields=["id", "organisation", "purpose", "key", "amount_cents"]
            ),
            # They can be forgotten, once the payment is over, and no more.
            pgtrigger.Protect(
                name="keep_bid",
                operation=pgtrigger.Update,
                condition=pgtrigger.Condition(
                    "OLD.terms IS DISTINCT FROM NEW.terms AND NEW.terms IS NOT NULL"
                ),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.purpose} {self.amount_cents} cents ({self.status})"

    @property
    def amount_micros(self) -> int:
        return self.amount_cents * MICROS_PER_CENT

    @property
    def received_micros(self) -> int:
        return self.received_cents * MICROS_PER_CENT

    @property
    def returnable_cents(self) -> int:
        """What can still go back to the card: nothing of what the gateway kept."""
        if self.fee_cents is None:
            return 0
        return max(0, self.received_cents - self.fee_cents - self.refunded_cents)

    def compute_fee_share(self, amount_cents: int) -> int:
        """The cents of the gateway's fee that belong to sending ``amount_cents`` back now.

        All shares of a payment together are its fee.
        """
        fee = self.fee_cents or 0
        base = self.received_cents - fee
        before, after = self.refunded_cents, self.refunded_cents + amount_cents
        return -(-fee * after // base) + (-fee * before // base)

    @property
    def returnable_fee_micros(self) -> int:
        """What the wallet pays of the fee when all that is left goes back."""
        cents = self.returnable_cents
        return (self.compute_fee_share(cents) if cents else 0) * MICROS_PER_CENT

    @property
    def returnable_micros(self) -> int:
        return self.returnable_cents * MICROS_PER_CENT

    @property
    def fee_micros(self) -> int:
        return (self.fee_cents or 0) * MICROS_PER_CENT


#: The gateway counts in cents.
MICROS_PER_CENT = 10_000


class RefundStatus(models.TextChoices):
    WAITING = "waiting"
    DONE = "done"
    #: The card could not take it; it went into the wallet.
    REFUSED = "refused"


class CardRefund(models.Model):
    """Money on its way back to a card."""

    payment_id: str

    id = IdField(prefix="refund")
    payment = models.ForeignKey(CardPayment, on_delete=models.PROTECT, related_name="refunds")
    #: Names what it is for, so that it is asked once.
    reference = models.CharField(max_length=220, unique=True)
    amount_cents = models.PositiveBigIntegerField()
    #: What the wallet paid of the gateway's fee, beside the amount.
    fee_cents = models.PositiveBigIntegerField(default=0)
    status = models.CharField(
        max_length=10, choices=RefundStatus.choices, default=RefundStatus.WAITING
    )
    #: Empty until it was made.
    gateway_id = models.CharField(max_length=120, default="", blank=True)
    asked_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(name="card_refund_positive", condition=Q(amount_cents__gt=0))
        ]
        indexes = [
            models.Index(
                name="card_refund_waiting",
                fields=["payment"],
                condition=Q(status=RefundStatus.WAITING),
            )
        ]
        triggers = [pgtrigger.Protect(name="keep", operation=pgtrigger.Delete)]

    def __str__(self) -> str:
        return f"{self.amount_cents} cents of {self.payment_id}"

    @property
    def amount_micros(self) -> int:
        return self.amount_cents * MICROS_PER_CENT

    @property
    def fee_micros(self) -> int:
        return self.fee_cents * MICROS_PER_CENT


class Chargeback(models.Model):
    """A payment that a card's owner contests at the bank."""

    payment_id: str

    id = IdField(prefix="dsp")
    gateway_id = models.CharField(max_length=120, unique=True)
    payment = models.ForeignKey(CardPayment, on_delete=models.PROTECT, related_name="chargebacks")
    amount_cents = models.PositiveBigIntegerField()
    #: The gateway's word for why.
    reason = models.CharField(max_length=80, blank=True)
    opened_at = models.DateTimeField()
    #: None while the bank decides.
    won = models.BooleanField(null=True)
    closed_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "payments_dispute"

    def __str__(self) -> str:
        return f"{self.amount_cents} cents of {self.payment.pk}"


class Freeze(models.Model):
    """Why an organisation may not bid; bids in flight are finished."""

    organisation_id: str

    id = IdField(prefix="frz")
    organisation = models.ForeignKey(Organisation, on_delete=models.PROTECT, related_name="freezes")
    #: What it is about, such as a chargeback's id; one each.
    reference = models.CharField(max_length=120, unique=True)
    #: In words, for the organisation.
    reason = models.CharField(max_length=300)
    since_at = models.DateTimeField()
    #: The operator who froze it; null where the market did so by itself.
    made_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    ended_at = models.DateTimeField(null=True)
    #: The operator who ended it; none where it ended by itself.
    ended_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )

    class Meta:
        indexes = [
            models.Index(
                name="freeze_open", fields=["organisation"], condition=Q(ended_at__isnull=True)
            )
        ]
        triggers = [pgtrigger.Protect(name="keep", operation=pgtrigger.Delete)]

    def __str__(self) -> str:
        return self.reason


class WalletRules(models.Model):
    """When an organisation hears that its wallet runs low, and whether a card fills it up."""

    organisation_id: str

    organisation = models.OneToOneField(
        Organisation, on_delete=models.PROTECT, primary_key=True, related_name="wallet_rules"
    )
    #: A mail is sent once the available amount falls below; null: never.
    notice_below_micros = models.BigIntegerField(null=True)
    #: Sent, and the wallet has not been above since.
    noticed_at = models.DateTimeField(null=True)
    #: The card that fills the wallet up; null: none does.
    auto_card = models.ForeignKey(SavedCard, null=True, on_delete=models.PROTECT, related_name="+")
    auto_below_micros = models.BigIntegerField(default=0)
    auto_amount_cents = models.PositiveBigIntegerField(default=0)
    #: Automatic top-ups made so far; names the next.
    auto_count = models.PositiveIntegerField(default=0)
    #: Why it no longer does; empty while it does.
    auto_stopped = models.CharField(max_length=300, default="", blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="wallet_rules_auto_whole",
                condition=Q(auto_card__isnull=True)
                | Q(auto_below_micros__gt=0, auto_amount_cents__gt=0),
            )
        ]

    def __str__(self) -> str:
        return f"rules of {self.organisation.pk}"

    @property
    def auto_amount_micros(self) -> int:
        return self.auto_amount_cents * MICROS_PER_CENT
