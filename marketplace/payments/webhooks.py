"""The webhook inbox: events of the gateway, stored as they come and applied later, in any order.

An event only says that an object may have changed. How the object stands is asked of the gateway,
so an event that is late, repeated or out of order does no harm.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from django.db import transaction
from django.db.models import Q

from marketplace.common.durable.kinds import HeldWork, WorkFailed
from marketplace.common.durable.services import NewWork, enqueue_work
from marketplace.common.errors import NotFound, UserError
from marketplace.common.money import format_usd_exact
from marketplace.payments import stripe_accounts, stripe_doubts
from marketplace.payments import stripe_gateway as gateway
from marketplace.payments.card_payments import record_intent
from marketplace.payments.card_refunds import take_refund_back
from marketplace.payments.chargebacks import record_chargeback
from marketplace.payments.freezes import end_freeze, freeze_organisation
from marketplace.payments.models import (
    CardPayment,
    CardRefund,
    Payout,
    PayoutAccount,
    PayoutStatus,
    RefundStatus,
    WebhookEvent,
)
from marketplace.payments.payout_calls import record_payout
from marketplace.payments.payouts import refresh_payout_account
from marketplace.payments.stripe_client import GatewayFault
from marketplace.payments.stripe_events import GatewayEvent, list_events, read_event

log = logging.getLogger(__name__)

#: The kind of work that applying an event is.
APPLY_EVENT = "payments.event_apply"
#: Bytes; no event of the gateway is near it.
BODY_MAX = 512 * 1024
#: How long the gateway remembers an event.
MISSED_WITHIN = timedelta(days=30)


def receive_webhook(*, body: bytes, signature: str, now: datetime) -> WebhookEvent:
    """Store an event with a valid signature, once; a repeated one changes nothing.

    Raises
    ------
    UserError
        ``invalid_signature``; nothing is stored.
    """
    event = read_event(body=body, signature=signature)
    return _store_event(event, now=now)[0]


def fetch_missed_events(*, now: datetime) -> int:
    """Ask the gateway for events that it could not deliver, and store them; how many were new.

    Call outside of transactions. Events of accounts are asked for while something of theirs is
    open: a payout on its way to a bank, or a question about who they are.
    """
    open_accounts = PayoutAccount.objects.filter(
        Q(is_ready=False) | Q(organisation__payouts__status=PayoutStatus.SENT)
    )
    accounts = ["", *open_accounts.distinct().values_list("gateway_id", flat=True)]
    since = now - MISSED_WITHIN
    return sum(_fetch_events_of(account_id, since=since, now=now) for account_id in accounts)


def fetch_events_since(*, since: datetime, now: datetime) -> int:
    """Ask the gateway for all events, which were delivered to a market that is lost; how many.

    Call outside of transactions. The gateway knows those of ``MISSED_WITHIN``.
    """
    accounts = ["", *PayoutAccount.objects.values_list("gateway_id", flat=True)]
    return sum(
        _fetch_events_of(account_id, since=since, with_delivered=True, now=now)
        for account_id in accounts
    )


def _fetch_events_of(
    account_id: str, *, since: datetime, now: datetime, with_delivered: bool = False
) -> int:
    try:
        missed = list_events(since=since, account_id=account_id, with_delivered=with_delivered)
    except (GatewayFault, UserError) as fault:
        log.warning("events of %s could not be fetched: %s", account_id or "the market", fault)
        return 0
    known = set(
        WebhookEvent.objects.filter(pk__in=[event.gateway_id for event in missed]).values_list(
            "pk", flat=True
        )
    )
    return sum(_store_event(event, now=now)[1] for event in missed if event.gateway_id not in known)


def _store_event(event: GatewayEvent, *, now: datetime) -> tuple[WebhookEvent, bool]:
    with transaction.atomic():
        stored = WebhookEvent.objects.get_or_create(
            pk=event.gateway_id,
            defaults={
                "kind": event.kind[:80],
                "object_id": event.object_id,
                "account_id": event.account_id,
                "received_at": now,
            },
        )
        if stored[1]:
            enqueue_work(NewWork(APPLY_EVENT, event.gateway_id, due_at=now))
    return stored


def load_event(work: HeldWork) -> WebhookEvent | None:
    """The event, unless it was applied."""
    return WebhookEvent.objects.filter(pk=work.key, done_at=None).first()


@dataclass(frozen=True, slots=True)
class Finding:
    """How the object of an event stands at the gateway."""

    #: What becomes of the event, in words.
    outcome: str
    #: What writes it down, in this order; each takes ``now``.
    records: tuple[Callable[..., object], ...] = ()


def ask_about_event(_work: HeldWork, event: WebhookEvent) -> Finding:
    """Ask the gateway how the object of an event stands.

    Raises
    ------
    WorkFailed
        The gateway has a fault, or what it tells of is not booked yet.
    """
    try:
        if event.object_id.startswith("pi_"):
            return _ask_about_intent(event.object_id)
        if event.kind.startswith("charge.dispute."):
            return _ask_about_chargeback(event.object_id)
        if event.kind.startswith("refund."):
            return _ask_about_refund(event.object_id)
        if event.kind.startswith("radar.early_fraud_warning."):
            return _ask_about_warning(event.object_id)
        if event.kind.startswith("review."):
            return _ask_about_review(event.object_id)
        if event.kind == "account.updated":
            return _refresh_account(event.object_id)
        if event.kind == "account.application.deauthorized":
            return _cut_off_account(event.account_id)
        if event.object_id.startswith("po_") and event.account_id:
            return _ask_about_payout(event)
    except NotFound:
        return Finding("the gateway knows no such object")
    except GatewayFault as fault:
        raise WorkFailed(str(fault)) from fault
    return Finding("nothing to do")


def apply_event(_work: HeldWork, event: WebhookEvent, found: Finding, *, now: datetime) -> None:
    """Write down how the object stands, and what became of its event."""
    for record in found.records:
        record(now=now)
    event.done_at, event.outcome = now, found.outcome[:300]
    event.save(update_fields=["done_at", "outcome"])


def _ask_about_chargeback(gateway_id: str) -> Finding:
    chargeback = stripe_doubts.get_chargeback(gateway_id)
    # Its payment first, which may not be written down yet.
    found = _ask_about_intent(chargeback.intent_id)
    if not found.records:
        return found
    return replace(found, records=(*found.records, partial(record_chargeback, chargeback)))


def _ask_about_refund(gateway_id: str) -> Finding:
    """Only one that failed says something new: it was booked when it was made."""
    state = gateway.get_refund(gateway_id)
    refund = CardRefund.objects.filter(pk=state.refund_id).first()
    if refund is None:
        return Finding("not a refund of ours")
    if not state.has_failed:
        return Finding("nothing to do")
    if refund.status == RefundStatus.WAITING:
        # The call that made it is not booked yet.
        raise WorkFailed("the refund is not written down yet")
    record = partial(take_refund_back, refund_id=state.refund_id, why=state.failure)
    return Finding("applied", (record,))


def _ask_about_warning(gateway_id: str) -> Finding:
    """The card's bank suspects fraud: nothing more is bought with it until an operator looked."""
    return _doubt_payment(
        stripe_doubts.find_warned_intent(gateway_id),
        reference=gateway_id,
        why="A card's bank warns that a payment of {amount} may be fraud.",
    )


