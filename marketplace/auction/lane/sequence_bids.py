"""Receiving bids: sealed into the log, with a signed receipt, before they are decided."""

from __future__ import annotations

import hmac
import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime

from django.conf import settings

from marketplace.auction import locks
from marketplace.auction.book.engine_cache import get_commitment_salt
from marketplace.auction.lane.lane import Lane
from marketplace.auction.lane.offers import asks_now, is_ahead, read_seen_beat
from marketplace.auction.models import Bid
from marketplace.auction.royalties import list_royalties
from marketplace.auction.task_values import build_task
from marketplace.auction.witnesses.keys import SigningKey, load_signing_key
from marketplace.common.db.bulk_writes import send_updates
from marketplace.common.traces import record_stage
from marketplace.fleet.selectors import last_slot_until
from marketplace.vendors.offers import find_capacities, read_offers
from scheduler import types as scheduler
from scheduler.auction.log import events
from scheduler.auction.log.chain import seal
from scheduler.public_log.heads import Head, Receipt, sign_head, signed_head_to_json


def receive_bids(lane: Lane, *, limit: int, only: str | None = None) -> int:
    """Put the oldest bids that wait into the log, in the order they arrived; how many.

    What is fixed here is all that a decision is made of: the measured work, the slot, the
    commitment to the amount and, by its place in the log, the prices. Each bid's receipt is
    signed over the hash of the entry. ``only`` names the one bid to receive. The bids of a bundle
    are received together, so there may be more than ``limit``.
    """
    waiting = _with_whole_bundles(
        locks.lock_pending_bids(zone_id=lane.zone.pk, limit=limit, only=only)
    )
    received = lane.book.engine.open_receipts
    bids = [bid for bid in waiting if bid.pk not in received and not is_ahead(lane, bid)]
    if not bids:
        return 0
    for bid in bids:
        bid.received_slot, bid.salt = lane.slot, get_commitment_salt()
    _sync_vendors(lane, bids)
    receipts = [Receipt(bid.pk, seal(build_arrival(lane, bid))) for bid in bids]
    entry = lane.apply(events.BidsReceived(tuple((of.bid_id, of.sealed) for of in receipts)))
    head = Head(lane.zone.name, entry.position, entry.hash)
    key = load_signing_key(now=lane.now)
    send_updates(
        Bid,
        ("receipt", "received_slot", "salt"),
        [
            (bid.pk, _sign_receipt(key, head, receipt, now=lane.now), bid.received_slot, bid.salt)
            for bid, receipt in zip(bids, receipts, strict=True)
        ],
    )
    for bid in bids:
        record_stage(
            "bid.receipt",
            bid_id=bid.pk,
            since=bid.created_at,
            zone=lane.zone.name,
            position=entry.position,
        )
    return len(bids)


def _with_whole_bundles(waiting: Sequence[Bid]) -> list[Bid]:
    """Bids with all others of their bundles that wait, next to the first of each."""
    bundle_ids = {bid.bundle_id for bid in waiting if bid.bundle_id is not None}
    if not bundle_ids:
        return list(waiting)
    together: dict[str, list[Bid]] = {}
    for bid in locks.lock_bids_of_bundles(bundle_ids=sorted(bundle_ids)):
        assert bid.bundle_id is not None
        together.setdefault(bid.bundle_id, []).append(bid)
    found: list[Bid] = []
    for bid in waiting:
        found += [bid] if bid.bundle_id is None else together.pop(bid.bundle_id, [])
    return found


def _sync_vendors(lane: Lane, bids: Sequence[Bid]) -> None:
    """Tell the engine what the vendors that made offers can do in a slot, where that changed."""
    vendor_ids = {offer[0] for bid in bids for offer in bid.offers}
    if vendor_ids:
        known = lane.book.engine.vendors
        for vendor_id, rows in find_capacities(zone=lane.zone, vendor_ids=vendor_ids).items():
            if known.get(vendor_id) != rows:
                lane.apply(events.VendorChanged(scheduler.VendorCapacity(vendor_id, rows)))


def build_arrival(lane: Lane, bid: Bid) -> events.BidArrived | events.BidPriced:
    """The event that decides a bid that was received, or tells its price, always the same."""
    assert bid.received_slot is not None
    task = build_task(
        bid,  # pyright: ignore[reportArgumentType]
        task_id=bid.pk,
        # The slot it was received in runs already: cells from the next one on are sold.
        arrival_slot=max(bid.received_slot + 1, bid.not_before_slot or 0),
        deadline_slot=last_slot_until(lane.zone, bid.deadline_at),
        bid=float(bid.price_micros),
        vendors=read_offers(bid.offers),
        owner=name_owner(zone_id=lane.zone.pk, organisation_id=bid.organisation_id),
        verified_only=bid.verified_only,
    )
    if bid.warm_start is not None:
        task = replace(task, vendors=list_royalties(bid.warm_start))
    if asks_now(bid):
        return events.BidPriced(task=task, slot=bid.received_slot, beat=read_seen_beat(bid))
    return events.BidArrived(
        task=task,
        slot=bid.received_slot,
        salt=bid.salt,
        bundle=bid.bundle_id if bid.is_joint and bid.bundle_id else "",
    )


def name_owner(*, zone_id: str, organisation_id: str) -> str:
    """What a zone's log calls an organisation: the same always, and no guess at which it is."""
    text = f"auction.owner|{zone_id}|{organisation_id}"
    return hmac.digest(settings.SECRET_KEY.encode(), text.encode(), "sha256").hex()[:16]


def void_receipts(lane: Lane, bid_ids: Collection[str], *, reason: str) -> None:
    """Say in the log that bids that were received are not decided now."""
    if bid_ids:
        lane.apply(events.ReceiptsVoided(tuple(bid_ids), reason))


def _sign_receipt(key: SigningKey, head: Head, receipt: Receipt, *, now: datetime) -> str:
    signed = sign_head(
        head,
        signed_at=now.isoformat(),
        public_key=key.public_key,
        sign=key.sign,
        receipt=receipt,
    )
    return json.dumps(signed_head_to_json(signed))
