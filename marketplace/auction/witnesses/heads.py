"""Signing the heads of zones' logs and of the ledger, and publishing them to witnesses.

Runs every minute or so. Signing is idempotent: one row for each position. Delivery is at
least once: a witness may get a head twice, which proves nothing new. A witness that cannot
be reached gets what it missed later, and keeps no other waiting.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from django.conf import settings

from marketplace.auction.models import MarketHead, PublishedHead, WitnessCursor
from marketplace.auction.witnesses.keys import load_signing_key
from marketplace.common.backoff import compute_backoff
from marketplace.common.locks import advisory_lock, advisory_session_lock
from marketplace.fleet.models import Zone
from marketplace.payments.seals import find_last_seal
from scheduler.public_log import heads as log_heads

log = logging.getLogger(__name__)

LOCK = "auction.heads"
#: In place of a zone's name, which has no such sign.
LEDGER = "$ledger"
#: Heads that a witness gets at once.
HEADS_AT_ONCE = 500
#: Heads on one public page.
HEADS_OF_A_PAGE = 1000
#: Before a witness that failed is tried again; doubled with each failure.
RETRY_AFTER = timedelta(seconds=30)
RETRY_MOST = timedelta(hours=1)
#: Seconds a witness has to answer.
TIMEOUT_S = 10.0
#: More than one delivery has; a line that was cut short lies within so much of a file's end.
TORN_BYTES_MAX = 1_000_000


class WitnessFailed(Exception):
    """A witness did not take the heads it was given."""


def explain_lost_heads(backed_up_at: datetime, restored_at: datetime) -> str:
    """Say which heads of the ledger a restore has lost: zones' logs name theirs, it has no log."""
    moments = (backed_up_at, restored_at)
    since, until = (f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}" for moment in moments)
    return (
        f"Those named {LEDGER} that were signed between {since} and {until} UTC are of seals that "
        "a restore has lost, and no log explains them: tell those who hold them."
    )


def sign_heads(*, now: datetime) -> int:
    """Sign the head of each log that has grown since the last time, and the ledger's last seal.

    Returns
    -------
    int
        The number signed.
    """
    with advisory_lock(LOCK, "sign", wait=False) as alone:
        if not alone:
            return 0
        grown = [
            head
            for head in MarketHead.objects.select_related("zone").order_by("zone_id")
            if not PublishedHead.objects.filter(
                zone_id=head.zone_id, position=head.position
            ).exists()
        ]
        for head in grown:
            _sign(head.zone, head.position, head.head_hash, now=now)
        seal = find_last_seal()
        published = PublishedHead.objects.filter(zone=None)
        if seal is None or published.filter(position=seal.number).exists():
            return len(grown)
        _sign(None, seal.number, seal.digest, now=now)
        return len(grown) + 1


def _sign(zone: Zone | None, position: int, head_hash: str, *, now: datetime) -> None:
    key = load_signing_key(now=now)
    signed = log_heads.sign_head(
        log_heads.Head(LEDGER if zone is None else zone.name, position, head_hash),
        signed_at=now.isoformat(),
        public_key=key.public_key,
        sign=key.sign,
    )
    PublishedHead.objects.create(
        zone=zone,
        position=position,
        text=json.dumps(log_heads.signed_head_to_json(signed)),
        signed_at=now,
    )


def publish_heads(*, now: datetime) -> int:
    """Give each witness the signed heads it has not got; how many heads were delivered."""
    delivered = 0
    for witness in settings.AUCTION_WITNESSES:
        for zone in _list_logs():
            try:
                delivered += _publish(zone, witness, now=now)
            except Exception:
                # An unexpected failure of one witness must not stop the others.
                log.exception("%s: heads could not be given to %s", zone or LEDGER, witness)
    return delivered


def _list_logs() -> list[Zone | None]:
    """The zones, and ``None`` for the ledger once it has a seal."""
    zones: list[Zone | None] = list(Zone.objects.order_by("pk"))
    return zones + [None] * PublishedHead.objects.filter(zone=None).exists()


def _publish(zone: Zone | None, witness: str, *, now: datetime) -> int:
    with advisory_session_lock(LOCK, f"{witness}|{zone and zone.pk}", wait=False) as alone:
        if not alone:
            return 0
        cursor, _ = WitnessCursor.objects.get_or_create(witness=witness, zone=zone)
        # A moment too far ahead is of a clock that went back since.
        if cursor.next_at is not None and now < cursor.next_at <= now + RETRY_MOST:
            return 0
        waiting = PublishedHead.objects.filter(zone=zone, position__gt=cursor.position)
        heads = list(waiting.order_by("position")[:HEADS_AT_ONCE])
        if not heads:
            return 0
        try:
            deliver([head.text for head in heads], witness=witness)
        except WitnessFailed as error:
            log.warning("%s: %s", zone or LEDGER, error)
            cursor.failures += 1
            cursor.problem = str(error)[:500]
            wait = compute_backoff(failures=cursor.failures, first=RETRY_AFTER, most=RETRY_MOST)
            cursor.next_at = now + wait
            cursor.save()
            return 0
        cursor.position, cursor.delivered_at = heads[-1].position, now
        cursor.failures, cursor.problem, cursor.next_at = 0, "", None
        cursor.save()
        return len(heads)


def deliver(lines: Sequence[str], *, witness: str) -> None:
    """Append heads to a witness file, or post them to a witness's address.

    Raises
    ------
    WitnessFailed
        The witness may have some of them or none.
    """
    text = "".join(f"{line}\n" for line in lines).encode("ascii")
    try:
        if urlsplit(witness).scheme == "file":
            _append(Path(urlsplit(witness).path), text)
        else:
            headers = {"Content-Type": "application/jsonl"}
            httpx.post(witness, content=text, headers=headers, timeout=TIMEOUT_S).raise_for_status()
    except (OSError, httpx.HTTPError, httpx.InvalidURL) as error:
        raise WitnessFailed(f"{witness} took no heads: {error!r}") from error


def _append(path: Path, text: bytes) -> None:
    """Append whole lines; what a writer that died left of a line is cut off first."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    with os.fdopen(descriptor, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        size = file.seek(0, os.SEEK_END)
        begin = file.seek(max(0, size - TORN_BYTES_MAX))
        file.truncate(begin + file.read().rfind(b"\n") + 1)
        file.seek(0, os.SEEK_END)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def list_signed_heads(*, zone: Zone | None, after: int | None = None) -> list[str]:
    """A page of the signed heads of a zone's log, one JSON text each, in order of positions.

    Without a zone they are those of the ledger's seals.

    Parameters
    ----------
    zone
    after
        The first heads after this position; the last there are where it is not given. One head
        vouches for all entries up to it, so for a witness the last are the ones that count.
    """
    heads = PublishedHead.objects.filter(zone=zone)
    if after is None:
        latest = heads.order_by("-position").values_list("text", flat=True)[:HEADS_OF_A_PAGE]
        return list(latest)[::-1]
    later = heads.filter(position__gt=after).order_by("position")
    return list(later.values_list("text", flat=True)[:HEADS_OF_A_PAGE])
