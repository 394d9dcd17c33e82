"""The webhook inbox: events of the gateway, stored as they come and applied later, in any order.

An event only says that an object may have changed. How the object stands is asked of the gateway,
so an event that is late, repeated or out of order does no harm.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q

from marketplace.common.errors import NotFound, UserError
from marketplace.common.queue import enqueue
from marketplace.payments import stripe_accounts
from marketplace.payments import stripe_gateway as gateway
from marketplace.payments.card_payments import record_intent
from marketplace.payments.chargebacks import record_chargeback
from marketplace.payments.locks import lock_event
from marketplace.payments.models import (
    CardPayment,
    Payout,
    PayoutAccount,
    PayoutStatus,
    WebhookEvent,
)
from marketplace.payments.payouts import record_payout, refresh_payout_account
from marketplace.payments.stripe_client import GatewayFault
from marketplace.payments.stripe_gateway import GatewayEvent

log = logging.getLogger(__name__)

PROCESS_EVENTS = "payments.webhooks_process"
#: Bytes; no event of the gateway is near it.
BODY_MAX = 512 * 1024
EVENTS_PER_RUN = 200
#: How long the gateway remembers an event.
MISSED_WITHIN = timedelta(days=30)
PAUSE_MAX = timedelta(hours=1)


def receive_webhook(*, body: bytes, signature: str, now: datetime) -> WebhookEvent:
    """Store an event with a valid signature, once; a repeated one changes nothing.

    Raises
    ------
    UserError
        ``invalid_signature``; nothing is stored.
    """
    event = gateway.read_event(body=body, signature=signature)
    return _store_event(event, body.decode(), now=now)[0]


def fetch_missed_events(*, now: datetime) -> int:
    """Ask the gateway for events that it could not deliver, and store them; how many were new.

    Call outside of transactions. Events of accounts are asked for while something of theirs is
    open: a payout on its way to a bank, or a question about who they are.
    """
    open_accounts = PayoutAccount.objects.filter(
        Q(is_ready=False) | Q(organisation__payouts__status=PayoutStatus.SENT)
    )
    accounts = ["", *open_accounts.distinct().values_list("gateway_id", flat=True)]
    return sum(_fetch_missed_of(account_id, now=now) for account_id in accounts)


def _fetch_missed_of(account_id: str, *, now: datetime) -> int:
    try:
        missed = gateway.list_undelivered_events(since=now - MISSED_WITHIN, account_id=account_id)
    except (GatewayFault, UserError) as fault:
        log.warning("events of %s could not be fetched: %s", account_id or "the market", fault)
        return 0
    known = set(
        WebhookEvent.objects.filter(pk__in=[event.gateway_id for event, _ in missed]).values_list(
            "pk", flat=True
        )
    )
    return sum(
        _store_event(event, body, now=now)[1]
        for event, body in missed
        if event.gateway_id not in known
    )


def _store_event(event: GatewayEvent, body: str, *, now: datetime) -> tuple[WebhookEvent, bool]:
    with transaction.atomic():
        stored = WebhookEvent.objects.get_or_create(
            pk=event.gateway_id,
            defaults={
                "kind": event.kind[:80],
                "object_id": event.object_id,
                "account_id": event.account_id,
                "body": body,
                "received_at": now,
                "due_at": now,
            },
        )
        enqueue(PROCESS_EVENTS)
    return stored


def process_events(*, now: datetime) -> int:
    """Apply every stored event that is due; how many were looked at."""
    due = WebhookEvent.objects.filter(done_at=None, due_at__lte=now).order_by("received_at")
    events = list(due[:EVENTS_PER_RUN])
    for event in events:
        try:
            outcome = _apply_event(event, now=now)
        except GatewayFault as fault:
            _postpone(event, str(fault), now=now)
        except NotFound:
            _conclude(event, "the gateway knows no such object", now=now)
        except Exception as error:
            log.exception("the event %s could not be applied", event.pk)
            _postpone(event, f"{type(error).__name__}: {error}", now=now)
        else:
            _conclude(event, outcome, now=now)
    return len(events)


def _apply_event(event: WebhookEvent, *, now: datetime) -> str:
    """What became of it; the gateway is asked outside of any transaction."""
    if event.object_id.startswith("pi_"):
        return _apply_intent_event(event.object_id, now=now)
    if event.kind.startswith("charge.dispute."):
        return _apply_chargeback_event(event.object_id, now=now)
    if event.kind == "account.updated":
        return _apply_account_event(event.object_id)
    if event.object_id.startswith("po_") and event.account_id:
        return _apply_payout_event(event, now=now)
    return "nothing to do"


def _apply_chargeback_event(gateway_id: str, *, now: datetime) -> str:
    chargeback = gateway.get_chargeback(gateway_id)
    # Its payment first, which may not be written down yet.
    outcome = _apply_intent_event(chargeback.intent_id, now=now)
    if outcome == "applied":
        with transaction.atomic(durable=True):
            record_chargeback(chargeback, now=now)
    return outcome


def _apply_account_event(account_id: str) -> str:
    known = PayoutAccount.objects.filter(gateway_id=account_id)
    organisation_id = known.values_list("organisation", flat=True).first()
    if organisation_id is None:
        return "not an account of ours"
    refresh_payout_account(organisation_id)
    return "applied"


def _apply_payout_event(event: WebhookEvent, *, now: datetime) -> str:
    state = stripe_accounts.get_payout(event.object_id, account_id=event.account_id)
    payout_id = state.payout_id.partition(":")[0]
    known = Payout.objects.filter(
        pk=payout_id, organisation__payout_account__gateway_id=event.account_id
    )
    if not known.exists():
        return "not a payout of ours"
    with transaction.atomic(durable=True):
        record_payout(state, payout_id=payout_id, now=now)
    return "applied"


def _apply_intent_event(gateway_id: str, *, now: datetime) -> str:
    intent = gateway.get_intent(gateway_id)
    # By our row's name too: the process that made it may have died before it wrote down its id.
    named = CardPayment.objects.filter(gateway_id=gateway_id) | CardPayment.objects.filter(
        pk=intent.payment_id, gateway_id=None
    )
    payment_id = named.values_list("pk", flat=True).first()
    if payment_id is None:
        return "not a payment of ours"
    with transaction.atomic(durable=True):
        record_intent(intent, payment_id=payment_id, now=now)
    return "applied"


def _conclude(event: WebhookEvent, outcome: str, *, now: datetime) -> None:
    with transaction.atomic():
        locked = lock_event(event.pk)
        if locked.done_at is None:
            locked.done_at, locked.outcome = now, outcome[:300]
            locked.save(update_fields=["done_at", "outcome"])


def _postpone(event: WebhookEvent, why: str, *, now: datetime) -> None:
    with transaction.atomic():
        locked = lock_event(event.pk)
        locked.attempts += 1
        locked.due_at = now + min(timedelta(seconds=2.0 ** min(locked.attempts, 20)), PAUSE_MAX)
        locked.outcome = why[:300]
        locked.save(update_fields=["attempts", "due_at", "outcome"])
