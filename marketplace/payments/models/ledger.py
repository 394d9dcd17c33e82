"""The ledger: accounts, entries and postings, which are only ever added to.

Sign convention: a posting's amount is what it adds to its account. What the market owes an
organisation (its wallet, its earnings) is positive; where money came from is negative. An
entry's postings sum to zero, so all postings together always do.
"""

import pgtrigger
from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.expressions import RawSQL

from marketplace.accounts.models import Organisation
from marketplace.common.models import NO_TRUNCATE, DenseIdField


class AccountKind(models.TextChoices):
    #: Of an organisation: what it may bid with.
    WALLET_AVAILABLE = "wallet_available"
    #: Of an organisation: what its undecided bids hold.
    WALLET_HELD = "wallet_held"
    #: Of an organisation: earned, but still within the payout delay.
    EARNINGS_PENDING = "earnings_pending"
    #: Of an organisation: earned and ready to be paid out.
    EARNINGS_PAYABLE = "earnings_payable"
    #: Of the market: payments of winners whose jobs are not over.
    CLEARING = "clearing"
    #: Of the market: what is left of a payment when everyone else has their share.
    REVENUE = "revenue"
    #: Of the market: refunds after the payment had been shared out, and pay for the work of jobs
    #: that were refunded.
    REFUNDS = "refunds"
    #: Of the market: credits for missed deadlines.
    SLA_CREDITS = "sla_credits"
    #: Of the market: balances granted by an operator.
    GRANTS = "grants"
    #: Of the market: what lies at the payment gateway, shown as negative.
    GATEWAY = "gateway"
    #: Of the market: what the gateway keeps for itself.
    GATEWAY_FEES = "gateway_fees"
    #: Of the market: amounts of bids that are authorised on cards and not captured yet.
    AUTHORISED = "authorised"
    #: Of the market: on its way back to cards.
    CARD_REFUNDS = "card_refunds"
    #: Of the market: contested payments, and prices that no card paid.
    #: Stored under the gateway's word, as are the two kinds of entries.
    CHARGEBACKS = "disputes"
    #: Of the market: earnings on their way to those who earned them.
    PAYOUTS = "payouts"
    #: Of the market: rent of the machines that it rents.
    RENT = "rent"
    #: Of the market: what it owes to those it rents from.
    SUPPLIERS = "suppliers"
    #: Of the market: what is kept of the prices of jobs that their owners ended, beyond the work
    #: that was done. The rent of cells that are sold again goes back from here.
    CONGESTION = "congestion"
    #: Of the house: its fee for the work units of jobs that were done.
    HOUSE_FEES = "house_fees"
    #: Of the house: tax in its prices, owed to tax offices.
    TAXES = "taxes"
    #: Of the market: what lies at its own bank, shown as negative.
    BANK = "bank"
    #: Of the market: debts that it gave up.
    WRITE_OFFS = "write_offs"


HOUSE_KINDS = (
    AccountKind.CLEARING,
    AccountKind.REVENUE,
    AccountKind.REFUNDS,
    AccountKind.SLA_CREDITS,
    AccountKind.GRANTS,
    AccountKind.GATEWAY,
    AccountKind.GATEWAY_FEES,
    AccountKind.AUTHORISED,
    AccountKind.CARD_REFUNDS,
    AccountKind.CHARGEBACKS,
    AccountKind.PAYOUTS,
    AccountKind.RENT,
    AccountKind.SUPPLIERS,
    AccountKind.CONGESTION,
    AccountKind.HOUSE_FEES,
    AccountKind.TAXES,
    AccountKind.BANK,
    AccountKind.WRITE_OFFS,
)


#: Accounts of the house that refunds of charges come from.
REFUND_SOURCES = (AccountKind.CLEARING, AccountKind.REFUNDS, AccountKind.CONGESTION)


