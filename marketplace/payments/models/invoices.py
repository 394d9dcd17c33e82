"""Invoices: what an organisation was charged, refunded and credited in a month, with tax."""

import pgtrigger
from django.db import models
from django.db.models import Q
from django_countries.data import COUNTRIES

from marketplace.accounts.models import Organisation
from marketplace.common.models import IdField

#: ISO 3166 codes and names, by name.
COUNTRY_CHOICES = sorted(
    ((code, str(name)) for code, name in COUNTRIES.items()), key=lambda country: country[1]
)

COUNTRY_NAMES = dict(COUNTRY_CHOICES)


class BillingDetails(models.Model):
    """Whom invoices of an organisation are addressed to."""

    organisation = models.OneToOneField(
        Organisation, primary_key=True, on_delete=models.PROTECT, related_name="billing_details"
    )
    legal_name = models.CharField(max_length=200)
    address = models.CharField(max_length=500, blank=True)
    country = models.CharField(max_length=2, blank=True)
    #: Where a tax depends on it, as in the United States.
    postal_code = models.CharField(max_length=20, blank=True, default="", db_default="")
    #: As its tax office wrote it, such as a VAT number; empty for people who are no business.
    tax_id = models.CharField(max_length=30, blank=True)

    organisation_id: str

    class Meta:
        verbose_name_plural = "billing details"

    def __str__(self) -> str:
        return self.legal_name


class InvoiceSeries(models.Model):
    """The last number given in a year: invoices of one year have no gaps."""

    year = models.PositiveSmallIntegerField(primary_key=True)
    last_number = models.PositiveIntegerField(default=0)
    #: All that was booked before it and belongs on invoices is on one.
    due_from = models.DateTimeField(null=True)

    class Meta:
        verbose_name_plural = "invoice series"

    def __str__(self) -> str:
        return f"{self.year}: {self.last_number}"


class Invoice(models.Model):
    """One month of one organisation, as it was issued; written once.

    Seller and buyer are copied: an invoice says what held when it was issued.
    """

    lines: "models.Manager[InvoiceLine]"
    organisation_id: str

    id = IdField(prefix="inv")
    #: ``2026-000123``.
    number = models.CharField(max_length=20, unique=True)
    organisation = models.ForeignKey(
        Organisation, on_delete=models.PROTECT, related_name="invoices", db_index=False
    )
    #: First day of the month, in UTC.
    month = models.DateField()
    issued_at = models.DateTimeField()
    seller_name = models.CharField(max_length=200)
    seller_address = models.CharField(max_length=500, blank=True)
    seller_tax_id = models.CharField(max_length=30, blank=True)
    buyer_name = models.CharField(max_length=200)
    buyer_address = models.CharField(max_length=500, blank=True)
    buyer_country = models.CharField(max_length=2, blank=True)
    buyer_tax_id = models.CharField(max_length=30, blank=True)
    #: What was paid in the end, tax included; below zero where more came back.
    total_micros = models.BigIntegerField()
    #: Parts of a hundred thousand: 19 % is 19,000.
    tax_rate_milli_percent = models.PositiveIntegerField(default=0)
    tax_micros = models.BigIntegerField(default=0)
    #: Why there is no tax, where the law wants it said.
    tax_note = models.CharField(max_length=200, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="invoice_tax_within_total",
                condition=Q(total_micros__gte=0, tax_micros__gte=0)
                | Q(total_micros__lt=0, tax_micros__lte=0),
            )
        ]
        indexes = [models.Index(name="invoice_latest", fields=["organisation", "-issued_at"])]
        triggers = [
            pgtrigger.Protect(name="append_only", operation=pgtrigger.Update | pgtrigger.Delete)
        ]

    def __str__(self) -> str:
        return self.number

    @property
    def net_micros(self) -> int:
        return self.total_micros - self.tax_micros

    @property
    def is_credit_note(self) -> bool:
        """More came back in the month than was paid."""
        return self.total_micros < 0

    @property
    def title(self) -> str:
        return "Credit note" if self.is_credit_note else "Invoice"

    @property
    def buyer_country_name(self) -> str:
        """``Norway``."""
        return COUNTRY_NAMES.get(self.buyer_country, self.buyer_country)

    @property
    def month_name(self) -> str:
        """``2026-11``."""
        return f"{self.month:%Y-%m}"

    @property
    def tax_percent(self) -> str:
        """``19``, ``8.25``."""
        return f"{self.tax_rate_milli_percent / 1000:g}"


class InvoiceLineKind(models.TextChoices):
    CHARGE = "charge", "Price"
    REFUND = "refund", "Refund"
    CREDIT = "credit", "Credit for a missed deadline"


class InvoiceLine(models.Model):
    """What one job, or all answers of models together, came to."""

    invoice_id: str

    invoice = models.ForeignKey(
        Invoice, on_delete=models.PROTECT, related_name="lines", db_index=False
    )
    position = models.PositiveIntegerField()
    kind = models.CharField(max_length=10, choices=InvoiceLineKind.choices)
    text = models.CharField(max_length=300)
    #: How many entries of the ledger it sums up.
    count = models.PositiveIntegerField(default=1)
    amount_micros = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(name="invoice_line_once", fields=["invoice", "position"])
        ]
        triggers = [
            pgtrigger.Protect(name="append_only", operation=pgtrigger.Update | pgtrigger.Delete)
        ]

    def __str__(self) -> str:
        return f"{self.text}: {self.amount_micros}"


class InvoicedEntry(models.Model):
    """That an entry of the ledger stands on an invoice; on one, and once."""

    entry_id: str

    entry = models.OneToOneField(
        "payments.Entry", primary_key=True, on_delete=models.PROTECT, related_name="invoiced"
    )
    line = models.ForeignKey(InvoiceLine, on_delete=models.PROTECT, related_name="entries")

    class Meta:
        verbose_name_plural = "invoiced entries"
        triggers = [
            pgtrigger.Protect(name="append_only", operation=pgtrigger.Update | pgtrigger.Delete)
        ]

    def __str__(self) -> str:
        return self.entry_id
