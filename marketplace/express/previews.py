"""What the lane would answer now, SLO by SLO; nothing is held and nothing written."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime

from marketplace.accounts.models import Organisation
from marketplace.express.fair_share import limit_seats
from marketplace.express.gangs import limit_gang
from marketplace.express.requests import ExpressTerms
from marketplace.express.seat_queue import build_lane_question
from marketplace.express.seats import load_lane_state
from scheduler.prompts.admission import LaneAnswer
from scheduler.prompts.answers import answer_question
from scheduler.prompts.jobs import TuningJob

#: SLOs that are looked at, at most.
PREVIEWS_MAX = 60


@dataclass(frozen=True, slots=True)
class SloPreview:
    """One SLO, its price, and whether the seats bought by now would keep it."""

    slo_s: int
    price_micros: int
    is_certain: bool


def list_slo_previews(
    terms: ExpressTerms, *, organisation: Organisation, now: datetime
) -> list[SloPreview]:
    """Whole seconds from the least SLO to the longest on sale, evenly spaced; the shortest first.

    A request may be certified where this says it is not certain: the lane then bids for a burst.
    """
    lane = terms.lane
    first, last = math.ceil(terms.least_slo_s), math.floor(lane.slo_max_s)
    if first > last:
        return []
    step = max(1, math.ceil((last - first) / PREVIEWS_MAX))
    state = load_lane_state(lane, now=now)
    own_seats = state.held[organisation.pk]
    seats = limit_seats(state.seats, own_seats=own_seats)
    gangs = limit_gang(terms.gangs, seats=len(seats), own_seats=own_seats)
    previews: list[SloPreview] = []
    for slo_s in range(first, last + 1, step):
        job = TuningJob(
            "", lane.zone.base_model_name, 0.0, float(slo_s), terms.work_s, terms.lookup_s
        )
        asked = build_lane_question(
            zone=lane.zone,
            seats=seats,
            job=job,
            base=now,
            price=terms.posted,
            gangs=gangs,
            now=now,
        )
        answer = answer_question(asked.question)
        is_certain = answer["answer"] == LaneAnswer.CERTIFIED
        previews.append(SloPreview(slo_s, terms.price_micros(slo_s), is_certain))
    return previews
