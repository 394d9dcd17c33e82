"""The public page: prices, decisions, and how the auction works."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db.models import Avg, F, Min
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import etag, require_GET

from marketplace.auction.alerts import list_incidents
from marketplace.auction.bidding.typical import SHARES as TYPICAL_SHARES
from marketplace.auction.bidding.typical import make_typical_quotes
from marketplace.auction.book.transcript import write_transcript
from marketplace.auction.models import WAITS_SINCE, Bid, MarketHead
from marketplace.auction.probes import run_probes
from marketplace.auction.selectors import MarketNow, load_market
from marketplace.auction.witnesses.heads import HEADS_OF_A_PAGE, list_signed_heads
from marketplace.auction.witnesses.keys import list_public_keys
from marketplace.common import clock
from marketplace.common.downloads import LinesDownload
from marketplace.common.errors import MarketFault, UserError
from marketplace.common.request_rates import check_public_rate
from marketplace.common.ttl_cache import TtlCache
from marketplace.fleet.models import ABSENT, Node, NodeStatus, Tier, Zone
from marketplace.fleet.selectors import count_offered_nodes, get_open_zone, list_open_zones
from marketplace.jobs.models import Job, JobStatus
from marketplace.web.presenters.finished import list_finished_jobs
from marketplace.web.presenters.status import PARTS, describe_parts, describe_zones
from marketplace.web.presenters.utilisation import Heat, HeatNode, build_heat
from marketplace.web.views.requests import public_page

DECISIONS_LISTED = 8
INCIDENTS_SHOWN = 20
#: Nodes in the heat map; the API has all of them.
ROWS_SHOWN = 24

#: Decisions and jobs that the figures of a zone are of.
LATEST = 100
#: The figures of a zone, which a crowd of visitors need not cause for each of them.
_figures: TtlCache[dict[str, Any]] = TtlCache(for_s=5.0)
#: From the tier that starts soonest, as the key under the map.
_TIERS = tuple(Tier.values)


@public_page
@require_GET
def show_market(request: HttpRequest, zone_name: str | None = None) -> HttpResponse:
    now = clock.now()
    zones = list(list_open_zones())
    zone = get_open_zone(zone_name) if zone_name else next(iter(zones), None)
    context: dict[str, Any] = {"zones": zones, "zone": zone, "now": now}
    if zone is not None:
        try:
            book = load_market(zone, now=now)
        except MarketFault:
            # Prices are away; the rest of the page is not.
            context["closed"] = True
        else:
            context |= {
                "book": book,
                "heat": build_market_heat(book, now=now, rows_max=ROWS_SHOWN),
                "typical": make_typical_quotes(zone=zone, now=now),
                "columns": [zone.slot_s * zone.horizon_slots * share for share in TYPICAL_SHARES],
                "decisions": book.decisions[:DECISIONS_LISTED],
            }
        context["figures"] = _figures.get(zone.pk, now=now, read=lambda: count_market_figures(zone))
    return render(request, "web/market.html", context)


def _find_head_hash(request: HttpRequest, zone_name: str) -> str | None:
    head = MarketHead.objects.filter(zone__name=zone_name).first()
    return None if head is None else f'"{head.head_hash}"'


@require_GET
@etag(_find_head_hash)
def download_transcript(request: HttpRequest, zone_name: str) -> LinesDownload:
    """The zone's log for anybody, with commitments in place of bids unless bids are published."""
    check_public_rate(request, kind="transcripts")
    zone = get_open_zone(zone_name)
    lines = write_transcript(zone, with_bids=settings.PUBLISH_BIDS)
    return LinesDownload(lines, content_type="application/jsonl", name=f"{zone.name}.jsonl")


