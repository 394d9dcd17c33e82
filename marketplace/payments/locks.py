"""The only row locks of money, always in the order: ledger accounts by key, then holds.

Whatever changes an organisation's money locks its accounts first, so two changes of one
organisation happen one after the other, and none of them can block in a circle.
"""

from collections.abc import Collection, Iterable

from marketplace.payments.models import AccountKind, Hold, LedgerAccount

WALLET_KINDS = (AccountKind.WALLET_AVAILABLE, AccountKind.WALLET_HELD)


#: Locked accounts by (organisation id, kind).
Locked = dict[tuple[str, str], LedgerAccount]


def accounts_lock(wanted: Collection[tuple[str, str]]) -> Locked:
    """Locks organisations' accounts, given as (organisation id, kind), creating missing ones.

    Call in a transaction, and lock everything it will need at once.
    """
    found = _locked(wanted)
    missing = [key for key in wanted if key not in found]
    if missing:
        LedgerAccount.objects.bulk_create(
            [
                LedgerAccount(organisation_id=organisation_id, kind=kind, balance_micros=0)
                for organisation_id, kind in sorted(missing)
            ],
            ignore_conflicts=True,
        )
        found = _locked(wanted)
    return found


def wallet_lock(organisation_id: str) -> Locked:
    """Locks one organisation's wallet. Call in a transaction."""
    return accounts_lock([(organisation_id, kind) for kind in WALLET_KINDS])


def wallets_lock(organisation_ids: Iterable[str]) -> Locked:
    """Locks several organisations' wallets at once.

    Call first in a transaction that will hold, settle or release for more than one
    organisation: locking them one by one in the order of the bids could meet another
    transaction that does so in another order.
    """
    return accounts_lock([(pk, kind) for pk in set(organisation_ids) for kind in WALLET_KINDS])


def hold_lock(reference: str) -> Hold:
    """The hold as it is now. Call while holding its organisation's wallet accounts."""
    return Hold.objects.select_for_update(no_key=True).get(reference=reference)


def _locked(wanted: Collection[tuple[str, str]]) -> Locked:
    rows = (
        LedgerAccount.objects.select_for_update(no_key=True)
        .filter(
            organisation_id__in={organisation_id for organisation_id, _ in wanted},
            kind__in={kind for _, kind in wanted},
        )
        .order_by("pk")
    )
    return {(row.organisation_id, row.kind): row for row in rows}  # type: ignore[misc]
