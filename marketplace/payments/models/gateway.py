"""What the market knows of the payment gateway: calls to make, events received, and cards.

Rows here say what was asked of the gateway and what it answered. Money itself is in the ledger.
"""

import pgtrigger
from django.conf import settings
from django.db import models
from django.db.models import F, Q

from marketplace.accounts.models import Organisation
from marketplace.common.models import IdField


class CallKind(models.TextChoices):
    #: Make a PaymentIntent, and confirm it where a saved card pays.
    INTENT = "intent"
    CAPTURE = "capture"
    #: Give an authorisation back.
    CANCEL = "cancel"
    REFUND = "refund"
    #: Forget a saved card.
    DETACH = "detach"
    #: Move one job's earnings to the account of who earned them.
    TRANSFER = "transfer"
    REVERSAL = "reversal"
    #: Let the account pay its bank.
    PAYOUT = "payout"
    #: Ask what part of a total is tax.
    TAX = "tax"
    #: Tell the gateway that an invoice was issued with that tax.
    TAX_RECORD = "tax_record", "Record of tax"


class CallStatus(models.TextChoices):
    WAITING = "waiting"
    DONE = "done"
    #: The gateway said no, for good.
    REFUSED = "refused"


class GatewayCall(models.Model):
    """The outbox: a call that a committed transaction wants made, once.

    It is made outside of any transaction. ``id`` and ``generation`` are its idempotency key.
    """

    id = IdField(prefix="call")
    kind = models.CharField(max_length=20, choices=CallKind.choices)
    #: The row it is about; there is one call of a kind for each.
    subject = models.CharField(max_length=40)
    #: What the kind needs besides its subject.
    arguments = models.JSONField(default=dict, blank=True)
    status = models.CharField(max_length=10, choices=CallStatus.choices, default=CallStatus.WAITING)
    made_at = models.DateTimeField()
    #: When it may be tried next.
    due_at = models.DateTimeField()
    #: Until then another process makes it.
    claimed_until_at = models.DateTimeField(null=True)
    attempts = models.PositiveIntegerField(default=0)
    #: Rises when the gateway answered a fault: it would answer the same to the same key.
    generation = models.PositiveIntegerField(default=1)
    ended_at = models.DateTimeField(null=True)
    #: Of the last failure.
    error_code = models.CharField(max_length=80, default="", blank=True)
    error_message = models.CharField(max_length=300, default="", blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="gateway_call_once", fields=["kind", "subject"]),
            models.CheckConstraint(
                name="gateway_call_ended_whole",
                condition=Q(status=CallStatus.WAITING, ended_at__isnull=True)
                | Q(~Q(status=CallStatus.WAITING), ended_at__isnull=False),
            ),
        ]
        indexes = [
            models.Index(
                name="gateway_call_due", fields=["due_at"], condition=Q(status=CallStatus.WAITING)
            )
        ]
        triggers = [pgtrigger.Protect(name="keep", operation=pgtrigger.Delete)]

    def __str__(self) -> str:
        return f"{self.kind} {self.subject} ({self.status})"

    @property
    def key(self) -> str:
        """The idempotency key."""
        return f"{self.pk}-{self.generation}"


class WebhookEvent(models.Model):
    """The inbox: an event the gateway signed, stored once and applied later."""

    #: The gateway's own id.
    id = models.CharField(primary_key=True, max_length=120)
    kind = models.CharField(max_length=80)
    #: The object that it is about, and the connected account it belongs to.
    object_id = models.CharField(max_length=120, blank=True)
    account_id = models.CharField(max_length=120, blank=True)
    #: As it was signed, or as it was fetched where no webhook brought it.
    body = models.TextField()
    received_at = models.DateTimeField()
    due_at = models.DateTimeField()
    attempts = models.PositiveIntegerField(default=0)
    done_at = models.DateTimeField(null=True)
    #: What became of it, in words: applied, or why not.
    outcome = models.CharField(max_length=300, default="", blank=True)

    class Meta:
        indexes = [
            models.Index(
                name="webhook_event_due", fields=["due_at"], condition=Q(done_at__isnull=True)
            )
        ]
        triggers = [
            pgtrigger.Protect(name="keep", operation=pgtrigger.Delete),
            pgtrigger.ReadOnly(
                name="keep_event",
                fields=["id", "kind", "object_id", "account_id", "body", "received_at"],
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.object_id}"


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
    received_cents = models.PositiveBigIntegerField(default=0)
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
        ]
        triggers = [
            pgtrigger.Protect(name="keep", operation=pgtrigger.Delete),
            pgtrigger.ReadOnly(
                name="keep_terms",
                fields=["id", "organisation", "purpose", "key", "amount_cents", "terms"],
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
    status = models.CharField(
        max_length=10, choices=RefundStatus.choices, default=RefundStatus.WAITING
    )
    asked_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(name="card_refund_positive", condition=Q(amount_cents__gt=0))
        ]
        triggers = [pgtrigger.Protect(name="keep", operation=pgtrigger.Delete)]

    def __str__(self) -> str:
        return f"{self.amount_cents} cents of {self.payment_id}"

    @property
    def amount_micros(self) -> int:
        return self.amount_cents * MICROS_PER_CENT


class Chargeback(models.Model):
    """A payment that a card's owner contests at the bank."""

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


class GatewayComparison(models.Model):
    """The latest comparison of the ledger with the gateway's movements; there is one row."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    made_at = models.DateTimeField(null=True)
    #: Where they differed, in words.
    problems = models.JSONField(default=list, blank=True)
    #: Of these, what the comparison before had found as well.
    lasting = models.JSONField(default=list, blank=True)

    class Meta:
        constraints = [models.CheckConstraint(name="comparison_is_one", condition=Q(id=1))]

    def __str__(self) -> str:
        return f"{len(self.lasting)} differences"
