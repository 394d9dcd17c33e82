"""Everything that moves money. All amounts are micro-dollars.

Each service names its event by a reference and may be called again with it: the second call
changes nothing and returns what the first one did; with other terms it is a ``Conflict``.
One transaction that touches several organisations calls ``lock_wallets`` first.
"""

import hashlib
from datetime import datetime

from django.db import IntegrityError, transaction

from marketplace.accounts.models import Organisation, User
from marketplace.common.errors import Conflict, NotAllowed
from marketplace.common.money import format_usd_exact
from marketplace.payments.card_limits import find_refund_problem
from marketplace.payments.card_refunds import add_refund
from marketplace.payments.chargebacks import measure_contested
from marketplace.payments.earnings import (
    CostSplit,
    Share,
    charge_and_distribute,
    distribute_charge,
    pay_for_check,
    pay_vendor,
    release_vendor_pay,
    return_vendor_pay,
    withhold_vendor_pay,
)
from marketplace.payments.holds import (
    HoldSettlement,
    check_amount,
    refuse_reused_reference,
    settle_holds,
)
from marketplace.payments.ledger import Account, house, post_entry
from marketplace.payments.locks import lock_hold, lock_shares, lock_wallet, lock_wallets
from marketplace.payments.models import (
    MICROS_PER_CENT,
    AccountKind,
    Entry,
    EntryKind,
    Hold,
    HoldStatus,
    PaymentStatus,
)
from marketplace.payments.selectors import get_buyer_id

#: Of an entry.
_REFERENCE_CHARS = 200

__all__ = [
    "CostSplit",
    "Share",
    "charge_and_distribute",
    "credit_demo_money",
    "distribute_charge",
    "give_up_wallet",
    "grant_money",
    "lock_wallets",
    "pay_for_check",
    "pay_sla_credit",
    "pay_vendor",
    "record_rent",
    "refund_charge",
    "release_hold",
    "release_vendor_pay",
    "return_vendor_pay",
    "withhold_vendor_pay",
]


def grant_money(
    *,
    organisation: Organisation,
    amount_micros: int,
    granted_by: User,
    reference: str,
    now: datetime,
    memo: str = "",
) -> Entry:
    """Adds an operator's grant to a wallet.

    Raises
    ------
    NotAllowed
        ``operators_only``: ``granted_by`` is no operator.
    """
    if not granted_by.is_operator:
        raise NotAllowed("operators_only", "Only an operator may grant a balance.")
    check_amount(amount_micros)
    return _credit_wallet(
        kind=EntryKind.GRANT,
        organisation=organisation,
        amount_micros=amount_micros,
        reference=reference,
        now=now,
        memo=memo or "Granted by an operator",
        actor=granted_by,
    )


def credit_demo_money(
    *, organisation: Organisation, amount_micros: int, reference: str, actor: User, now: datetime
) -> Entry:
    """Adds money of a market that is only a demo. ``funding`` decides who gets it."""
    return _credit_wallet(
        kind=EntryKind.GRANT,
        organisation=organisation,
        amount_micros=amount_micros,
        reference=reference,
        now=now,
        memo="Demo money",
        actor=actor,
    )


def pay_sla_credit(
    *,
    organisation: Organisation,
    amount_micros: int,
    hold_reference: str,
    reason: str,
    now: datetime,
) -> Entry:
    """Pay a wallet for a promise that the market broke, out of the market's revenue."""
    check_amount(amount_micros)
    return _credit_wallet(
        kind=EntryKind.SLA_CREDIT,
        organisation=organisation,
        amount_micros=amount_micros,
        reference=hold_reference,
        hold_reference=hold_reference,
        now=now,
        memo=reason,
    )


def give_up_wallet(*, organisation: Organisation, given_up_by: User, now: datetime) -> None:
    """Leave what is in a wallet to the market, against what it grants.

    Its organisation is being deleted.
    """
    wallet = Account(organisation.pk, AccountKind.WALLET_AVAILABLE)
    with transaction.atomic():
        locked = lock_wallet(organisation.pk)
        amount = locked[wallet.organisation_id, wallet.kind].balance_micros
        if amount:
            post_entry(
                kind=EntryKind.GIVEN_UP,
                reference=f"{organisation.pk}:{now.isoformat()}",
                amounts={wallet: -amount, house(AccountKind.GRANTS): amount},
                locked=locked,
                now=now,
                actor=given_up_by,
            )


def record_rent(*, machine_id: str, amount_micros: int, now: datetime) -> None:
    """Book the cost of a machine that the market rented, once. Call in a transaction."""
    booked = Entry.objects.filter(kind=EntryKind.RENT, reference=machine_id)
    if amount_micros <= 0 or booked.exists():
        return
    post_entry(
        kind=EntryKind.RENT,
        reference=machine_id,
        amounts={
            house(AccountKind.RENT): -amount_micros,
            house(AccountKind.SUPPLIERS): amount_micros,
        },
        locked={},
        now=now,
    )


def release_hold(*, hold_reference: str, now: datetime) -> Hold:
    """Gives everything held back to the wallet.

    Raises
    ------
    Conflict
        ``hold_ended``: the hold was charged.
    """
    settle_holds(settlements=[HoldSettlement(hold_reference, None)], now=now)
    return Hold.objects.get(reference=hold_reference)


