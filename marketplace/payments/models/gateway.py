"""What the market knows of the payment gateway: calls to make, events received, and comparisons.

Rows here say what was asked of the gateway and what it answered. Money itself is in the ledger.
"""

import pgtrigger
from django.db import models
from django.db.models import Q

from marketplace.common.encryption import SealedTextField
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
    #: Pay a dollar of test money and send it back.
    TRY = "try"


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
        triggers = [pgtrigger.Protect(name="keep", operation=pgtrigger.Delete)]

    def __str__(self) -> str:
        return f"{self.kind} {self.subject} ({self.status})"

    @property
    def key(self) -> str:
        """The idempotency key."""
        return f"{self.pk}-{self.generation}"


class WebhookEvent(models.Model):
    """The inbox: an event the gateway signed, stored once and applied later.

    Of what the gateway wrote in it about people and their cards nothing is kept.
    """

    #: The gateway's own id.
    id = models.CharField(primary_key=True, max_length=120)
    kind = models.CharField(max_length=80)
    #: The object that it is about, and the connected account it belongs to.
    object_id = models.CharField(max_length=120, blank=True)
    account_id = models.CharField(max_length=120, blank=True)
    received_at = models.DateTimeField()
    done_at = models.DateTimeField(null=True)
    #: What became of it, in words: applied, or why not.
    outcome = models.CharField(max_length=300, default="", blank=True)

    class Meta:
        triggers = [
            pgtrigger.Protect(name="keep", operation=pgtrigger.Delete),
            pgtrigger.ReadOnly(
                name="keep_event",
                fields=["id", "kind", "object_id", "account_id", "received_at"],
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.object_id}"


class EndpointServes(models.TextChoices):
    #: The market's own objects.
    MARKET = "market"
    #: Accounts of those who earn.
    ACCOUNTS = "accounts"


class GatewayEndpoint(models.Model):
    """A webhook endpoint that was made at the gateway, with its secret; there are two."""

    serves = models.CharField(primary_key=True, max_length=10, choices=EndpointServes.choices)
    gateway_id = models.CharField(max_length=120)
    url = models.CharField(max_length=300)
    #: What its events are signed with.
    secret = SealedTextField()
    made_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.serves} at {self.url}"


class GatewayMovement(models.Model):
    """A balance transaction: what one object did to the money at the gateway.

    It is never changed, but that its rate is written down once one is known.
    """

    #: The gateway's own id.
    id = models.CharField(primary_key=True, max_length=120)
    #: The object that moved it.
    source_id = models.CharField(max_length=120, blank=True)
    #: Stripe's word, such as ``charge`` or ``transfer``.
    kind = models.CharField(max_length=60)
    #: What the account settles in, such as ``usd``; amounts are in its smallest unit.
    currency = models.CharField(max_length=3)
    amount_cents = models.BigIntegerField()
    fee_cents = models.BigIntegerField()
    #: Without the gateway's fee.
    net_cents = models.BigIntegerField()
    #: What a dollar was worth in the currency: the gateway's own rate where it converted, else that
    #: of the movement before or, for the first ones, after it; null: none is known yet.
    rate = models.DecimalField(max_digits=20, decimal_places=10, null=True)
    moved_at = models.DateTimeField(db_index=True)

    class Meta:
        triggers = [
            pgtrigger.Protect(name="append_only", operation=pgtrigger.Delete),
            pgtrigger.Protect(
                name="keep_rated",
                operation=pgtrigger.Update,
                condition=pgtrigger.Q(old__rate__isnull=False),
            ),
            pgtrigger.ReadOnly(
                name="keep_moved",
                fields=[
                    *("id", "source_id", "kind", "currency", "amount_cents", "fee_cents"),
                    *("net_cents", "moved_at"),
                ],
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.net_cents} {self.currency}"

    def to_dollars(self, cents: int) -> int:
        """Cents of a dollar at the movement's rate, of which there is one."""
        assert self.rate is not None
        return round(cents / self.rate)


class GatewayComparison(models.Model):
    """The latest comparison of the ledger with the gateway's movements; there is one row."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    made_at = models.DateTimeField(null=True)
    #: Where they differed, in words.
    problems = models.JSONField(default=list, blank=True)
    #: Of these, what the comparison before had found as well.
    lasting = models.JSONField(default=list, blank=True)
    #: Set while nothing is asked of the gateway: since then it may have money moved that a backup,
    #: from which the market goes on, does not know.
    held_at = models.DateTimeField(null=True)
    #: The moment of the earliest backup that the market went on from, and of when it last did so:
    #: what was asked of the gateway in between may be in no row; null: it never did.
    lost_since = models.DateTimeField(null=True)
    lost_until = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.CheckConstraint(name="comparison_is_one", condition=Q(id=1))]

    def __str__(self) -> str:
        return f"{len(self.lasting)} differences"
