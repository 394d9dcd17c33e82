"""Making the calls of the outbox: each is claimed, made outside of any transaction, and applied.

A process may die at any point. Before the claim, nothing happened. After it, the claim runs out
and another process makes the call again: under the same idempotency key, and only after looking
for what the attempt before it may have done. Applying an answer twice changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from marketplace.common.errors import NotFound, UserError
from marketplace.payments.card_calls import (
    find_captured,
    find_intent_of,
    make_cancel,
    make_capture,
    make_intent,
)
from marketplace.payments.card_payments import apply_intent, conclude_uncollected
from marketplace.payments.card_refunds import (
    conclude_refund,
    find_refund,
    make_refund,
    return_to_wallet,
)
from marketplace.payments.locks import lock_call, lock_due_call
from marketplace.payments.models import CallKind, CallStatus, GatewayCall
from marketplace.payments.outbox import RUN_CALLS
from marketplace.payments.payouts import (
    apply_payout,
    conclude_reversal,
    conclude_transfer,
    fail_payout,
    find_payout,
    find_reversal,
    find_transfer,
    make_payout,
    make_reversal,
    make_transfer,
    refuse_reversal,
    return_transfer,
)
from marketplace.payments.stripe_client import GatewayFault, GatewayRefused
from marketplace.payments.taxes import apply_tax, make_tax, make_tax_record
from marketplace.payments.top_ups import make_detach

log = logging.getLogger(__name__)

#: Longer than a call may take.
CLAIM = timedelta(seconds=120)
#: The longest pause between two attempts.
PAUSE_MAX = timedelta(hours=1)
#: Calls made by one run; the next finds the others.
CALLS_PER_RUN = 100
#: From so many attempts on, the operator hears of it.
ATTEMPTS_ALERT = 5


@dataclass(frozen=True, slots=True)
class CallSteps:
    """How one kind of call is made; only ``apply`` and ``refuse`` run in a transaction."""

    #: The gateway's answer.
    make: Callable[[GatewayCall], Any]
    #: What an earlier attempt did, or ``None`` when it did nothing.
    find: Callable[[GatewayCall], Any]
    #: Book the answer.
    apply: Callable[..., None]
    #: Book that the gateway said no.
    refuse: Callable[..., None]


def _ignore_answer(_call: GatewayCall, *, answer: Any, now: datetime) -> None:
    """Nothing of ours depends on it."""


def _ignore_refusal(_call: GatewayCall, *, error: UserError, now: datetime) -> None:
    """The call's own record of the refusal is enough."""


STEPS: dict[str, CallSteps] = {
    CallKind.INTENT: CallSteps(make_intent, find_intent_of, apply_intent, _ignore_refusal),
    CallKind.CAPTURE: CallSteps(make_capture, find_captured, apply_intent, conclude_uncollected),
    CallKind.CANCEL: CallSteps(make_cancel, lambda _: None, apply_intent, _ignore_refusal),
    CallKind.REFUND: CallSteps(make_refund, find_refund, conclude_refund, return_to_wallet),
    CallKind.DETACH: CallSteps(make_detach, lambda _: None, _ignore_answer, _ignore_refusal),
    CallKind.TRANSFER: CallSteps(make_transfer, find_transfer, conclude_transfer, return_transfer),
    CallKind.REVERSAL: CallSteps(make_reversal, find_reversal, conclude_reversal, refuse_reversal),
    CallKind.PAYOUT: CallSteps(make_payout, find_payout, apply_payout, fail_payout),
    CallKind.TAX: CallSteps(make_tax, lambda _: None, apply_tax, _ignore_refusal),
    CallKind.TAX_RECORD: CallSteps(
        make_tax_record, lambda _: None, _ignore_answer, _ignore_refusal
    ),
}


def run_due_calls(*, now: datetime) -> int:
    """Make every call that is due; how many were looked at."""
    due = GatewayCall.objects.filter(status=CallStatus.WAITING, due_at__lte=now)
    ids = list(due.order_by("due_at", "pk").values_list("pk", flat=True)[:CALLS_PER_RUN])
    for call_id in ids:
        try:
            run_call(call_id=call_id, now=now)
        except Exception:
            # After an unexpected failure a call waits until its claim runs out.
            log.exception("the gateway call %s failed", call_id)
    return len(ids)


def run_call(*, call_id: str, now: datetime) -> GatewayCall:
    """Make one call now, unless it was made or is being made; call outside of any transaction."""
    with transaction.atomic(durable=True):
        call = lock_due_call(call_id, now=now)
        if call is None:
            return GatewayCall.objects.get(pk=call_id)
        call.claimed_until_at = now + CLAIM
        call.attempts += 1
        call.save(update_fields=["claimed_until_at", "attempts"])
    steps = STEPS[call.kind]
    is_asked = False
    try:
        answer = steps.find(call) if call.attempts > 1 else None
        if answer is None:
            is_asked = True
            answer = steps.make(call)
    except GatewayFault as fault:
        return _postpone(call, fault, wants_new_key=is_asked and fault.is_kept, now=now)
    except (GatewayRefused, NotFound) as error:
        return _end(call, steps, error=error, now=now)
    return _end(call, steps, answer=answer, now=now)


def _end(
    call: GatewayCall,
    steps: CallSteps,
    *,
    now: datetime,
    answer: Any = None,
    error: UserError | None = None,
) -> GatewayCall:
    with transaction.atomic(durable=True):
        call = lock_call(call.pk)
        if call.status != CallStatus.WAITING:
            return call
        if error is None:
            steps.apply(call, answer=answer, now=now)
            call.status = CallStatus.DONE
        else:
            steps.refuse(call, error=error, now=now)
            call.status = CallStatus.REFUSED
            call.error_code, call.error_message = error.code[:80], error.message[:300]
        call.ended_at, call.claimed_until_at = now, None
        call.save()
    return call


def _postpone(
    call: GatewayCall, fault: GatewayFault, *, wants_new_key: bool, now: datetime
) -> GatewayCall:
    """Try again later; with a new key where the old one would be answered with the same fault."""
    log.warning("%s: %s", call, fault)
    with transaction.atomic(durable=True):
        call = lock_call(call.pk)
        call.claimed_until_at = None
        call.due_at = now + min(timedelta(seconds=2.0 ** min(call.attempts, 20)), PAUSE_MAX)
        call.generation += wants_new_key
        call.error_code, call.error_message = "gateway_fault", str(fault)[:300]
        call.save()
    return call


__all__ = ["ATTEMPTS_ALERT", "RUN_CALLS", "run_call", "run_due_calls"]
