"""Bids that a card pays: the amount is authorised first, and then the bid is placed.

The lane knows nothing of it. When it decides, the hold's end captures the price or gives the
authorisation back.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.utils.dateparse import parse_datetime

from marketplace.accounts.models import User
from marketplace.auction.bidding.place import NewBid, draft_bid, place_bid
from marketplace.auction.models import Bid
from marketplace.auction.models.bids import HOLD_PREFIX
from marketplace.common.errors import UserError
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Dataset
from marketplace.payments.card_payments import (
    CardChoice,
    cancel_payment,
    fail_authorised,
    start_payment,
    to_cents,
)
from marketplace.payments.models import CardPayment, Hold, PaymentPurpose, PaymentStatus
from marketplace.vendors.endpoints import ask_for_bid

log = logging.getLogger(__name__)


def authorise_bid(
    *, asked: NewBid, asked_by: User, card_id: str | None, now: datetime
) -> CardPayment:
    """Ask a card for a bid's amount; the bid is placed once it is authorised.

    Raises
    ------
    UserError
        The bid is refused as it stands, or no card pays the amount; nothing is stored.
    """
    quotes = ask_for_bid(
        zone=asked.zone, dataset=asked.dataset, preparation=asked.preparation, now=now
    )
    draft_bid(replace(asked, quotes=quotes), now=now)
    return start_payment(
        organisation=asked.organisation,
        purpose=PaymentPurpose.BID,
        amount_cents=to_cents(asked.price_micros),
        created_by=asked_by,
        key=f"bid-{asked.idempotency_key}",
        card=CardChoice(card_id),
        terms=asked.write_terms(),
        now=now,
    )


def place_authorised_bid(*, payment: CardPayment, now: datetime) -> Bid | None:
    """Place the bid of an authorised payment, once; refused, the card gets its amount back."""
    placed = _find_bid(payment)
    if placed is not None or payment.status != PaymentStatus.AUTHORISED or payment.failure:
        return placed
    try:
        bid = place_bid(asked=_read_terms(payment), now=now)
    except UserError as error:
        fail_authorised(payment_id=payment.pk, reason=error.message, now=now)
        return None
    if bid.hold_reference != _find_reference(payment):
        # The same form was sent a second time and paid from the wallet; that bid stands.
        cancel_payment(payment_id=payment.pk, now=now)
    return bid


def place_authorised_bids(*, now: datetime) -> int:
    """Place authorised bids whose owners left the page; the number placed."""
    waiting = CardPayment.objects.filter(
        purpose=PaymentPurpose.BID, status=PaymentStatus.AUTHORISED, failure="", hold=None
    ).select_related("organisation", "created_by")
    for payment in list(waiting[:100]):
        try:
            place_authorised_bid(payment=payment, now=now)
        except Exception:
            # Other bids must not wait for this one; it is tried again.
            log.exception("the bid of %s could not be placed", payment.pk)
    return len(waiting)


def _find_reference(payment: CardPayment) -> str | None:
    holds = Hold.objects.filter(card_payment=payment)
    return holds.values_list("reference", flat=True).first()


def _find_bid(payment: CardPayment) -> Bid | None:
    reference = _find_reference(payment)
    return None if reference is None else Bid.objects.get(pk=reference.removeprefix(HOLD_PREFIX))


def _read_terms(payment: CardPayment) -> NewBid:
    """Read what ``NewBid.write_terms`` wrote, as it is bid for now.

    Raises
    ------
    UserError
        ``no_dataset``.
    """
    terms = dict(payment.terms or {})
    zone = Zone.objects.filter(pk=terms["zone"]).first()
    own = Dataset.objects.filter(organisation=payment.organisation_id)
    rows = {
        name: own.filter(pk=terms[name]).first()
        for name in ("dataset", "validation")
        if terms[name] is not None
    }
    deadline_at = parse_datetime(terms["deadline_at"])
    if zone is None or deadline_at is None or None in rows.values():
        raise UserError("no_dataset", "The data set was deleted. Upload it again.")
    asked: dict[str, Any] = terms | rows | {"zone": zone, "deadline_at": deadline_at}
    return NewBid(
        organisation=payment.organisation,
        placed_by=payment.created_by,
        card_payment_id=payment.pk,
        **asked,
    )
