"""What may be asked of the auction; nothing here writes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import cast

from django.db.models import Exists, OneToOneRel, OuterRef, Q, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce, Concat

from marketplace.accounts.models import Organisation
from marketplace.auction.bid_words import build_query, build_vector
from marketplace.auction.book import engine_cache as books
from marketplace.auction.lane.decisions import DECISION_FIELDS
from marketplace.auction.models import Bid, BidStatus, Bundle, Pricing
from marketplace.auction.models.bids import HOLD_PREFIX
from marketplace.common.errors import NotFound, UserError
from marketplace.fleet.models import Node, Zone
from marketplace.fleet.policy_settings import find_unit_fee
from marketplace.fleet.selectors import slot_at, slot_starts_at
from marketplace.jobs.models import Job
from marketplace.payments.models import Hold
from scheduler.auction.engine.price_policies import SELLING_POLICY

DECISIONS_SHOWN = 20
#: Of an owner's bids, those that are read in search of words before the index is.
LOOKED_AT = 200


def annotate_refunds(bids: QuerySet[Bid]) -> QuerySet[Bid]:
    """Add ``refund_micros``, what went back of each payment, as its hold has it."""
    holds = Hold.objects.filter(reference=Concat(Value(HOLD_PREFIX), OuterRef("pk")))
    return bids.annotate(refund_micros=Coalesce(Subquery(holds.values("refunded_micros")), 0))


def list_bids(organisation: Organisation, *, status: str | None = None) -> QuerySet[Bid]:
    """An organisation's bids, newest first; its express lane's own are left out.

    Raises
    ------
    UserError
        ``invalid_status``: there is no such status.
    """
    own = Bid.objects.filter(organisation=organisation, dataset__isnull=False)
    bids = annotate_refunds(own).select_related("zone").order_by("-pk")
    if status is None:
        return bids
    if status not in BidStatus.values:
        raise UserError(
            "invalid_status", f"A status is one of {', '.join(BidStatus.values)}.", param="status"
        )
    return bids.filter(status=status)


def get_bid(organisation: Organisation, bid_id: str) -> Bid:
    """One of the organisation's bids.

    Raises
    ------
    NotFound
        ``unknown_bid``: there is no such bid, or it is another organisation's.
    """
    bid = list_bids(organisation).filter(pk=bid_id).first() if "\0" not in bid_id else None
    if bid is None:
        raise NotFound("unknown_bid", f"You have no bid {bid_id!r}; GET /api/bids lists them.")
    return bid


def get_bundle(organisation: Organisation, bundle_id: str) -> Bundle:
    """One of the organisation's bundles.

    Raises
    ------
    NotFound
        ``unknown_bundle``: there is no such bundle, or it is another organisation's.
    """
    own = Bundle.objects.filter(organisation=organisation).select_related("zone")
    bundle = own.filter(pk=bundle_id).first() if "\0" not in bundle_id else None
    if bundle is None:
        raise NotFound("unknown_bundle", f"You have no bundle {bundle_id!r}.")
    return bundle


def find_bundle_status(bids: Sequence[Bid]) -> str:
    """Where a bundle stands: a bid's status, ``admitted`` where any of its bids was."""
    found = {bid.status for bid in bids}
    for status in (*Bid.OPEN, BidStatus.ADMITTED, BidStatus.REFUSED):
        if status in found:
            return status
    return BidStatus.CANCELLED


def find_paid_bids(references: Iterable[str]) -> dict[str, Bid]:
    """Bids by the references of their money; references of anything else are left out."""
    ids = {
        reference: part
        for reference in references
        for part in reference.split(":")
        if part.startswith("bid_")
    }
    bids = Bid.objects.only("pk", "name").in_bulk(set(ids.values()))
    return {reference: bids[bid_id] for reference, bid_id in ids.items() if bid_id in bids}


