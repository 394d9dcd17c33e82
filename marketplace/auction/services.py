"""Placing, awaiting and taking back bids. ``lane`` decides them."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import IntegrityError, connection, transaction

from marketplace.accounts.models import Organisation, User
from marketplace.auction import locks, wakeups
from marketplace.auction.decisions import decide_pending_bids
from marketplace.auction.measure import Measured, job_measure
from marketplace.auction.models import Bid, BidStatus
from marketplace.auction.terms import (
    deadline_check,
    name_check,
    price_micros_check,
)
from marketplace.common.errors import Conflict
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Dataset
from marketplace.payments.services import funds_hold, hold_release
from workers.protocol.wire import to_json

__all__ = ["bid_cancel", "bid_place", "bid_wait", "decide_pending_bids"]

#: What the web waits for a decision before it answers "pending".
WAIT_S = 2.0


def bid_place(
    *,
    organisation: Organisation,
    placed_by: User | None,
    zone: Zone,
    dataset: Dataset,
    name: str,
    adapter: Mapping[str, Any],
    training: Mapping[str, Any],
    price_micros: int,
    deadline_at: datetime,
    idempotency_key: str | None,
    now: datetime,
) -> Bid:
    """Append a bid to the zone's queue and hold its price in the wallet.

    The bid is decided by the zone's lane; ``bid_wait`` returns it decided. The
    same key with the same request returns the first bid and does nothing else.

    Raises
    ------
    UserError
        The request cannot be bid for as it stands; nothing was stored or held.
    Conflict
        ``idempotency_key_reused``: the key belongs to another request.
    PaymentRequired
        ``insufficient_funds``: the wallet has less than the price.
    """
    request_hash = _request_hash(
        zone=zone.pk,
        dataset=dataset.sha256,
        name=name,
        adapter=dict(adapter),
        training=dict(training),
        price_micros=price_micros,
        deadline_at=deadline_at.isoformat(),
    )
    if idempotency_key is not None:
        earlier = _bid_of_key(organisation, idempotency_key, request_hash)
        if earlier is not None:
            return earlier
    price_micros_check(price_micros)
    deadline_check(deadline_at, zone=zone, now=now)
    measured = job_measure(
        organisation=organisation,
        zone=zone,
        dataset=dataset,
        adapter=adapter,
        training=training,
        now=now,
    )
    bid = Bid(
        zone=zone,
        organisation=organisation,
        placed_by=placed_by,
        dataset=dataset,
        name=name_check(name),
        price_micros=price_micros,
        deadline_at=deadline_at,
        idempotency_key=idempotency_key,
        request_hash=request_hash,
        created_at=now,
        **_measured_fields(measured),
    )
    try:
        with transaction.atomic():
            bid.save(force_insert=True)
            funds_hold(
                organisation=organisation,
                amount_micros=price_micros,
                reference=bid.hold_reference,
                now=now,
            )
            wakeups.lane_wake_on_commit(zone_id=zone.pk)
    except IntegrityError:
        # The same key in a parallel request: theirs was first, ours left no trace.
        earlier = idempotency_key and _bid_of_key(organisation, idempotency_key, request_hash)
        if not earlier:
            raise
        return earlier
    return bid


def bid_wait(*, bid: Bid, timeout_s: float | None = None) -> Bid:
    """The bid once it is decided, or as it stands after ``timeout_s`` (``WAIT_S``).

    Call outside a transaction. The database connection goes back to the pool
    while waiting, so that waiting requests do not starve deciding ones.
    """
    ends_at = time.monotonic() + (WAIT_S if timeout_s is None else timeout_s)
    with wakeups.listener.waiting_for(bid.pk) as decided:
        while True:
            left_s = ends_at - time.monotonic()
            status = Bid.objects.filter(pk=bid.pk).values_list("status", flat=True).get()
            if status != BidStatus.PENDING or left_s <= 0:
                return Bid.objects.select_related("zone").get(pk=bid.pk)
            if not connection.in_atomic_block:
                connection.close()
            decided.wait(min(left_s, wakeups.LOOK_EVERY_S))


def bid_cancel(*, bid: Bid, now: datetime) -> Bid:
    """Take a bid back before it is decided; its hold is released.

    Raises
    ------
    Conflict
        ``bid_already_decided``: cancel the job instead.
    """
    with transaction.atomic():
        locked = locks.bid_lock(bid_id=bid.pk)
        if locked.status == BidStatus.CANCELLED:
            return locked
        if locked.status != BidStatus.PENDING:
            raise Conflict(
                "bid_already_decided",
                f"This bid was {locked.status} already; cancel its job instead."
                if locked.status == BidStatus.ADMITTED
                else "This bid was refused already; there is nothing to cancel.",
            )
        locked.status = BidStatus.CANCELLED
        locked.decided_at = now
        locked.save(update_fields=["status", "decided_at"])
        hold_release(hold_reference=locked.hold_reference, now=now)
        wakeups.decided_notify(bid_ids=[locked.pk])
    return locked


def _measured_fields(measured: Measured) -> dict[str, Any]:
    return {
        "adapter": to_json(measured.terms.adapter),
        "training": to_json(measured.terms.training),
        "resolved": list(measured.terms.resolved),
        "samples": measured.work.samples,
        "compute_demand": measured.work.compute_demand,
        "memory_demand_gb": measured.work.memory_demand_gb,
        "rates": measured.work.rates,
    }


def _request_hash(**request: Any) -> str:
    text = json.dumps(request, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _bid_of_key(organisation: Organisation, key: str, request_hash: str) -> Bid | None:
    earlier = Bid.objects.filter(organisation=organisation, idempotency_key=key).first()
    if earlier is not None and earlier.request_hash != request_hash:
        raise Conflict(
            "idempotency_key_reused",
            f"The idempotency key was used for bid {earlier.pk} with another request. "
            "Send a new key with a new request.",
            extra={"bid_id": earlier.pk},
        )
    return earlier
