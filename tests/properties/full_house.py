"""A market with one of everything that requests of an API name, for one organisation."""

from __future__ import annotations

from collections.abc import Mapping

from marketplace.accounts.models import Membership, Organisation, Role
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.pausing import pause_sold_job
from marketplace.common import clock
from marketplace.express.models import ExpressLane
from marketplace.fleet.models import Zone
from marketplace.fleet.services import ListingTerms, ensure_provider, open_listing
from marketplace.jobs.models import Job
from marketplace.vendors.models import VendorKind
from marketplace.vendors.plans import request_plan
from marketplace.webhooks.services import create_endpoint
from tests import builders, vendor_builders
from tests import market_builders as market
from tests.unit.marketplace.api.client import finish
from workers.protocol.job_terms import PreparationWish


def open_zone() -> Zone:
    """A zone with nodes, an express lane, and a vendor that nobody chooses unasked."""
    zone = market.zone()
    for _ in range(4):
        market.node(zone)
    vendor_builders.vendor(zone, kind=VendorKind.HUMAN)
    ExpressLane.objects.create(
        zone=zone,
        organisation=builders.organisation(usd="5000"),
        seat_limit_micros=20_000_000,
        budget_micros_per_h=10**12,
        slo_max_s=150.0,
    )
    return zone


def fill_house(owner: Organisation, *, zone: Zone, providing: Zone) -> Mapping[str, str]:
    """Give an owner one thing of each kind; their ids by the names that requests have for them.

    A job of each state is there: ``job_id`` runs, ``finished_job`` has an adapter, and
    ``paused_job`` may be resumed. The node is in the zone ``providing``.
    """
    now, person = clock.now(), builders.owner_of(owner)
    data = market.dataset(owner, zone)
    bids = [market.bid(owner, zone, data=data, now=now) for _ in range(3)]
    refresh_zone(zone=zone, now=now)
    decide_pending_bids(zone=zone, now=now)
    running, finished, paused = (Job.objects.get(bid_id=bid.pk) for bid in bids)
    finish(finished.pk)
    pause_sold_job(job=paused, paused_by=person, now=now)
    provider = ensure_provider(organisation=owner, now=now)
    token, _ = open_listing(
        organisation=owner,
        zone=providing,
        created_by=person,
        terms=ListingTerms(ask_micros=0),
        now=now,
    )
    webhook, _ = create_endpoint(
        organisation=owner,
        created_by=person,
        url="https://example.com/hook",
        events=["job.failed"],
        now=now,
    )
    key, _ = builders.api_key(owner)
    member = Membership.objects.create(organisation=owner, user=builders.user(), role=Role.MEMBER)
    plan = request_plan(dataset=data, zone=zone, wish=PreparationWish(), now=now)
    return {
        "zone_name": zone.name,
        "dataset_id": data.pk,
        "plan_id": plan.pk,
        "bid_id": bids[0].pk,
        "job_id": running.pk,
        "finished_job": finished.pk,
        "paused_job": paused.pk,
        "training_file": f"file-{data.pk.partition('_')[2]}",
        "file_id": f"file-{data.pk.partition('_')[2]}",
        "node_id": market.node(providing, of=provider).pk,
        "token_id": token.pk,
        "webhook_id": webhook.pk,
        "key_id": key.pk,
        "member_id": member.pk,
        "month": f"{now:%Y-%m}",
    }