def refund_charge(
    *,
    hold_reference: str,
    amount_micros: int,
    reason: str,
    now: datetime,
    source: AccountKind | None = None,
) -> Hold:
    """Gives back part or all of a charge; one refund per hold and reason.

    What is still in clearing comes from there. After the payment was shared out, the
    providers keep their share and the market bears the refund, unless it comes from another account
    of the market's (``source``). What a card paid goes back to it,
    but for a part of a cent, and what is above the day's limit, which go into the wallet. So does
    all of it where the card's bank took a part back already: there it pays what is owed for that.

    Raises
    ------
    Conflict
        ``not_charged``; ``refund_exceeds_charge``; ``reference_reused``: the same reason with
        another amount; ``not_captured``: it is above the day's limit, and the card has not paid
        yet, so that no wallet can have it.
    """
    check_amount(amount_micros)
    reference = _name_refund(hold_reference, reason)
    with transaction.atomic():
        buyer_id = get_buyer_id(hold_reference)
        locked = lock_shares(hold_reference=hold_reference, buyer_id=buyer_id)
        hold = lock_hold(hold_reference)
        payment = hold.card_payment
        shared_out = hold.distributed_at is not None
        source = source or (AccountKind.REFUNDS if shared_out else AccountKind.CLEARING)
        if _is_refunded(reference, amount_micros):
            return hold
        if hold.status != HoldStatus.CHARGED:
            raise Conflict("not_charged", "Nothing was charged, so nothing can be refunded.")
        left_micros = hold.charged_micros - hold.refunded_micros
        if amount_micros > left_micros:
            raise Conflict(
                "refund_exceeds_charge",
                f"Only {format_usd_exact(left_micros)} of the charge is left to refund.",
                extra={"left_micros": left_micros},
            )
        cents = 0 if payment is None else amount_micros // MICROS_PER_CENT
        # Of a price that could not be collected, nothing leaves the house.
        if payment is not None and payment.status != PaymentStatus.UNCOLLECTED and cents:
            # The house bears the gateway's fee; beyond a day's limit the wallet takes all of it.
            is_refused = measure_contested(payment) or find_refund_problem(payment, cents, now=now)
            if is_refused and payment.status != PaymentStatus.PAID:
                raise Conflict("not_captured", "The card has not paid yet. Try again in a minute.")
            cents *= not is_refused
        post_entry(
            kind=EntryKind.REFUND,
            reference=reference,
            hold_reference=hold_reference,
            amounts={
                house(source): -amount_micros,
                house(AccountKind.CARD_REFUNDS): cents * MICROS_PER_CENT,
                Account(hold.organisation_id, AccountKind.WALLET_AVAILABLE): (
                    amount_micros - cents * MICROS_PER_CENT
                ),
            },
            locked=locked,
            now=now,
            memo=reason,
        )
        hold.refunded_micros += amount_micros
        hold.save(update_fields=["refunded_micros"])
        if payment is not None and cents:
            add_refund(payment, amount_cents=cents, reference=reference, now=now)
    return hold


def _name_refund(hold_reference: str, reason: str) -> str:
    """The name that a refund is booked by; long reasons that begin alike have different ones."""
    name = f"{hold_reference}:{reason}"
    if len(name) <= _REFERENCE_CHARS:
        return name
    return f"{hold_reference}:{hashlib.sha256(reason.encode()).hexdigest()}"


def _is_refunded(reference: str, amount_micros: int) -> bool:
    """Whether this refund was booked before; a ``Conflict`` when it was another amount."""
    entry = Entry.objects.filter(kind=EntryKind.REFUND, reference=reference).first()
    if entry is None:
        return False
    if not entry.postings.filter(amount_micros=-amount_micros).exists():
        raise refuse_reused_reference(reference)
    return True


#: The market's account that each kind of credit comes from.
_SOURCES = {EntryKind.GRANT: AccountKind.GRANTS, EntryKind.SLA_CREDIT: AccountKind.SLA_CREDITS}


def _credit_wallet(
    *,
    kind: EntryKind,
    organisation: Organisation,
    amount_micros: int,
    reference: str,
    now: datetime,
    memo: str,
    hold_reference: str = "",
    actor: User | None = None,
) -> Entry:
    """Move money from an account of the market into a wallet, once per reference."""
    wallet = Account(organisation.pk, AccountKind.WALLET_AVAILABLE)
    with transaction.atomic():
        locked = lock_wallet(organisation.pk)
        made = _find_entry(kind, reference, wallet, amount_micros)
        if made is not None:
            return made
        try:
            # Another organisation may use the reference at this very moment.
            with transaction.atomic():
                return post_entry(
                    kind=kind,
                    reference=reference,
                    hold_reference=hold_reference,
                    amounts={house(_SOURCES[kind]): -amount_micros, wallet: amount_micros},
                    locked=locked,
                    now=now,
                    memo=memo,
                    actor=actor,
                )
        except IntegrityError:
            raise refuse_reused_reference(reference) from None


def _find_entry(
    kind: EntryKind, reference: str, account: Account, amount_micros: int
) -> Entry | None:
    """The entry this call would repeat; a ``Conflict`` when it was made with other terms."""
    entry = Entry.objects.filter(kind=kind, reference=reference).first()
    if entry is None:
        return None
    same = entry.postings.filter(
        account__organisation_id=account.organisation_id,
        account__kind=account.kind,
        amount_micros=amount_micros,
    )
    if not same.exists():
        raise refuse_reused_reference(reference)
    return entry