class LedgerAccount(models.Model):
    """The balance of one kind of money: of an organisation, or of the market itself."""

    organisation_id: str | None

    id = DenseIdField(prefix="acc")
    kind = models.CharField(max_length=20, choices=AccountKind.choices)
    organisation = models.ForeignKey(
        Organisation, null=True, on_delete=models.PROTECT, related_name="ledger_accounts"
    )
    #: The sum of the postings, kept by the database itself. Not kept for the house's own
    #: accounts: every payment touches them, and they would make all payments wait in line.
    balance_micros = models.BigIntegerField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                name="ledger_account_once", fields=["kind", "organisation"], nulls_distinct=False
            ),
            models.CheckConstraint(
                name="ledger_account_of_house_or_organisation",
                condition=Q(
                    kind__in=HOUSE_KINDS, organisation__isnull=True, balance_micros__isnull=True
                )
                | Q(
                    ~Q(kind__in=HOUSE_KINDS),
                    organisation__isnull=False,
                    balance_micros__isnull=False,
                ),
            ),
            models.CheckConstraint(
                name="ledger_account_kind_known", condition=Q(kind__in=AccountKind.values)
            ),
            models.CheckConstraint(
                name="ledger_account_not_below_zero",
                condition=Q(balance_micros__isnull=True) | Q(balance_micros__gte=0),
            ),
        ]
        triggers = [
            pgtrigger.Protect(name="keep", operation=pgtrigger.Delete),
            pgtrigger.ReadOnly(name="keep_identity", fields=["id", "kind", "organisation"]),
            pgtrigger.Trigger(
                name="start_at_zero",
                when=pgtrigger.Before,
                operation=pgtrigger.Insert,
                condition=pgtrigger.Q(new__balance_micros__gt=0),
                func=(
                    "RAISE EXCEPTION 'an account starts at zero' USING ERRCODE = 'check_violation';"
                ),
            ),
            pgtrigger.Trigger(
                name="balance_by_postings_only",
                when=pgtrigger.Before,
                operation=pgtrigger.UpdateOf("balance_micros"),
                func=(
                    # Depth 1 is this trigger alone: no posting's trigger is above it.
                    "IF pg_trigger_depth() < 2 THEN RAISE EXCEPTION"
                    " 'balances change through postings only' USING ERRCODE = 'check_violation';"
                    " END IF; RETURN NEW;"
                ),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.organisation_id or 'the house'}"


class EntryKind(models.TextChoices):
    GRANT = "grant"
    HOLD = "hold"
    CHARGE = "charge"
    RELEASE = "release"
    DISTRIBUTION = "distribution"
    MATURITY = "maturity"
    REFUND = "refund"
    SLA_CREDIT = "sla_credit"
    VENDOR_PAY = "vendor_pay"
    #: A vendor lost a dispute about work that it was paid for.
    VENDOR_RETURN = "vendor_return"
    #: A result was found wanting, and its provider's pay went back.
    PAY_RETURN = "pay_return"
    #: The market paid a provider for a spot check.
    CHECK_PAY = "check_pay"
    #: Providers got a part of what was kept of a job: their cells were given back too late.
    IDLE_PAY = "idle_pay"
    #: A card filled a wallet.
    TOP_UP = "top_up"
    #: The price of a bid was taken from its card.
    CAPTURE = "capture"
    #: Money of a wallet is to go back to the card that it came from.
    CARD_RETURN = "card_return"
    #: A refund reached its card, or could not.
    CARD_REFUND = "card_refund"
    GATEWAY_FEE = "gateway_fee"
    #: The price of a bid could not be taken from its card.
    UNCOLLECTED = "uncollected"
    CHARGEBACK = "dispute"
    CHARGEBACK_CLOSED = "dispute_closed"
    #: Earnings left for those who earned them.
    PAYOUT = "payout"
    #: A transfer of a payout arrived, or could not.
    TRANSFER = "transfer"
    #: A transfer was taken back.
    REVERSAL = "reversal"
    RENT = "rent"
    #: The tax in the prices of an invoice.
    TAX = "tax"
    #: What an organisation left in its wallet when it was deleted.
    GIVEN_UP = "given_up"
    #: The gateway paid the house's own bank.
    BANK_PAYOUT = "bank_payout"
    #: Two operators booked it: ``ManualEntry``.
    MANUAL = "manual"


#: Of an entry's key.
ENTRY_PREFIX = "ent"


class Entry(models.Model):
    """One business event; written once, with all its postings, and never changed."""

    postings: "models.Manager[Posting]"

    id = DenseIdField(prefix=ENTRY_PREFIX)
    kind = models.CharField(max_length=20, choices=EntryKind.choices)
    #: Names the event within its kind, so that saying it twice books it once.
    reference = models.CharField(max_length=200)
    #: The hold whose money it moves: with it postings know their job, as their account names the
    #: party. Empty for what is no hold's.
    hold_reference = models.CharField(max_length=120, default="", db_default="", blank=True)
    #: When it happened, by the clock of the process that booked it.
    booked_at = models.DateTimeField(db_index=True)
    memo = models.CharField(max_length=300, blank=True)
    #: The database's transaction that wrote it; its postings come from the same one.
    written_in = models.BigIntegerField(
        db_default=RawSQL("pg_current_xact_id()::text::bigint", ())  # type: ignore[arg-type]
    )
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )

    class Meta:
        verbose_name_plural = "entries"
        constraints = [
            models.UniqueConstraint(name="entry_once", fields=["kind", "reference"]),
            models.CheckConstraint(name="entry_reference_not_empty", condition=~Q(reference="")),
            models.CheckConstraint(name="entry_kind_known", condition=Q(kind__in=EntryKind.values)),
        ]
        indexes = [
            # A hold has one entry of each other kind, under its own name.
            models.Index(
                name="entry_refunds_of_hold",
                fields=["hold_reference"],
                condition=Q(kind=EntryKind.REFUND),
            )
        ]
        triggers = [
            pgtrigger.Protect(name="append_only", operation=pgtrigger.Update | pgtrigger.Delete),
            NO_TRUNCATE,
            pgtrigger.Trigger(
                name="in_open_month",
                level=pgtrigger.Statement,
                when=pgtrigger.After,
                operation=pgtrigger.Insert,
                referencing=pgtrigger.Referencing(new="added"),
                func=(
                    "IF (SELECT min(booked_at) FROM added)"
                    " < (SELECT max(ends_at) FROM payments_closedmonth)"
                    " THEN RAISE EXCEPTION 'the books of that month are closed'"
                    " USING ERRCODE = 'check_violation'; END IF; RETURN NULL;"
                ),
            ),
            pgtrigger.Trigger(
                name="wait_for_seal",
                level=pgtrigger.Statement,
                when=pgtrigger.After,
                operation=pgtrigger.Insert,
                referencing=pgtrigger.Referencing(new="added"),
                func=(
                    "INSERT INTO payments_unsealedentry (entry_id) SELECT id FROM added;"
                    " RETURN NULL;"
                ),
            ),
            pgtrigger.Trigger(
                name="has_postings",
                when=pgtrigger.After,
                operation=pgtrigger.Insert,
                timing=pgtrigger.Deferred,
                func=pgtrigger.Func(
                    "IF (SELECT count(*) FROM payments_posting WHERE entry_id = NEW.id) < 2 THEN"
                    " RAISE EXCEPTION 'entry % has fewer than two postings', NEW.id"
                    " USING ERRCODE = 'check_violation'; END IF; RETURN NULL;"
                ),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.reference}"


class Posting(models.Model):
    """One account's part of an entry."""

    entry_id: str
    account_id: str

    # The constraint below has an index that begins with it.
    entry = models.ForeignKey(
        Entry, on_delete=models.PROTECT, related_name="postings", db_index=False
    )
    account = models.ForeignKey(LedgerAccount, on_delete=models.PROTECT, related_name="postings")
    #: What this adds to the account.
    amount_micros = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(name="posting_once_per_account", fields=["entry", "account"]),
            models.CheckConstraint(name="posting_moves_something", condition=~Q(amount_micros=0)),
        ]
        triggers = [
            pgtrigger.Protect(name="append_only", operation=pgtrigger.Update | pgtrigger.Delete),
            NO_TRUNCATE,
            pgtrigger.Trigger(
                name="with_its_entry",
                level=pgtrigger.Statement,
                when=pgtrigger.After,
                operation=pgtrigger.Insert,
                referencing=pgtrigger.Referencing(new="added"),
                func=(
                    "IF EXISTS (SELECT FROM added JOIN payments_entry AS entry"
                    " ON entry.id = added.entry_id"
                    " WHERE entry.written_in <> pg_current_xact_id()::text::bigint)"
                    " THEN RAISE EXCEPTION 'postings are written with their entry'"
                    " USING ERRCODE = 'check_violation'; END IF; RETURN NULL;"
                ),
            ),
            # Once for the postings of a statement: a crowd's move the same few balances.
            pgtrigger.Trigger(
                name="balance_apply",
                level=pgtrigger.Statement,
                when=pgtrigger.After,
                operation=pgtrigger.Insert,
                referencing=pgtrigger.Referencing(new="added"),
                func=(
                    "UPDATE payments_ledgeraccount AS account"
                    " SET balance_micros = account.balance_micros + moved.amount_micros"
                    " FROM (SELECT account_id, sum(amount_micros)::bigint AS amount_micros"
                    " FROM added GROUP BY account_id) AS moved"
                    " WHERE account.id = moved.account_id AND account.balance_micros IS NOT NULL;"
                    " RETURN NULL;"
                ),
            ),
            pgtrigger.Trigger(
                name="entry_sums_to_zero",
                when=pgtrigger.After,
                operation=pgtrigger.Insert,
                timing=pgtrigger.Deferred,
                func=(
                    "IF (SELECT sum(amount_micros) FROM payments_posting"
                    " WHERE entry_id = NEW.entry_id) <> 0 THEN"
                    " RAISE EXCEPTION 'the postings of entry % do not sum to zero', NEW.entry_id"
                    " USING ERRCODE = 'check_violation'; END IF; RETURN NULL;"
                ),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.amount_micros} to {self.account_id}"
