"""Ending many holds in one transaction, as an auction does with a batch of decisions."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from marketplace.common.bulk import values_write
from marketplace.common.errors import Conflict, NotFound, UserError
from marketplace.common.money import format_usd_exact
from marketplace.common.statements import in_transaction, written_together
from marketplace.payments.ledger import Account, Draft, entries_post, house, whole_check
from marketplace.payments.locks import LockedHold, holds_lock
from marketplace.payments.models import AccountKind, EntryKind, Hold, HoldStatus

_ENTRY_KINDS = {HoldStatus.CHARGED: EntryKind.CHARGE, HoldStatus.RELEASED: EntryKind.RELEASE}


@dataclass(frozen=True, slots=True)
class Conclusion:
    """How one hold ends."""

    hold_reference: str
    #: What the winner pays; ``None`` gives everything back.
    charge_micros: int | None


def holds_conclude(*, conclusions: Iterable[Conclusion], now: datetime) -> None:
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
            whole_check(conclusion.charge_micros)
    if not wanted:
        return
    with in_transaction(), written_together():
        locked, holds = holds_lock(wanted.keys())
        missing = sorted(wanted.keys() - {hold.reference for hold in holds})
        if missing:
            raise NotFound("hold_not_found", f"There is no hold named {missing[0]}.")
        ended = [
            end for hold in holds if (end := _ended(hold, wanted[hold.reference], now)) is not None
        ]
        # What is released was held, so no wallet can fall below zero.
        entries_post(
            drafts=[
                Draft(
                    kind=_ENTRY_KINDS[HoldStatus(hold.status)],
                    reference=hold.reference,
                    amounts=_amounts(hold),
                )
                for hold in ended
            ],
            locked=locked,
            now=now,
        )
        values_write(
            Hold,
            ("status", "charged_micros", "ended_at"),
            [(hold.pk, hold.status, hold.charged_micros, hold.ended_at) for hold in ended],
        )


def _ended(hold: LockedHold, conclusion: Conclusion, now: datetime) -> LockedHold | None:
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


def _amounts(hold: LockedHold) -> dict[Account, int]:
    owner = hold.organisation_id
    return {
        Account(owner, AccountKind.WALLET_HELD): -hold.amount_micros,
        Account(owner, AccountKind.WALLET_AVAILABLE): hold.amount_micros - hold.charged_micros,
        house(AccountKind.CLEARING): hold.charged_micros,
    }
