"""The lane's own SQL: what is asked so often that composing a query costs more than its answer."""

from __future__ import annotations

from datetime import datetime

from marketplace.common.db.pipeline import Statement


def build_shortage_check(*, zone_id: str, since: datetime) -> Statement:
    """Whether an open lane of a zone said no to somebody since a moment: one row."""
    return Statement(_SHORTAGE_CHECK, (zone_id, zone_id, since))


_SHORTAGE_CHECK = """
SELECT EXISTS (SELECT FROM express_expresslane WHERE zone_id = %s AND is_open) AND EXISTS (
    SELECT FROM express_expressrequest
    WHERE zone_id = %s AND created_at > %s AND status IN ('offered', 'refused')
)
"""
