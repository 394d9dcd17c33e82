"""Setting money aside for bids, and ending that; many in one transaction."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from marketplace.common.db.bulk_writes import send_updates
from marketplace.common.errors import Conflict, NotFound, UserError
from marketplace.common.money import MAX_MICROS, format_usd_exact
from marketplace.payments.caps import list_new_account_caps, measure_room
from marketplace.payments.freezes import build_refusal
from marketplace.payments.ledger import (
    Account,
    Draft,
    check_whole,
    house,
    post_entries,
    refuse_overdraft,
)
from marketplace.payments.locks import LockedAccounts, LockedHold, lock_holds, lock_wallets
from marketplace.payments.models import (
    MICROS_PER_CENT,
    AccountKind,
    CallKind,
    EntryKind,
    Freeze,
    GatewayCall,
    Hold,
    HoldStatus,
    SpendingCap,
)
from marketplace.payments.outbox import WantedCall, add_calls
from marketplace.payments.price_shares import find_card_share, find_least_cents

_ENTRY_KINDS = {HoldStatus.CHARGED: EntryKind.CHARGE, HoldStatus.RELEASED: EntryKind.RELEASE}


@dataclass(frozen=True, slots=True)
class HoldRequest:
    """Money to be set aside."""

    organisation_id: str
    amount_micros: int
    #: Names the hold; never used before.
    reference: str
    #: The card payment that authorises it; without one it is held in the wallet.
    card_payment_id: str | None = None
    #: The member and the API key whose caps it counts for.
    placed_by_id: str | None = None
    api_key_id: str | None = None


def place_holds(
    *,
    wanted: Sequence[HoldRequest],
    now: datetime,
    locked: LockedAccounts | None = None,
    are_in_flight: bool = False,
) -> list[Hold | UserError]:
    """Set money of wallets aside, in this order; what cannot be had is refused alone.

    ``locked`` are the wallets, where the caller has locked them and moved nothing since. Of bids
    that ``are_in_flight``, money was held before: no freeze and no cap stops them now.

    Returns
    -------
    list
        For each the hold, or why it is refused: ``PaymentRequired`` ``insufficient_funds`` where
        less than that is available after those before it, ``NotAllowed``
        ``organisation_frozen`` where a chargeback or a debt is open, ``spending_cap``, or
        ``Conflict`` ``payment_cancelled`` where the card's authorisation goes back.

    Raises
    ------
    IntegrityError
        A reference was used before; nothing is written.
    """
    refused = {item: error for item in wanted if (error := _find_amount_error(item.amount_micros))}
    with transaction.atomic(savepoint=False):
        owners = {item.organisation_id for item in wanted}
        locked = locked or lock_wallets(owners)
        outcomes = _decide_requests(
            wanted, refused, locked, now, organisation_ids=() if are_in_flight else owners
        )
        new = [outcome for outcome in outcomes if isinstance(outcome, Hold)]
        Hold.objects.bulk_create(new)
        post_entries(
            drafts=[
                Draft(
                    kind=EntryKind.HOLD,
                    reference=hold.reference,
                    hold_reference=hold.reference,
                    amounts={
                        _find_source(hold): -hold.amount_micros,
                        Account(hold.organisation_id, AccountKind.WALLET_HELD): hold.amount_micros,
                    },
                )
                for hold in new
            ],
            locked=locked,
            now=now,
        )
    return outcomes


def check_hold(*, wanted: HoldRequest, now: datetime) -> None:
    """Refuse what ``place_holds`` would refuse now; nothing is held.

    Before work that is worth doing only for who can pay. Its answer may be another in a moment.

    Raises
    ------
    UserError
        Those of ``place_holds``.
    """
    with transaction.atomic():
        [outcome] = place_holds(wanted=[wanted], now=now)
        transaction.set_rollback(True)
    if isinstance(outcome, UserError):
        raise outcome


def _decide_requests(
    wanted: Sequence[HoldRequest],
    refused: Mapping[HoldRequest, UserError],
    locked: LockedAccounts,
    now: datetime,
    *,
    organisation_ids: Collection[str],
) -> list[Hold | UserError]:
    """A hold for each request, not stored yet, or why it gets none.

    ``organisation_ids`` are those whose freezes and caps count.
    """
    outcomes: list[Hold | UserError] = []
    left: dict[str, int] = {}
    caps = SpendingCap.objects.filter(organisation__in=organisation_ids)
    room = measure_room([*caps, *list_new_account_caps(organisation_ids, now=now)], now=now)
    # Of several freezes the earliest is named.
    freezes = Freeze.objects.filter(organisation__in=organisation_ids, ended_at=None)
    frozen = {each.organisation_id: build_refusal(each) for each in freezes.order_by("-since_at")}
    by_card = {item.card_payment_id for item in wanted if item.card_payment_id}
    given_up = GatewayCall.objects.filter(kind=CallKind.CANCEL, subject__in=by_card)
    cancelled = set(given_up.values_list("subject", flat=True)) if by_card else set()
    for item in wanted:
        owner = item.organisation_id
        wallet = Account(owner, AccountKind.WALLET_AVAILABLE)
        available = left.setdefault(owner, locked[owner, wallet.kind].balance_micros)
        in_wallet = 0 if item.card_payment_id else item.amount_micros
        if item in refused:
            outcomes.append(refused[item])
        elif owner in frozen:
            outcomes.append(frozen[owner])
        elif item.card_payment_id in cancelled:
            outcomes.append(
                Conflict("payment_cancelled", "The authorisation was given back to the card.")
            )
        elif in_wallet > available:
            outcomes.append(refuse_overdraft(wallet, short_micros=in_wallet - available))
        elif refusal := room.take(
            organisation_id=owner,
            member_id=item.placed_by_id,
            api_key_id=item.api_key_id,
            amount=item.amount_micros,
        ):
            outcomes.append(refusal)
        else:
            left[owner] = available - in_wallet
            outcomes.append(
                Hold(
                    organisation_id=owner,
                    reference=item.reference,
                    amount_micros=item.amount_micros,
                    card_payment_id=item.card_payment_id,
                    placed_by_id=item.placed_by_id,
                    api_key_id=item.api_key_id,
                    held_at=now,
                )
            )
    return outcomes


@dataclass(frozen=True, slots=True)
class HoldSettlement:
    """How one hold ends."""

    hold_reference: str
    #: What the winner pays; ``None`` gives everything back.
    charge_micros: int | None


def settle_holds(*, settlements: Iterable[HoldSettlement], now: datetime) -> None:
    """Charge or release each hold, all or none; one that ended that way already is left alone.

    Raises
    ------
    NotFound
        ``hold_not_found``.
    UserError
        ``invalid_amount``: a charge is negative or above what is held.
    Conflict
        ``hold_ended``: a hold ended in another way.
    """
    wanted = {settlement.hold_reference: settlement for settlement in settlements}
    for settlement in wanted.values():
        if settlement.charge_micros is not None:
            check_whole(settlement.charge_micros)
    if not wanted:
        return
    with transaction.atomic():
        locked, holds = lock_holds(wanted.keys())
        missing = sorted(wanted.keys() - {hold.reference for hold in holds})
        if missing:
            raise NotFound("hold_not_found", f"There is no hold named {missing[0]}.")
        ended = [
            end
            for hold in holds
            if (end := _end_hold(hold, wanted[hold.reference], now)) is not None
        ]
        # What is released was held, so no wallet can fall below zero.
        post_entries(
            drafts=[
                Draft(
                    kind=_ENTRY_KINDS[HoldStatus(hold.status)],
                    reference=hold.reference,
                    hold_reference=hold.reference,
                    amounts=_list_amounts(hold),
                )
                for hold in ended
            ],
            locked=locked,
            now=now,
        )
        send_updates(
            Hold,
            ("status", "charged_micros", "ended_at"),
            [(hold.pk, hold.status, hold.charged_micros, hold.ended_at) for hold in ended],
        )
        add_calls([_build_call(hold) for hold in ended if hold.card_payment_id], now=now)


def _build_call(hold: LockedHold) -> WantedCall:
    """What becomes of an authorisation: its price is captured, or all of it is given back."""
    payment_id = hold.card_payment_id or ""
    if not hold.charged_micros:
        return WantedCall(CallKind.CANCEL, payment_id)
    # No card pays a part of a cent; what is above the price comes back into the wallet.
    price_cents = -(-hold.charged_micros // MICROS_PER_CENT)
    # Nor does one pay less than what prices pay the gateway for: the rest comes there, too.
    least_cents = min(find_least_cents(), -(-hold.amount_micros // MICROS_PER_CENT))
    amount_cents = max(price_cents, least_cents if find_card_share() else 0)
    return WantedCall(CallKind.CAPTURE, payment_id, {"amount_cents": amount_cents})


def _end_hold(hold: LockedHold, settlement: HoldSettlement, now: datetime) -> LockedHold | None:
    """The hold with its end in place, not saved; ``None`` when it ended that way before."""
    charge = settlement.charge_micros
    status = HoldStatus.RELEASED if charge is None else HoldStatus.CHARGED
    if hold.status == status and hold.charged_micros == (charge or 0):
        return None
    if hold.status != HoldStatus.HELD:
        raise Conflict(
            "hold_ended",
            f"The hold {hold.reference} is over: it was {hold.status}.",
            extra={"status": hold.status, "charged_micros": hold.charged_micros},
        )
    if not 0 <= (charge or 0) <= hold.amount_micros:
        raise UserError(
            "invalid_amount",
            "The charge must lie between zero and the "
            f"{format_usd_exact(hold.amount_micros)} held.",
            param="charge_micros",
        )
    return hold._replace(status=status, charged_micros=charge or 0, ended_at=now)


def _list_amounts(hold: LockedHold) -> dict[Account, int]:
    return {
        Account(hold.organisation_id, AccountKind.WALLET_HELD): -hold.amount_micros,
        _find_source(hold): hold.amount_micros - hold.charged_micros,
        house(AccountKind.CLEARING): hold.charged_micros,
    }


def _find_source(hold: Hold | LockedHold) -> Account:
    """Where held money comes from and goes back to."""
    if hold.card_payment_id:
        return house(AccountKind.AUTHORISED)
    return Account(hold.organisation_id, AccountKind.WALLET_AVAILABLE)


def _find_amount_error(amount_micros: int) -> UserError | None:
    check_whole(amount_micros)
    if 0 < amount_micros <= MAX_MICROS:
        return None
    return UserError(
        "invalid_amount",
        "The amount must be more than zero and at most a billion dollars.",
        param="amount_micros",
    )


def check_amount(amount_micros: int) -> None:
    """Refuse what no wallet can gain or lose.

    Raises
    ------
    UserError
        ``invalid_amount``.
    """
    error = _find_amount_error(amount_micros)
    if error is not None:
        raise error


def refuse_reused_reference(reference: str) -> Conflict:
    return Conflict(
        "reference_reused", f"The reference {reference} was used before, for something else."
    )
