"""Ending many holds in one transaction, as an auction does with a batch of decisions."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from marketplace.common.db.bulk_writes import send_updates
from marketplace.common.db.pipeline import ensure_transaction, pipeline
from marketplace.common.errors import Conflict, NotFound, UserError
from marketplace.common.money import format_usd_exact
from marketplace.payments.ledger import Account, Draft, check_whole, house, post_entries
from marketplace.payments.locks import LockedHold, lock_holds
from marketplace.payments.models import AccountKind, EntryKind, Hold, HoldStatus

_ENTRY_KINDS = {HoldStatus.CHARGED: EntryKind.CHARGE, HoldStatus.RELEASED: EntryKind.RELEASE}


@dataclass(frozen=True, slots=True)
class HoldSettlement:
    """How one hold ends."""

    hold_reference: str
    #: What the winner pays; ``None`` gives everything back.
    charge_micros: int | None


def settle_holds(*, conclusions: Iterable[HoldSettlement], now: datetime) -> None:
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
    wanted = {conclusion.hold_reference: conclusion for conclusion in conclusions}
    for conclusion in wanted.values():
        if conclusion.charge_micros is not None:
            check_whole(conclusion.charge_micros)
    if not wanted:
        return
    with ensure_transaction(), pipeline():
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


def _end_hold(hold: LockedHold, conclusion: HoldSettlement, now: datetime) -> LockedHold | None:
    """The hold with its end in place, not saved; ``None`` when it ended that way before."""
    charge = conclusion.charge_micros
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
    owner = hold.organisation_id
    return {
        Account(owner, AccountKind.WALLET_HELD): -hold.amount_micros,
        Account(owner, AccountKind.WALLET_AVAILABLE): hold.amount_micros - hold.charged_micros,
        house(AccountKind.CLEARING): hold.charged_micros,
    }
