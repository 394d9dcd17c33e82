"""The ledger's own SQL that locks nothing; what locks rows is in ``locks``."""

from __future__ import annotations

from collections.abc import Collection

from marketplace.common.db.pipeline import Statement, fetch


def find_house_accounts(kinds: Collection[str]) -> dict[str, str]:
    """The keys of the house's accounts, by kind, as far as there are any."""
    [rows] = fetch(Statement(_HOUSE_ACCOUNTS, ([str(kind) for kind in kinds],)))
    return dict(rows)  # type: ignore[arg-type]


_HOUSE_ACCOUNTS = (
    "SELECT kind, id FROM payments_ledgeraccount WHERE organisation_id IS NULL AND kind = ANY(%s)"
)
