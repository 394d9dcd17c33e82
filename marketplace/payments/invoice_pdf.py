"""An invoice as a PDF: the same words and sums as its page, the same bytes each time."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from reportlab.lib.colors import Color, HexColor
from reportlab.lib.enums import TA_RIGHT
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.cidfonts import UnicodeCIDFont
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.platypus import LongTable, Paragraph, SimpleDocTemplate, Spacer, Table, TableStyle

from marketplace.common.money import count_decimals, format_usd_exact
from marketplace.payments.models import Invoice, InvoiceLineKind

_FONT_FILE = Path(__file__).parent / "fonts" / "DejaVuSans.ttf"
_FONT = "DejaVuSans"
#: For what the font above lacks, such as Chinese; readers of PDF bring it along.
_FALLBACK = "STSong-Light"
_INK, _MUTED, _RULE = HexColor("#16181d"), HexColor("#5c6270"), HexColor("#d5d8de")


def build_pdf(invoice: Invoice) -> bytes:
    """The invoice on A4 pages."""
    _register_fonts()
    file = io.BytesIO()
    document = SimpleDocTemplate(
        file,
        pagesize=A4,
        leftMargin=20 * mm,
        rightMargin=20 * mm,
        topMargin=20 * mm,
        bottomMargin=20 * mm,
        title=f"{invoice.title} {invoice.number}",
        author=invoice.seller_name,
        # Without the time of making: the same invoice is the same file.
        invariant=True,
    )
    document.build(
        [
            *_build_head(invoice),
            _build_lines(invoice),
            Spacer(0, 6 * mm),
            _build_totals(invoice),
            Spacer(0, 8 * mm),
            *([_write(invoice.tax_note)] if invoice.tax_note else []),
            _write("Paid from the wallet or by card when each bid won. Nothing is due.", _MUTED),
        ],
        onFirstPage=_number_page,
        onLaterPages=_number_page,
    )
    return file.getvalue()


def _build_head(invoice: Invoice) -> list[Any]:
    seller = [invoice.seller_name, *invoice.seller_address.splitlines(), invoice.seller_tax_id]
    buyer = [
        invoice.buyer_name,
        *invoice.buyer_address.splitlines(),
        invoice.buyer_country_name,
        invoice.buyer_tax_id,
    ]
    parties = Table(
        [
            [_write("From", _MUTED), _write("To", _MUTED)],
            [_write_block(seller), _write_block(buyer)],
        ],
        colWidths=[85 * mm, 85 * mm],
        style=_PLAIN,
    )
    return [
        _write(f"{invoice.title} {invoice.number}", size=18),
        Spacer(0, 3 * mm),
        _write(f"For {invoice.month:%B %Y}, issued on {invoice.issued_at:%-d %B %Y} (UTC)", _MUTED),
        Spacer(0, 8 * mm),
        parties,
        Spacer(0, 8 * mm),
    ]


def _build_lines(invoice: Invoice) -> LongTable:
    lines = list(invoice.lines.order_by("position"))
    decimals = count_decimals(line.amount_micros for line in lines)
    rows: list[list[Any]] = [
        [_write("What", _MUTED), _write("Kind", _MUTED), _write("Amount", _MUTED, right=True)]
    ]
    for line in lines:
        times = f" ({line.count:,})" if line.count > 1 else ""
        rows.append(
            [
                _write(f"{line.text}{times}"),
                _write(InvoiceLineKind(line.kind).label),
                _write(format_usd_exact(line.amount_micros, decimals=decimals), right=True),
            ]
        )
    return LongTable(
        rows, colWidths=[95 * mm, 40 * mm, 35 * mm], repeatRows=1, style=_RULED, hAlign="LEFT"
    )


def _build_totals(invoice: Invoice) -> Table:
    sums = [("Net", invoice.net_micros)]
    if invoice.tax_rate_milli_percent:
        sums.append((f"Tax, {invoice.tax_percent} %", invoice.tax_micros))
    sums.append(("Total", invoice.total_micros))
    decimals = count_decimals(amount for _, amount in sums)
    rows = [
        ["", _write(name), _write(format_usd_exact(amount, decimals=decimals), right=True)]
        for name, amount in sums
    ]
    return Table(rows, colWidths=[95 * mm, 40 * mm, 35 * mm], style=_PLAIN, hAlign="LEFT")


_PLAIN = TableStyle(
    [
        ("VALIGN", (0, 0), (-1, -1), "TOP"),
        ("LEFTPADDING", (0, 0), (-1, -1), 0),
        ("RIGHTPADDING", (0, 0), (-1, -1), 0),
        ("TOPPADDING", (0, 0), (-1, -1), 2),
        ("BOTTOMPADDING", (0, 0), (-1, -1), 2),
    ]
)
_RULED = TableStyle([*_PLAIN.getCommands(), ("LINEBELOW", (0, 0), (-1, -1), 0.5, _RULE)])


def _write_block(texts: list[str]) -> list[Paragraph]:
    return [_write(text) for text in texts if text]


def _write(text: str, color: Color = _INK, *, size: float = 9.5, right: bool = False) -> Paragraph:
    """Text of anyone, as text: no markup in it counts."""
    style = ParagraphStyle(
        "text",
        fontName=_choose_font(text),
        fontSize=size,
        leading=size * 1.35,
        textColor=color,
        alignment=TA_RIGHT if right else 0,
    )
    return Paragraph(escape(text), style)


def _choose_font(text: str) -> str:
    known = pdfmetrics.getFont(_FONT).face.charToGlyph  # type: ignore[attr-defined]
    return _FONT if all(ord(letter) in known for letter in text) else _FALLBACK


@cache
def _register_fonts() -> None:
    pdfmetrics.registerFont(TTFont(_FONT, _FONT_FILE))
    pdfmetrics.registerFont(UnicodeCIDFont(_FALLBACK))


def _number_page(canvas: Any, document: Any) -> None:
    canvas.setFont(_FONT, 8)
    canvas.setFillColor(_MUTED)
    canvas.drawRightString(190 * mm, 12 * mm, f"Page {document.page}")
