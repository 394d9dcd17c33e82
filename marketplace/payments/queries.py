"""The ledger's own SQL that locks nothing; what locks rows is in ``locks``."""

from __future__ import annotations

from collections.abc import Collection

from marketplace.common.db.model_query import ModelQuery
from marketplace.common.db.pipeline import Statement, fetch
from marketplace.payments.models import Freeze, SpendingCap


def find_limits(organisation_ids: Collection[str]) -> tuple[list[Freeze], list[SpendingCap]]:
    """What keeps organisations from spending: open freezes, the earliest first, and caps."""
    if not organisation_ids:
        return [], []
    owners = list(organisation_ids)
    freezes, caps = fetch(_FREEZES.build_statement(owners), _CAPS.build_statement(owners))
    return _FREEZES.read(freezes), _CAPS.read(caps)


_FREEZES = ModelQuery(
    Freeze, "WHERE organisation_id = ANY(%s) AND ended_at IS NULL ORDER BY since_at"
)
_CAPS = ModelQuery(SpendingCap, "WHERE organisation_id = ANY(%s)")


def find_house_accounts(kinds: Collection[str]) -> dict[str, str]:
    """The keys of the market's accounts that exist, by kind."""
    [rows] = fetch(Statement(_HOUSE_ACCOUNTS, ([str(kind) for kind in kinds],)))
    return dict(rows)  # type: ignore[arg-type]


_HOUSE_ACCOUNTS = (
    "SELECT kind, id FROM payments_ledgeraccount WHERE organisation_id IS NULL AND kind = ANY(%s)"
)