@public_page
@require_GET
def download_heads(request: HttpRequest, zone_name: str) -> HttpResponse:
    """A page of the signed heads of a zone's log: who stores them can tell that it was changed."""
    zone = get_open_zone(zone_name)
    heads = list_signed_heads(zone=zone, after=_read_number(request, "after"))
    answer = HttpResponse(
        "".join(f"{line}\n" for line in heads),
        content_type="application/jsonl",
        headers={"Content-Disposition": f'attachment; filename="{zone.name}-heads.jsonl"'},
    )
    if len(heads) == HEADS_OF_A_PAGE:
        last = json.loads(heads[-1])["position"]
        answer["Link"] = f'<{request.path}?after={last}>; rel="next"'
    return answer


def _read_number(request: HttpRequest, name: str) -> int | None:
    """A whole number in the query; ``None`` where it is not given."""
    text = request.GET.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise UserError("bad_number", f"{name} must be a whole number.", param=name)
    return int(text)


@public_page
@require_GET
def show_public_keys(request: HttpRequest) -> JsonResponse:
    """The keys that sign heads and receipts, those of the past too."""
    keys = [
        {
            "public_key": key.public_key,
            "created_at": key.created_at.isoformat(),
            "retired_at": key.retired_at and key.retired_at.isoformat(),
            "vouched_by": key.vouched_by,
        }
        for key in list_public_keys()
    ]
    return JsonResponse({"format": "finetender-keys-1", "algorithm": "Ed25519", "keys": keys})


@public_page
@require_GET
def show_status(request: HttpRequest) -> HttpResponse:
    """Whether the market works now and did lately, in words; ``/healthz`` is for programs."""
    now = clock.now()
    probes = run_probes(now=now)
    incidents = list_incidents(now=now)
    begun_at = Zone.objects.aggregate(first=Min("created_at"))["first"]
    context = {
        "now": now,
        "works": all(probe.is_ok for probe in probes),
        "parts": describe_parts(probes, incidents, begun_at=begun_at, now=now),
        "begun_at": begun_at,
        "zones": describe_zones(list(list_open_zones())),
        "incidents": [(PARTS[each.part].was_away, each) for each in incidents[:INCIDENTS_SHOWN]],
    }
    return render(request, "web/status.html", context)


def build_market_heat(book: MarketNow, *, now: datetime, rows_max: int) -> Heat:
    """By tier, then by ask; of many nodes only ``rows_max`` are drawn."""
    facts = {
        node.pk: HeatNode(node.name, node.gpu_type_id, node.tier, node.compute_capacity)
        for node in Node.objects.filter(zone=book.zone)
    }
    rows = sorted(
        (row for row in book.rows if row.node_id in facts),
        key=lambda row: (_TIERS.index(facts[row.node_id].tier), row.ask_micros, row.name),
    )[:rows_max]
    return build_heat(
        rows=rows,
        facts=facts,
        first_slot_at=book.first_slot_at,
        slot_s=book.zone.slot_s,
        now=now,
    )


def count_market_figures(zone: Zone) -> dict[str, Any]:
    """What the page says of the latest bids and jobs: how fast, how punctual."""
    decided = Bid.objects.filter(zone=zone, position__isnull=False).order_by("-position")
    speed = decided[:LATEST].aggregate(mean=Avg(F("decided_at") - WAITS_SINCE))["mean"]
    nodes = Node.objects.filter(zone=zone).exclude(status__in=ABSENT)
    ended = Job.objects.filter(
        zone=zone, finished_at__isnull=False, status=JobStatus.SUCCEEDED
    ).order_by("-finished_at")
    times = ended.values_list("finished_at", "deadline_at")[:LATEST]
    in_time = [finished_at <= deadline_at for finished_at, deadline_at in times]
    return {
        "decide_s": speed.total_seconds() if speed is not None else None,
        "in_time_share": sum(in_time) / len(in_time) if in_time else None,
        "of": LATEST,
        "finished": list_finished_jobs(zone),
        "nodes_online": nodes.filter(status=NodeStatus.ONLINE).count(),
        "nodes": nodes.count(),
        "nodes_offered": count_offered_nodes(zone),
    }