def _ask_about_review(gateway_id: str) -> Finding:
    """The gateway wants a person to look at a payment: until then nothing is bought with it."""
    review = stripe_doubts.get_review(gateway_id)
    if review.is_open:
        return _doubt_payment(
            review.intent_id,
            reference=gateway_id,
            why="The gateway wants an operator to look at a payment of {amount}.",
        )
    if review.is_approved:
        opened = WebhookEvent.objects.filter(kind="review.opened", object_id=gateway_id)
        if opened.filter(done_at=None).exists():
            # Asked before, it may freeze after this ends the freeze.
            raise WorkFailed("its opening is not worked off yet")
        return Finding("applied", (partial(end_freeze, reference=gateway_id),))
    return Finding("an operator lifts the freeze")


def _doubt_payment(intent_id: str, *, reference: str, why: str) -> Finding:
    payment = CardPayment.objects.filter(gateway_id=intent_id).first() if intent_id else None
    if payment is None:
        return Finding("not a payment of ours")
    record = partial(
        freeze_organisation,
        organisation_id=payment.organisation_id,
        reference=reference,
        reason=why.format(amount=format_usd_exact(payment.amount_micros)),
    )
    return Finding("applied", (record,))


def _cut_off_account(account_id: str) -> Finding:
    """The account's owner cut it off from the market: it can be paid no more."""
    known = PayoutAccount.objects.filter(gateway_id=account_id)
    is_ours = known.update(is_ready=False, needs=["deauthorised"])
    return Finding("applied" if is_ours else "not an account of ours")


def _refresh_account(account_id: str) -> Finding:
    known = PayoutAccount.objects.filter(gateway_id=account_id)
    organisation_id = known.values_list("organisation", flat=True).first()
    if organisation_id is None:
        return Finding("not an account of ours")
    refresh_payout_account(organisation_id)
    return Finding("applied")


def _ask_about_payout(event: WebhookEvent) -> Finding:
    state = stripe_accounts.get_payout(event.object_id, account_id=event.account_id)
    payout_id = state.payout_id.partition(":")[0]
    known = Payout.objects.filter(
        pk=payout_id, organisation__payout_account__gateway_id=event.account_id
    )
    if not known.exists():
        return Finding("not a payout of ours")
    return Finding("applied", (partial(record_payout, state, payout_id=payout_id),))


def _ask_about_intent(gateway_id: str) -> Finding:
    intent = gateway.get_intent(gateway_id)
    # By our row's name too: the process that made it may have died before it wrote down its id.
    named = CardPayment.objects.filter(gateway_id=gateway_id) | CardPayment.objects.filter(
        pk=intent.payment_id, gateway_id=None
    )
    payment_id = named.values_list("pk", flat=True).first()
    if payment_id is None:
        return Finding("not a payment of ours")
    return Finding("applied", (partial(record_intent, intent, payment_id=payment_id),))
