"""What moved at the gateway after the backup that a market goes on from, written down again.

Every object there names our row, and what that row cannot be without. A row that is missing here is
made again under its old name, with its call, and booked by what books the answer of any call.
Nothing is asked of the gateway but what it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from django.db import transaction
from django.db.models import Q

from marketplace.accounts.models import Organisation
from marketplace.common.durable.kinds import get_kinds
from marketplace.common.durable.run import run_due_work
from marketplace.common.durable.services import try_again
from marketplace.common.errors import Conflict, PaymentRequired
from marketplace.common.models import DurableWork
from marketplace.payments import stripe_gateway as gateway
from marketplace.payments import stripe_lost
from marketplace.payments.card_refunds import book_return
from marketplace.payments.freezes import end_freeze, freeze_organisation
from marketplace.payments.gateway_calls import CallEnd, book_end, run_call
from marketplace.payments.ledger import Account, house, post_entry
from marketplace.payments.locks import lock_accounts, lock_payment, lock_wallet
from marketplace.payments.maturity import mature_earnings
from marketplace.payments.models import (
    AccountKind,
    CallKind,
    CardCustomer,
    CardPayment,
    CardRefund,
    EntryKind,
    GatewayCall,
    PaymentPurpose,
    PaymentStatus,
    Payout,
    PayoutAccount,
    PayoutStatus,
    Transfer,
)
from marketplace.payments.outbox import MAKE_CALL
from marketplace.payments.payouts import list_unpaid
from marketplace.payments.restores import find_lost_span
from marketplace.payments.stripe_lost import MadeIntent, MadeRefund, MadeTransfer
from marketplace.payments.webhooks import APPLY_EVENT, fetch_events_since

#: The gateway's clock and ours may differ by as much; what has a row is passed over.
_CLOCKS_DIFFER = timedelta(hours=1)


@dataclass(slots=True)
class Recovered:
    """What was written down again, and what could not be, in words."""

    payments: int = 0
    refunds: int = 0
    payouts: int = 0
    left: list[str] = field(default_factory=list)


def recover_lost_rows(*, now: datetime) -> Recovered:
    """Write down what the lost market moved; call outside of transactions, and again as you like.

    Calls that waited at the backup come first: what they did is no lost row's. Then events of the
    gateway are fetched again that were delivered to the lost market: they tell of contested
    payments, refunds that failed and payouts that arrived.
    """
    found = Recovered()
    lost = find_lost_span()
    if lost is None:
        return found
    since = lost[0] - _CLOCKS_DIFFER
    for work_id, call_id in _list_waiting():
        try_again(work_id=work_id, now=now)
        run_call(call_id=call_id, now=now)
    mature_earnings(now=now)
    for intent in stripe_lost.list_intents(since=since):
        found.payments += _write(found, intent.gateway_id, partial(_add_payment, intent), now)
    for refund in stripe_lost.list_refunds(since=since):
        found.refunds += _write(found, refund.gateway_id, partial(_add_refund, refund), now)
    for payout_id, parts in _group_by_payout(stripe_lost.list_transfers(since=since)):
        found.payouts += _write(found, payout_id, partial(_add_payout, payout_id, parts), now)
    fetch_events_since(since=since, now=now)
    while run_due_work(get_kinds()[APPLY_EVENT], clock=lambda: now):
        pass
    return found


class _BeyondBalance(Exception):
    """More left the market than its owner has here: it may still come, and must not leave again."""

    def __init__(self, organisation_id: str, error: PaymentRequired) -> None:
        super().__init__(error.message)
        self.organisation_id = organisation_id


def _write(found: Recovered, name: str, write: Callable[[datetime], bool], now: datetime) -> bool:
    try:
        is_new = write(now)
    except Conflict as error:
        found.left.append(f"{name}: {error.message}")
        return False
    except _BeyondBalance as error:
        freeze_organisation(
            organisation_id=error.organisation_id,
            reference=name,
            reason="The market was put back from a backup, and what left it since is not booked.",
            now=now,
        )
        found.left.append(
            f"{name}: {error.organisation_id} is frozen, since it got more than it has here. Run "
            "this again once its jobs are settled."
        )
        return False
    if is_new:
        end_freeze(reference=name, now=now)
    return is_new


def _list_waiting() -> list[tuple[int, str]]:
    waiting = DurableWork.objects.filter(kind=MAKE_CALL).order_by("pk")
    return list(waiting.values_list("pk", "key"))


def _add_payment(made: MadeIntent, now: datetime) -> bool:
    """A top-up; what a card paid for a bid that is lost is the wallet's, as a top-up.

    An authorisation of a lost bid expires by itself, unless its owner repeats the request: its call
    then finds it by the key.
    """
    is_bid = made.purpose == PaymentPurpose.BID
    has_paid = made.status == "succeeded"
    if not Organisation.objects.filter(pk=made.organisation_id).exists():
        raise Conflict("unknown_owner", f"it is of {made.organisation_id}, which is lost too.")
    CardCustomer.objects.get_or_create(
        organisation_id=made.organisation_id, defaults={"gateway_id": made.customer_id}
    )
    named = Q(pk=made.payment_id) | Q(gateway_id=made.gateway_id)
    same_key = Q(organisation=made.organisation_id, key=made.key)
    if CardPayment.objects.filter(named | same_key).exists() or (
        made.status == "canceled" or (is_bid and not has_paid)
    ):
        return False
    intent = gateway.get_intent(made.gateway_id)
    with transaction.atomic():
        payment = CardPayment.objects.create(
            id=made.payment_id,
            organisation_id=made.organisation_id,
            # The bid may be placed anew under its own key.
            key=f"lost-{made.payment_id}" if is_bid else made.key,
            purpose=PaymentPurpose.TOP_UP if is_bid else made.purpose,
            amount_cents=made.amount_cents,
            saves_card=made.saves_card,
            created_at=made.made_at,
        )
        _end_call(CallKind.INTENT, payment.pk, intent, now=now)
    return True


def _add_refund(made: MadeRefund, now: datetime) -> bool:
    """Money of a wallet that went back to a card.

    What went back of a bid's price is booked where the bid is refunded: its call looks first.
    """
    known = CardRefund.objects.filter(Q(pk=made.refund_id) | Q(reference=made.reference))
    payment = CardPayment.objects.filter(gateway_id=made.intent_id).first()
    if known.exists() or made.has_failed:
        return False
    if payment is None:
        raise Conflict("unknown_payment", "no payment here was refunded by it.")
    if payment.purpose == PaymentPurpose.BID:
        raise Conflict("of_a_bid", "it is booked once the bid's price is refunded here, too.")
    with transaction.atomic():
        payment = lock_payment(payment.pk)
        locked = lock_wallet(payment.organisation_id)
        if payment.status != PaymentStatus.PAID:
            raise Conflict("not_paid", f"{payment.pk} has not paid here.")
        try:
            refund = book_return(
                payment,
                amount_cents=made.amount_cents,
                reference=made.reference,
                refund_id=made.refund_id,
                locked=locked,
                now=now,
            )
        except PaymentRequired as error:
            raise _BeyondBalance(payment.organisation_id, error) from None
        call = GatewayCall.objects.get(kind=CallKind.REFUND, subject=refund.pk)
        book_end(call, CallEnd(made.gateway_id), now=now)
    return True


def _group_by_payout(made: Iterable[MadeTransfer]) -> list[tuple[str, list[MadeTransfer]]]:
    in_order: dict[str, list[MadeTransfer]] = {}
    for transfer in made:
        in_order.setdefault(transfer.payout_id, []).append(transfer)
    return list(in_order.items())


def _add_payout(payout_id: str, made: list[MadeTransfer], now: datetime) -> bool:
    """Earnings that left; what the lost market did not come to move of them stays payable."""
    if Payout.objects.filter(pk=payout_id).exists():
        return False
    organisation_id, account_id = made[0].organisation_id, made[0].account_id
    if not Organisation.objects.filter(pk=organisation_id).exists():
        raise Conflict("unknown_owner", f"it is of {organisation_id}, which is lost too.")
    PayoutAccount.objects.get_or_create(
        organisation_id=organisation_id,
        defaults={"gateway_id": account_id, "made_at": made[0].made_at},
    )
    payable = Account(organisation_id, AccountKind.EARNINGS_PAYABLE)
    with transaction.atomic():
        locked = lock_accounts([(organisation_id, payable.kind)])
        payout = Payout.objects.create(
            id=payout_id,
            organisation_id=organisation_id,
            amount_cents=sum(each.amount_cents for each in made),
            # Another may be on its way still.
            status=PayoutStatus.SENT,
            made_at=made[0].made_at,
        )
        amount = payout.amount_micros
        try:
            post_entry(
                kind=EntryKind.PAYOUT,
                reference=payout.pk,
                amounts={payable: -amount, house(AccountKind.PAYOUTS): amount},
                locked=locked,
                now=now,
            )
        except PaymentRequired as error:
            raise _BeyondBalance(organisation_id, error) from None
        Transfer.objects.bulk_create(
            Transfer(
                id=each.transfer_id,
                payout=payout,
                group=each.group,
                amount_cents=each.amount_cents,
                currency=each.currency,
                settled_cents=each.settled_cents,
            )
            for each in made
        )
        groups = [each.group for each in made]
        list_unpaid(organisation_id).filter(reference__in=groups).update(payout=payout)
        for each in made:
            _end_call(CallKind.TRANSFER, each.transfer_id, each.gateway_id, now=now)
    return True


def _end_call(kind: CallKind, subject: str, answer: object, *, now: datetime) -> None:
    """Store a call that the lost market made, with its answer. Call in a transaction."""
    call = GatewayCall.objects.create(kind=kind, subject=subject, made_at=now, attempts=1)
    book_end(call, CallEnd(answer), now=now)