def refresh_bids(bids: Iterable[Bid]) -> None:
    """Bring up to date, on bids in hand, what deciding or cancelling them changes."""
    # Two requests under one idempotency key have a row of their own each for the same bid.
    in_hand: defaultdict[str, list[Bid]] = defaultdict(list)
    for bid in bids:
        in_hand[bid.pk].append(bid)
    columns = ("receipt", "price_micros", *DECISION_FIELDS)
    offer = cast("OneToOneRel", Bid._meta.get_field("price_offer"))
    for pk, *values in Bid.objects.filter(pk__in=in_hand).values_list("pk", *columns):
        for bid in in_hand[pk]:
            for name, value in zip(columns, values, strict=True):
                setattr(bid, name, value)
            if offer.is_cached(bid):
                # It is read again where it is shown.
                offer.delete_cached_value(bid)


def find_job_ids(bids: Sequence[Bid]) -> dict[str, str]:
    """The jobs of admitted bids, by bid id."""
    admitted = [bid.pk for bid in bids if bid.status == BidStatus.ADMITTED]
    return dict(Job.objects.filter(bid_id__in=admitted).values_list("bid_id", "pk"))


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node's cells over the horizon, in slot order."""

    node_id: str
    name: str
    gpu_type: str
    #: Micro-dollars per work unit, on top of the ask.
    compute_price: tuple[float, ...]
    #: Micro-dollars per GB and slot.
    memory_price: tuple[float, ...]
    #: Sold shares, 0 to 1.
    compute_sold: tuple[float, ...]
    memory_sold: tuple[float, ...]
    on_sale: tuple[bool, ...]
    ask_micros: int


@dataclass(frozen=True, slots=True)
class MarketNow:
    """A zone's book at one position of its log."""

    zone: Zone
    #: Of the last event on the stream ``market.<zone name>``.
    seq: int
    position: int
    head_hash: str
    #: The slot that holds ``now``.
    slot: int
    #: First slot of the rows below.
    first_slot: int
    first_slot_at: datetime
    rows: tuple[NodeRow, ...]
    #: Newest first.
    decisions: tuple[Bid, ...]


def load_market(zone: Zone, *, now: datetime) -> MarketNow:
    """Prices and sold shares of every cell on sale, with the latest decisions."""
    with books.read_book(zone=zone, now=now) as book:
        prices = book.engine.prices()
        nodes = book.nodes
        position, head_hash, seq = book.engine.position, book.engine.head_hash, book.seq
    names = dict(Node.objects.filter(zone=zone).values_list("pk", "name"))
    rows = tuple(
        NodeRow(
            node_id=node_id,
            name=names.get(node_id, node_id),
            gpu_type=nodes[node_id].gpu_type,
            compute_price=tuple(prices.compute_price[k].tolist()),
            memory_price=tuple(prices.memory_price[k].tolist()),
            compute_sold=tuple(prices.compute_sold[k].tolist()),
            memory_sold=tuple(prices.memory_sold[k].tolist()),
            on_sale=tuple(prices.on_sale[k].tolist()),
            ask_micros=int(nodes[node_id].ask),
        )
        for k, node_id in enumerate(prices.node_ids)
    )
    return MarketNow(
        zone=zone,
        seq=seq,
        position=position,
        head_hash=head_hash,
        slot=slot_at(zone, now),
        first_slot=prices.first_slot,
        first_slot_at=slot_starts_at(zone, prices.first_slot),
        rows=rows,
        decisions=tuple(list_recent_decisions(zone, until=position)),
    )


def list_recent_decisions(
    zone: Zone, *, until: int | None = None, limit: int = DECISIONS_SHOWN
) -> list[Bid]:
    """The zone's latest decided bids, newest first.

    Show others no more than ``build_decision_news`` does.
    """
    bids = Bid.objects.filter(zone=zone, position__isnull=False)
    if until is not None:
        bids = bids.filter(position__lte=until)
    return list(bids.order_by("-position")[:limit])


