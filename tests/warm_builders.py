"""Jobs that end with a validation loss, and answers to probes, for tests of warm starts."""

from __future__ import annotations

import json
from datetime import timedelta

from django.core.files.base import ContentFile

from marketplace.auction.bidding.job_request import JobRequest
from marketplace.auction.bidding.quotes import make_quote
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.fleet.slots import slot_ends_at
from marketplace.jobs.models import Job
from marketplace.jobs.services import dispatch_slots
from marketplace.warm.consents import set_consent
from marketplace.warm.donors import list_new_donors
from marketplace.warm.offers import Outlook
from tests import market_builders as market
from tests.builders import NOW
from tests.errand_builders import answer_errand, list_errands
from workers.protocol.errands import PROBE
from workers.protocol.probes import ProbeLoss, ProbeResult
from workers.protocol.reports import SliceEnd

#: Ten evaluations over 36 steps: every 4.
TRAINING = {"epochs": 3}
#: In slot 104, when earlier jobs have ended.
LATER = NOW + timedelta(seconds=41)


def live_node(zone):
    return market.node(zone, last_heartbeat_at=LATER)


def data_of(owner, zone, *, word="parcel"):
    data = market.dataset(owner, zone)
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"Where is my {word} {i}?"},
                {"role": "assistant", "content": f"Dear friend, your {word} comes soon."},
            ]
        }
        for i in range(100)
    ]
    data.file.delete(save=False)
    data.file.save("data", ContentFile("\n".join(map(json.dumps, rows)).encode()))
    return data


def finished(owner, zone, *, data=None, memorised=0, **terms) -> Job:
    """A job that ran to its end and took its validation loss from 4 to 1."""
    data = data or data_of(owner, zone)
    bid = market.bid(owner, zone, data=data, **TRAINING, **terms)
    decide_pending_bids(zone=zone, now=NOW)
    return ended(Job.objects.get(bid_id=bid.pk), zone, memorised=memorised)


def ended(job, zone, *, memorised=0, valid_loss_after=1.0, **figures) -> Job:
    now = market.slot_at(zone, job.cells[0][0])
    dispatch_slots(now=now)
    market.end_slice(
        job,
        status=SliceEnd.FINISHED,
        now=now,
        valid_loss_before=4.0,
        valid_loss_after=valid_loss_after,
        memorised_rows=memorised,
        **figures,
    )
    # Its lease is off the node's plan.
    dispatch_slots(now=now + timedelta(seconds=market.SLOT_S))
    list_new_donors(now=NOW)
    job.refresh_from_db()
    return job


def quote(owner, zone, data, *, now=LATER, **terms):
    job = JobRequest(owner, zone, data, **(market.job_terms(**TRAINING) | terms))
    return make_quote(job, deadline_at=slot_ends_at(zone, 130), now=now)


def ask_others(owner, zone, giver):
    """A quote for which a node is asked about a donor of another organisation."""
    donor = finished(giver, zone)
    set_consent(organisation=owner, uses_donors=True, gives_adapters=False, now=NOW)
    data = data_of(owner, zone, word="letter")
    assert quote(owner, zone, data).outlook is Outlook.ASKED
    return donor, data


def answer(node, base, *losses, now=LATER):
    """The node answers what it was asked last."""
    probe = list_errands(node, PROBE)[-1]
    adapters = probe.task.adapters
    found = [ProbeLoss(one.name, loss) for one, loss in zip(adapters, losses, strict=True)]
    answer_errand(node, probe.token, ProbeResult(base, tuple(found), 0.5), now=now)
    return probe.task


def bid_for_offer(owner, zone, data, offered, **terms):
    """Bid for the warm start of a quote."""
    model = f"warm:{offered.measured.start.offer_id}"
    return market.bid(owner, zone, data=data, model=model, now=LATER, **TRAINING, **terms)


def bid_warm(owner, zone, data, offered):
    """Win the warm start of a quote; the bid and its job."""
    bid = bid_for_offer(owner, zone, data, offered)
    decide_pending_bids(zone=zone, now=LATER)
    bid.refresh_from_db()
    return bid, Job.objects.get(bid_id=bid.pk)
