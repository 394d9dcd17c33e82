"""Setting money aside for many bids in one transaction, each for itself."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import IntegrityError, transaction

from marketplace.common.db.bulk_writes import insert_rows
from marketplace.common.errors import Conflict, PaymentRequired, UserError
from marketplace.common.money import MAX_MICROS
from marketplace.payments.ledger import Account, Draft, check_whole, insufficient, post_entries
from marketplace.payments.locks import LockedAccounts, lock_wallets
from marketplace.payments.models import AccountKind, EntryKind, Hold


@dataclass(frozen=True, slots=True)
class HoldRequest:
    """Money to be set aside."""

    organisation_id: str
    amount_micros: int
    #: Names the hold; asked for again with the same terms it is the same hold.
    reference: str


def place_holds(
    *,
    wanted: Sequence[HoldRequest],
    now: datetime,
    locked: LockedAccounts | None = None,
    references_new: bool = False,
) -> list[Hold | UserError]:
    """Set money of wallets aside, in this order; what cannot be had is refused alone.

    ``locked`` spares whoever has just locked the wallets, and moved nothing since, doing so again.
    ``references_new`` says that the caller made the references this moment, so that there can be
    no hold of theirs: none is looked for, and none is survived.

    Returns
    -------
    list
        For each the hold, or why there is none: ``PaymentRequired`` ``insufficient_funds`` where
        less than that is available after those before it, ``Conflict`` ``reference_reused`` where
        the reference names another hold.
    """
    refused = {item: error for item in wanted if (error := _find_amount_error(item.amount_micros))}
    with transaction.atomic(savepoint=False):
        locked = locked or lock_wallets(item.organisation_id for item in wanted)
        if references_new:
            outcomes, new = _decide_requests(wanted, refused, {}, locked, now)
            insert_rows(new)
        else:
            outcomes, new = _stored(wanted, refused, locked, now)
        post_entries(
            drafts=[
                Draft(
                    kind=EntryKind.HOLD,
                    reference=hold.reference,
                    amounts={
                        Account(hold.organisation_id, AccountKind.WALLET_AVAILABLE): (
                            -hold.amount_micros
                        ),
                        Account(hold.organisation_id, AccountKind.WALLET_HELD): hold.amount_micros,
                    },
                )
                for hold in new
            ],
            locked=locked,
            now=now,
        )
    return outcomes


def _stored(
    wanted: Sequence[HoldRequest],
    refused: Mapping[HoldRequest, UserError],
    locked: LockedAccounts,
    now: datetime,
) -> tuple[list[Hold | UserError], list[Hold]]:
    """What each gets, and the holds among them that were stored now."""
    # As a rule the references are new, which the database says when the holds are stored.
    made: dict[str, Hold] | None = None
    while True:
        outcomes, new = _decide_requests(wanted, refused, made or {}, locked, now)
        if made is None and any(isinstance(item, PaymentRequired) for item in outcomes):
            made = _load_holds(item.reference for item in wanted)
            continue
        try:
            with transaction.atomic():
                insert_rows(new)
            return outcomes, new
        except IntegrityError:
            # Another organisation may take one of the references at this very moment.
            found = _load_holds(item.reference for item in wanted)
            if len(found) == len(made or {}):
                raise
            made = found


def _decide_requests(
    wanted: Sequence[HoldRequest],
    refused: Mapping[HoldRequest, UserError],
    made: Mapping[str, Hold],
    locked: LockedAccounts,
    now: datetime,
) -> tuple[list[Hold | UserError], list[Hold]]:
    """What each gets, and the holds among them that are not stored yet."""
    holds = dict(made)
    new: list[Hold] = []
    outcomes: list[Hold | UserError] = []
    left: dict[str, int] = {}
    for item in wanted:
        owner = item.organisation_id
        wallet = Account(owner, AccountKind.WALLET_AVAILABLE)
        available = left.setdefault(owner, locked[owner, wallet.kind].balance_micros)
        hold = holds.get(item.reference)
        if item in refused:
            outcomes.append(refused[item])
        elif hold is not None:
            same = (hold.organisation_id, hold.amount_micros) == (owner, item.amount_micros)
            outcomes.append(hold if same else reference_reused(item.reference))
        elif item.amount_micros > available:
            outcomes.append(insufficient(wallet, short_micros=item.amount_micros - available))
        else:
            left[owner] = available - item.amount_micros
            hold = holds[item.reference] = Hold(
                organisation_id=owner,
                reference=item.reference,
                amount_micros=item.amount_micros,
                held_at=now,
            )
            new.append(hold)
            outcomes.append(hold)
    return outcomes, new


def _load_holds(references: Iterable[str]) -> dict[str, Hold]:
    return {hold.reference: hold for hold in Hold.objects.filter(reference__in=list(references))}


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


def reference_reused(reference: str) -> Conflict:
    return Conflict(
        "reference_reused", f"The reference {reference} was used before, for something else."
    )
