"""An express lane on the small market of ``market_builders``, and what its customers do.

Slots of 10 s; a seat does 100 units in one. A job of ``ask`` runs for 4.25 s at most: 2 s to start
and 18 units. The seat it gets is promised again from 14.25 s on.
"""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from marketplace.accounts.models import Organisation
from marketplace.auction.bidding.job_request import JobRequest
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.express.answering import answer_requests
from marketplace.express.models import ExpressLane, ExpressRequest
from marketplace.express.requests import ExpressOrder, place_request
from marketplace.express.seat_autoscaler import keep_floor
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Job, Slice
from marketplace.jobs.services import finish_slice, store_adapter
from tests import builders, job_builders
from tests import market_builders as market
from tests.builders import NOW
from workers.protocol.reports import SliceEnd

#: The first slot whose cells the floor has.
OPEN_AT = NOW + timedelta(seconds=31)
TRAINING = {"epochs": 1, "batch_size": 8, "sequence_length": 64, "validation_share": 0.1}
ADAPTER = {"virtual_tokens": 4}
#: Seconds that a job runs at most.
WORK_S = 4.25
# Of other rows come other weights.
_seeds = count()


def zone_with_nodes(nodes: int = 2) -> Zone:
    made = market.zone(horizon_slots=40)
    for _ in range(nodes):
        market.node(made, last_heartbeat_at=OPEN_AT)
    return made


def open_lane(zone: Zone, **terms: Any) -> ExpressLane:
    """A lane whose floor was bought and is sold from ``OPEN_AT`` on."""
    house = builders.organisation()
    builders.fund_wallet(house, usd="5000")
    made = ExpressLane.objects.create(
        zone=zone,
        organisation=house,
        **{
            "least_seats": 1,
            "most_seats": 1,
            "seat_limit_micros": 20_000_000,
            "budget_micros_per_h": 10**12,
            "slo_max_s": 150.0,
        }
        | terms,
    )
    keep_floor(made, now=NOW)
    decide_pending_bids(zone=zone, now=NOW)
    keep_floor(made, now=NOW)
    return made


def customer() -> Organisation:
    made = builders.organisation()
    builders.fund_wallet(made, usd="1000")
    return made


def ask(
    owner: Organisation,
    zone: Zone,
    *,
    slo_s: float = 100.0,
    key: str | None = None,
    now: datetime = OPEN_AT,
    rows: int = 20,
    dataset: Any = None,
    adapter: Any = ADAPTER,
    verified_only: bool | None = None,
    **training: Any,
) -> ExpressRequest:
    order = ExpressOrder(
        job=JobRequest(
            owner,
            zone,
            dataset or market.dataset(owner, zone, rows=rows),
            adapter,
            TRAINING | training,
            verified_only=verified_only,
        ),
        name="express",
        slo_s=slo_s,
        placed_by=builders.owner_of(owner),
        idempotency_key=key,
    )
    return place_request(order, now=now)


def answered(request: ExpressRequest, *, now: datetime = OPEN_AT) -> ExpressRequest:
    assert answer_requests(zone_id=request.zone.pk, now=now) >= 1
    request.refresh_from_db()
    return request


def job_of(request: ExpressRequest) -> Job:
    return Job.objects.get(bid_id=request.bid_id)


def finish(job: Job, *, now: datetime) -> None:
    """The node that has the job delivers its prompt."""
    held = Slice.objects.select_related("node").get(job=job, status="open")
    adapter = job.terms.adapter
    content = job_builders.adapter_file(next(_seeds), adapter=adapter)
    store_adapter(
        node=held.node, lease_token=held.lease_token, content=io.BytesIO(content), now=now
    )
    steps = -(-18 // 8)
    result = job_builders.result(held, SliceEnd.FINISHED, step=steps, copied_tokens=0)
    finish_slice(node=held.node, result=replace(result, total_steps=steps), now=now)