def list_zone_pricing() -> QuerySet[Zone]:
    """All zones with the policy in force and the last solve of each, where there is a log."""
    return (
        Zone.objects.select_related("pricing")
        .defer("pricing__waiting", "model_shape")
        .order_by("name")
    )


def find_unit_fee_in_force(zone: Zone) -> float:
    """The house's fee for a work unit, in micro-dollars, as the zone's next bid pays it."""
    found = Pricing.objects.filter(zone=zone).values_list("fee_per_unit", flat=True).first()
    return find_unit_fee(zone) if found is None else found


@dataclass(frozen=True, slots=True)
class SettingsStart:
    """From when a zone's settings hold; ``None``: they do, or would at once."""

    #: What was set last.
    wanted_at: datetime | None
    #: What would be set now.
    next_change_at: datetime | None


def load_settings_start(zone: Zone, *, now: datetime) -> SettingsStart:
    """From when on prices follow the zone's settings, by the rules that wait in its log."""
    with books.read_book(zone=zone, now=now) as book:
        engine = book.engine
        day, next_day = engine.wanted_day, engine.next_change_day
        if books.replace_zone_settings(engine.wanted_rules, zone=zone) != engine.wanted_rules:
            # The lane logs what was set as it next comes by.
            day = next_day
        day_slots = engine.rules.day_slots

    def find_start(at: int | None) -> datetime | None:
        return None if at is None else slot_starts_at(zone, at * day_slots)

    return SettingsStart(find_start(day), find_start(next_day))


def get_policy_in_force(zone: Zone) -> str:
    """The policy that prices the zone's next bid."""
    found = Pricing.objects.filter(zone=zone).values_list("policy", flat=True).first()
    return found or SELLING_POLICY


def search_bids(
    bids: QuerySet[Bid], *, organisation: Organisation, words: str, limit: int
) -> list[Bid]:
    """The first of an organisation's bids, of ``list_bids``, by an id or by words.

    The id is a bid's or its job's. Each word is the start of one in the name; or all of it is a
    part of the base model's name.
    """
    by_id = words.lower()
    jobs = Job.objects.filter(pk=by_id, organisation=organisation)
    named = list(bids.filter(pk__in=[by_id, *jobs.values_list("bid_id", flat=True)]))
    if named:
        return named
    zones = Zone.objects.filter(base_model_name__icontains=words)
    query = build_query(
        words,
        organisation_id=organisation.pk,
        zone_ids=list(zones.values_list("pk", flat=True)),
    )
    if query is None:
        return []
    # What is common is found among the latest; of what is not there the index has little.
    latest = list(bids.values_list("pk", flat=True)[:LOOKED_AT])
    common = bids.filter(pk__in=latest).annotate(words=build_vector(is_indexed=False))
    found = list(common.filter(words=query)[:limit])
    if len(found) == limit or len(latest) < LOOKED_AT:
        return found
    return list(bids.annotate(words=build_vector()).filter(words=query)[:limit])


def list_bids_set_aside() -> QuerySet[Bid]:
    """Bids that wait because they could not be decided; the market's fault, not their owners'."""
    waiting = Bid.objects.filter(status=BidStatus.PENDING, retry_at__isnull=False)
    return waiting.select_related("zone").order_by("arrival")


def list_bids_not_settled() -> QuerySet[Bid]:
    """Bids whose jobs have ended and whose money could not be settled; it is tried again."""
    unsettled = Job.objects.filter(finished_at__isnull=False, settled_at__isnull=True)
    since_it_ended = unsettled.filter(bid_id=OuterRef("pk"), finished_at__lt=OuterRef("retry_at"))
    found = Bid.objects.filter(retry_at__isnull=False)
    found = found.filter(Q(Exists(since_it_ended)) | Q(rent_due_micros__isnull=False))
    return found.select_related("zone").order_by("retry_at")
