"""Heads of other markets' logs: this market is a witness for them, as they may be for it.

The operator names the logs. Their signed heads are fetched about every minute, stored for good and
published. A market that cuts or rewrites its log is contradicted by heads that it signed. Only
heads that their key has signed are stored; who uses them gives the verifier the keys that it knows
of.
"""

from __future__ import annotations

import json
import logging
from datetime import datetime
from urllib.parse import urlencode

from django.conf import settings
from django.db import transaction

from marketplace.auction.models import WitnessedHead, WitnessedLog
from marketplace.auction.witnesses.heads import RETRY_AFTER, RETRY_MOST
from marketplace.common.backoff import compute_backoff
from marketplace.common.locks import advisory_session_lock
from marketplace.common.outbound import FetchFailed, fetch_text
from scheduler.auction.audit.witness import TWO_HISTORIES, describe_equivocation, read_witness
from scheduler.auction.log.heads import SignedHead, signed_head_to_json

log = logging.getLogger(__name__)

LOCK = "auction.witnessed"
#: Heads taken of one page; a market that sends more is not asked for the rest at once.
HEADS_AT_ONCE = 1000


def fetch_witnessed_heads(*, now: datetime) -> int:
    """Fetch new heads of the logs that this market is a witness for; how many were stored."""
    stored = 0
    for url in settings.AUCTION_WITNESSED:
        try:
            stored += _fetch(url, now=now)
        except Exception:
            # An unexpected answer of one market must not stop the others.
            log.exception("heads of %s could not be stored", url)
    return stored


def _fetch(url: str, *, now: datetime) -> int:
    with advisory_session_lock(LOCK, url, wait=False) as alone:
        if not alone:
            return 0
        known, _ = WitnessedLog.objects.get_or_create(url=url)
        # A moment too far ahead is of a clock that went back since.
        if known.next_at is not None and now < known.next_at <= now + RETRY_MOST:
            return 0
        try:
            heads = _read_heads(url, after=known.position)
        except (FetchFailed, ValueError) as error:
            log.warning("heads of %s: %s", url, error)
            known.failures += 1
            known.problem = str(error)[:500]
            known.next_at = now + compute_backoff(
                failures=known.failures, first=RETRY_AFTER, most=RETRY_MOST
            )
            known.save()
            return 0
        return _store(known, heads, now=now)


def _read_heads(url: str, *, after: int) -> list[SignedHead]:
    """The signed heads of a log after a position, at most a page of them."""
    joined = "&" if "?" in url else "?"
    text = fetch_text(
        f"{url}{joined}{urlencode({'after': after})}",
        allows_private=settings.AUCTION_WITNESSED_PRIVATE,
    )
    heads = read_witness(text.splitlines()[:HEADS_AT_ONCE])
    # One beyond what JSON counts has no text that could be signed.
    if any(signed.head.position < 0 for signed in heads):
        raise ValueError("a head has a position that no log has")
    return heads


@transaction.atomic
def _store(known: WitnessedLog, heads: list[SignedHead], *, now: datetime) -> int:
    rows = [
        WitnessedHead(
            log=known,
            zone=signed.head.zone[:200],
            position=signed.head.position,
            hash=signed.head.hash[:128],
            text=json.dumps(signed_head_to_json(signed)),
            seen_at=now,
        )
        for signed in heads
    ]
    before = WitnessedHead.objects.filter(log=known).count()
    WitnessedHead.objects.bulk_create(rows, ignore_conflicts=True)
    positions = {signed.head.position for signed in heads}
    seen = WitnessedHead.objects.filter(log=known, position__in=positions)
    problem = describe_equivocation(read_witness(seen.values_list("text", flat=True)))
    known.position = max([known.position, *positions])
    known.fetched_at, known.failures, known.next_at = now, 0, None
    # That a market signed two histories stays said.
    if not known.problem.startswith(TWO_HISTORIES):
        known.problem = (problem or "")[:500]
    known.save()
    return WitnessedHead.objects.filter(log=known).count() - before


def list_witnessed_heads(*, url: str, after: int, limit: int) -> list[WitnessedHead]:
    """Heads of another market's log that were seen after the one with this number."""
    heads = WitnessedHead.objects.filter(log__url=url, pk__gt=after)
    return list(heads.order_by("pk")[:limit])
