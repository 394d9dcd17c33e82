"""Making the calls of the outbox as durable work.

A process may die at any point. Another one then makes the call again: under the same idempotency
key, and only after looking for what the attempt before it may have done. Applying an answer twice
changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import F

from marketplace.common.durable.kinds import Failure, HeldWork, WorkFailed, get_kinds
from marketplace.common.durable.run import run_due_work
from marketplace.common.errors import NotFound, UserError
from marketplace.payments.card_calls import (
    find_captured,
    find_intent_of,
    make_cancel,
    make_capture,
    make_intent,
)
from marketplace.payments.card_payments import (
    apply_intent,
    conclude_cancel,
    conclude_uncollected,
)
from marketplace.payments.card_refunds import (
    conclude_refund,
    find_refund,
    make_refund,
    return_to_wallet,
)
from marketplace.payments.gateway_tries import conclude_try, find_try, make_try
from marketplace.payments.models import CallKind, CallStatus, GatewayCall
from marketplace.payments.outbox import MAKE_CALL
from marketplace.payments.payout_calls import (
    apply_payout,
    conclude_transfer,
    fail_payout,
    find_payout,
    find_transfer,
    make_payout,
    make_transfer,
    return_transfer,
)
from marketplace.payments.restores import HELD, find_lost_span, is_gateway_held
from marketplace.payments.stripe_client import GatewayFault, GatewayRefused
from marketplace.payments.taxes import apply_tax, make_tax, make_tax_record
from marketplace.payments.top_ups import make_detach
from marketplace.payments.transfer_reversals import (
    conclude_reversal,
    find_reversal,
    make_reversal,
    refuse_reversal,
)

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
    CallKind.CANCEL: CallSteps(make_cancel, lambda _: None, conclude_cancel, _ignore_refusal),
    CallKind.REFUND: CallSteps(make_refund, find_refund, conclude_refund, return_to_wallet),
    CallKind.DETACH: CallSteps(make_detach, lambda _: None, _ignore_answer, _ignore_refusal),
    CallKind.TRANSFER: CallSteps(make_transfer, find_transfer, conclude_transfer, return_transfer),
    CallKind.REVERSAL: CallSteps(make_reversal, find_reversal, conclude_reversal, refuse_reversal),
    CallKind.PAYOUT: CallSteps(make_payout, find_payout, apply_payout, fail_payout),
    CallKind.TAX: CallSteps(make_tax, lambda _: None, apply_tax, _ignore_refusal),
    CallKind.TAX_RECORD: CallSteps(
        make_tax_record, lambda _: None, _ignore_answer, _ignore_refusal
    ),
    CallKind.TRY: CallSteps(make_try, find_try, conclude_try, _ignore_refusal),
}


@dataclass(frozen=True, slots=True)
class CallEnd:
    """What the gateway answered, or why it refused."""

    answer: Any = None
    error: UserError | None = None


class CallPostponed(WorkFailed):
    """The gateway has a fault.

    ``wants_new_key``: it would answer the same fault to the same idempotency key.
    """

    def __init__(self, fault: GatewayFault, *, wants_new_key: bool) -> None:
        super().__init__(str(fault))
        self.wants_new_key = wants_new_key


def load_call(work: HeldWork) -> GatewayCall | None:
    """The call, unless it was made; from now on an attempt may have done something."""
    call = GatewayCall.objects.filter(pk=work.key, status=CallStatus.WAITING).first()
    if call is not None:
        call.attempts += 1
        call.save(update_fields=["attempts"])
    return call


def make_call(_work: HeldWork, call: GatewayCall) -> CallEnd:
    """Make a call, after looking for what an earlier attempt did, or a market that was lost.

    Raises
    ------
    CallPostponed
        The gateway has a fault.
    WorkFailed
        It was not made, and no money moves after a restore.
    """
    steps = STEPS[call.kind]
    is_asked = False
    try:
        looks_first = call.attempts > 1 or find_lost_span() is not None
        answer = steps.find(call) if looks_first else None
        if answer is None:
            if is_gateway_held():
                raise WorkFailed(HELD)
            is_asked = True
            answer = steps.make(call)
    except GatewayFault as fault:
        raise CallPostponed(fault, wants_new_key=is_asked and fault.is_kept) from fault
    except (GatewayRefused, NotFound) as error:
        return CallEnd(error=error)
    return CallEnd(answer)


def end_call(_work: HeldWork, call: GatewayCall, end: CallEnd, *, now: datetime) -> None:
    """Book what the gateway answered."""
    book_end(call, end, now=now)


def book_end(call: GatewayCall, end: CallEnd, *, now: datetime) -> None:
    """Book what the gateway answered to a call. Call in a transaction."""
    steps = STEPS[call.kind]
    if end.error is None:
        steps.apply(call, answer=end.answer, now=now)
        call.status = CallStatus.DONE
    else:
        steps.refuse(call, error=end.error, now=now)
        call.status = CallStatus.REFUSED
        call.error_code, call.error_message = end.error.code[:80], end.error.message[:300]
    call.ended_at = now
    call.save()


def note_fault(work: HeldWork, failure: Failure, *, now: datetime) -> None:
    """Keep why a call has to wait; it is then made under a new key where the old one is spent."""
    error = failure.error
    if isinstance(error, CallPostponed):
        GatewayCall.objects.filter(pk=work.key).update(
            generation=F("generation") + int(error.wants_new_key),
            error_code="gateway_fault",
            error_message=failure.reason[:300],
        )


def run_call(*, call_id: str, now: datetime) -> None:
    """Make one call now, unless it was made or a worker has it; call outside of transactions."""
    run_due_work(get_kinds()[MAKE_CALL], key=call_id, clock=lambda: now)
