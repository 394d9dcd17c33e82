"""Invoices: one for each organisation and month, made of the ledger's entries, each on one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime

from django.conf import settings
from django.db import transaction
from django.db.models import F, Max, Q, Sum
from django_countries.data import COUNTRIES

from marketplace.accounts.models import Organisation
from marketplace.common.errors import NotFound, UserError
from marketplace.common.money import format_usd_exact
from marketplace.payments.caps import find_period_start
from marketplace.payments.closed_months import CLOSES_AFTER
from marketplace.payments.ledger import house, post_entry
from marketplace.payments.locks import lock_invoice_series
from marketplace.payments.models import (
    REFUND_SOURCES,
    AccountKind,
    BillingDetails,
    CallKind,
    CapPeriod,
    EntryKind,
    Hold,
    Invoice,
    InvoicedEntry,
    InvoiceLine,
    InvoiceLineKind,
    InvoiceSeries,
    Posting,
)
from marketplace.payments.outbox import WantedCall, add_calls
from marketplace.payments.selectors import build_shares_filter
from marketplace.payments.taxes import InvoiceTax, find_tax, read_tax_id

#: Names of what holds were for, by the holds' references.
NameReferences = Callable[[Collection[str]], Mapping[str, str]]

_LINE_KINDS = {
    EntryKind.CHARGE: InvoiceLineKind.CHARGE,
    EntryKind.REFUND: InvoiceLineKind.REFUND,
    EntryKind.SLA_CREDIT: InvoiceLineKind.CREDIT,
}
#: On the page that lists them.
INVOICES_OF_PAGE = 24
#: What these accounts gain by such an entry, an organisation paid.
_SIDES = (*REFUND_SOURCES, AccountKind.SLA_CREDITS)


@dataclass(frozen=True, slots=True)
class _DueEntry:
    """An entry that is on no invoice yet."""

    entry_id: str
    kind: InvoiceLineKind
    hold_reference: str
    amount_micros: int


@dataclass(slots=True)
class _DueLine:
    kind: InvoiceLineKind
    text: str
    amount_micros: int = 0
    entry_ids: list[str] = field(default_factory=list)


def issue_due_invoices(*, now: datetime, name_references: NameReferences) -> int:
    """Issue an invoice for every organisation and month that is over; how many.

    An invoice without the gateway's answer about tax waits for the next run. A month whose entries
    are all on invoices, and that gets no more, is not looked at again.
    """
    before = find_period_start(CapPeriod.MONTH, now)
    since = InvoiceSeries.objects.aggregate(latest=Max("due_from"))["latest"]
    if since == before:
        return 0
    due = _load_due(since=since, before=before)
    issued = [
        _issue_invoice(
            organisation_id=organisation_id,
            month=month,
            lines=_build_lines(entries, name_references),
            now=now,
        )
        for (organisation_id, month), entries in sorted(due.items())
    ]
    if all(issued) and now >= before + CLOSES_AFTER:
        with transaction.atomic():
            series = lock_invoice_series(now.astimezone(UTC).year)
            series.due_from = before
            series.save(update_fields=["due_from"])
    return sum(issued)


def _load_due(
    *, since: datetime | None, before: datetime
) -> dict[tuple[str, date], list[_DueEntry]]:
    """Entries on no invoice, by organisation and month, in the order they were booked."""
    begins = {} if since is None else {"entry__booked_at__gte": since}
    postings = (
        Posting.objects.filter(
            account__kind__in=_SIDES,
            entry__kind__in=list(_LINE_KINDS),
            entry__booked_at__lt=before,
            **begins,
            entry__invoiced__isnull=True,
        )
        .order_by("entry__booked_at", "entry_id")
        .values_list(
            "entry_id", "entry__kind", "entry__hold_reference", "entry__booked_at", "amount_micros"
        )
    )
    rows = list(postings)
    holds = Hold.objects.filter(reference__in={reference for _, _, reference, _, _ in rows})
    owners = dict(holds.values_list("reference", "organisation_id"))
    due: defaultdict[tuple[str, date], list[_DueEntry]] = defaultdict(list)
    for entry_id, kind, reference, booked_at, amount in rows:
        month = booked_at.astimezone(UTC).date().replace(day=1)
        due[owners[reference], month].append(
            _DueEntry(entry_id, _LINE_KINDS[EntryKind(kind)], reference, amount)
        )
    return due


def _build_lines(entries: Sequence[_DueEntry], name_references: NameReferences) -> list[_DueLine]:
    """A line for each name and kind of amount, in the order of their first entries."""
    references = {entry.hold_reference for entry in entries}
    names, kept = name_references(references), _load_kept(references)
    lines: dict[tuple[str, str], _DueLine] = {}
    for entry in entries:
        text = names.get(entry.hold_reference, entry.hold_reference)
        if entry.kind == InvoiceLineKind.REFUND and entry.hold_reference in kept:
            amount = format_usd_exact(kept[entry.hold_reference])
            text = f"{text}, but for {amount} that is kept"
        line = lines.setdefault((text, entry.kind), _DueLine(entry.kind, text))
        line.amount_micros += entry.amount_micros
        line.entry_ids.append(entry.entry_id)
    return list(lines.values())


def _load_kept(references: Collection[str]) -> dict[str, int]:
    """What was kept of the prices of jobs that their owners ended, by hold.

    Nothing of one that all went back of since, as after a dispute.
    """
    kept = Posting.objects.filter(
        build_shares_filter(references), account__kind=AccountKind.CONGESTION
    )
    sums = kept.values("entry__hold_reference").annotate(total=Sum("amount_micros"))
    found = dict(sums.values_list("entry__hold_reference", "total"))
    gone = Hold.objects.filter(reference__in=found, refunded_micros=F("charged_micros"))
    for reference in gone.values_list("reference", flat=True):
        del found[reference]
    return found


def _issue_invoice(
    *, organisation_id: str, month: date, lines: Sequence[_DueLine], now: datetime
) -> bool:
    """Whether it was issued."""
    buyer = get_billing_details(Organisation.objects.get(pk=organisation_id))
    total_micros = sum(line.amount_micros for line in lines)
    with transaction.atomic():
        # One at a time: of two runs, the second finds the entries on the first one's invoice.
        series = lock_invoice_series(now.astimezone(UTC).year)
        entry_ids = [entry_id for line in lines for entry_id in line.entry_ids]
        if InvoicedEntry.objects.filter(entry__in=entry_ids).exists():
            return False
        tax = find_tax(buyer=buyer, total_micros=total_micros, now=now)
        if tax is None:
            return False
        series.last_number += 1
        series.save(update_fields=["last_number"])
        invoice = _create_invoice(
            number=f"{series.year}-{series.last_number:06d}",
            buyer=buyer,
            month=month,
            total_micros=total_micros,
            tax=tax,
            now=now,
        )
        _create_lines(invoice, lines)
        if invoice.tax_micros:
            post_entry(
                kind=EntryKind.TAX,
                reference=invoice.number,
                amounts={
                    house(AccountKind.REVENUE): -invoice.tax_micros,
                    house(AccountKind.TAXES): invoice.tax_micros,
                },
                locked={},
                now=now,
            )
        if tax.calculation_id:
            tax_record = {"calculation": tax.calculation_id, "number": invoice.number}
            add_calls([WantedCall(CallKind.TAX_RECORD, invoice.pk, tax_record)], now=now)
    return True


def _create_invoice(
    *,
    number: str,
    buyer: BillingDetails,
    month: date,
    total_micros: int,
    tax: InvoiceTax,
    now: datetime,
) -> Invoice:
    return Invoice.objects.create(
        number=number,
        organisation_id=buyer.organisation_id,
        month=month,
        issued_at=now,
        seller_name=settings.SELLER_NAME,
        seller_address=settings.SELLER_ADDRESS,
        seller_tax_id=settings.SELLER_TAX_ID,
        buyer_name=buyer.legal_name,
        buyer_address=buyer.address,
        buyer_country=buyer.country,
        buyer_tax_id=buyer.tax_id,
        total_micros=total_micros,
        tax_rate_milli_percent=tax.rate_milli_percent,
        tax_micros=tax.tax_micros,
        tax_note=tax.note,
    )


def _create_lines(invoice: Invoice, lines: Iterable[_DueLine]) -> None:
    for position, line in enumerate(lines, start=1):
        row = InvoiceLine.objects.create(
            invoice=invoice,
            position=position,
            kind=line.kind,
            text=line.text[:300],
            count=len(line.entry_ids),
            amount_micros=line.amount_micros,
        )
        InvoicedEntry.objects.bulk_create(
            [InvoicedEntry(entry_id=entry_id, line=row) for entry_id in line.entry_ids]
        )


def get_billing_details(organisation: Organisation) -> BillingDetails:
    """What the organisation gave; until then its name, and not stored."""
    found = BillingDetails.objects.filter(organisation=organisation).first()
    return found or BillingDetails(organisation=organisation, legal_name=organisation.name)


def set_billing_details(
    *,
    organisation: Organisation,
    legal_name: str,
    address: str,
    country: str,
    tax_id: str,
    postal_code: str = "",
) -> BillingDetails:
    """Set whom the next invoices are addressed to; those issued stay as they are.

    Raises
    ------
    UserError
        ``invalid_details`` or ``invalid_tax_id``, with the field that is wrong.
    """
    if not legal_name.strip():
        raise UserError("invalid_details", "Write the name of the buyer.", param="legal_name")
    if country and country not in COUNTRIES:
        raise UserError("invalid_details", "Choose a country of the list.", param="country")
    if tax_id.strip() and not country:
        raise UserError("invalid_details", "A tax id needs its country.", param="country")
    for name, text, longest in (
        ("legal_name", legal_name, 200),
        ("address", address, 500),
        ("postal_code", postal_code, 20),
    ):
        if len(text) > longest:
            raise UserError("invalid_details", f"At most {longest} characters.", param=name)
        if "\0" in text:
            raise UserError("invalid_details", "It has a character that is no text.", param=name)
    details, _ = BillingDetails.objects.update_or_create(
        organisation=organisation,
        defaults={
            "legal_name": legal_name.strip(),
            "address": address.strip(),
            "country": country,
            "postal_code": postal_code.strip(),
            "tax_id": read_tax_id(tax_id, country=country),
        },
    )
    return details


def list_invoices(
    organisation: Organisation, *, before: str = ""
) -> tuple[list[Invoice], Invoice | None]:
    """A page of them, the latest first, and the one to go on after where there are more.

    Parameters
    ----------
    before
        Number of the last one of the page before; without one, the first page.

    Raises
    ------
    NotFound
        ``unknown_invoice``.
    """
    invoices = Invoice.objects.filter(organisation=organisation).order_by("-issued_at", "-number")
    if before:
        last = get_invoice(organisation=organisation, number=before)
        of_its_time = Q(issued_at=last.issued_at, number__lt=last.number)
        invoices = invoices.filter(Q(issued_at__lt=last.issued_at) | of_its_time)
    found = list(invoices[: INVOICES_OF_PAGE + 1])
    page = found[:INVOICES_OF_PAGE]
    return page, page[-1] if len(found) > INVOICES_OF_PAGE else None


def get_invoice(*, organisation: Organisation, number: str) -> Invoice:
    """One of the organisation's own.

    Raises
    ------
    NotFound
        ``unknown_invoice``.
    """
    found = Invoice.objects.filter(organisation=organisation, number=number.replace("\0", ""))
    invoice = found.first()
    if invoice is None:
        raise NotFound("unknown_invoice", "There is no such invoice.")
    return invoice
