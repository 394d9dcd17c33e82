"""A zone's policy and solved prices, as its lane writes them to the log.

The policy in force is the log's. What the operator sets is a wish: the lane turns
it into a ``RulesChanged`` entry. A log that began under a policy that no longer sells goes
over in the same way when its lane is next entered: its prices stay until the next solve,
which is due at once.
"""

from __future__ import annotations

import json
import logging

from marketplace.auction import locks
from marketplace.auction.book import engine_cache as books
from marketplace.auction.lane.lane import Lane
from marketplace.auction.models import Pricing, SolveStatus
from marketplace.common.errors import UserError
from marketplace.fleet.models import Zone
from scheduler.auction import ZoneRules
from scheduler.auction.audit.solve_choices import find_timing_problem
from scheduler.auction.log import events
from scheduler.auction.log.codec import event_from_json
from scheduler.auction.prices.solve import SOLVER

log = logging.getLogger(__name__)


def sync_rules(lane: Lane) -> None:
    """Write to the log what changed in what zones sell under, or in the zone's settings."""
    rules = lane.book.engine.rules
    if lane.book.rules_seen == (lane.zone.settings, rules):
        return
    try:
        if books.replace_zone_settings(rules, zone=lane.zone) != rules:
            # The caller may have read the zone before the operator's last change.
            zone = Zone.objects.get(pk=lane.zone.pk)
            wanted = books.replace_zone_settings(rules, zone=zone)
            if wanted != rules:
                _rules_change(lane, wanted)
    except (UserError, ValueError) as error:
        # Refused before anything moved; bids must not wait for the operator to mend it.
        log.error("zone %s goes on under its old rules: %s", lane.zone.name, error)
    rules = lane.book.engine.rules
    lane.book.rules_seen = (lane.zone.settings, rules)


def _rules_change(lane: Lane, wanted: ZoneRules) -> None:
    before = lane.book.engine.rules.policy
    lane.apply(events.RulesChanged(rules=wanted))
    if wanted.policy != before:
        Pricing.objects.filter(zone=lane.zone).update(
            policy=wanted.policy, policy_since_at=lane.now, status=SolveStatus.NONE
        )
        log.info("zone %s: %s is in force, after %s", lane.zone.name, wanted.policy, before)


def take_solved_prices(lane: Lane) -> bool:
    """Apply the prices that wait, if they still fit; whether they came into force."""
    pricing = locks.lock_pricing(zone_id=lane.zone.pk)
    if pricing is None or pricing.waiting is None:
        return False
    try:
        solved = event_from_json(json.loads(pricing.waiting))
        problem = _explain_staleness(lane, pricing, solved)
    except (ValueError, KeyError, TypeError) as error:
        problem = f"Not readable: {error!r}"
    pricing.waiting = None
    pricing.problem = problem[:500]
    pricing.status = SolveStatus.DISCARDED if problem else SolveStatus.APPLIED
    if not problem:
        assert isinstance(solved, events.PricesSolved)
        pricing.applied_position = lane.apply(solved).position
        pricing.applied_slot = solved.first_slot
        pricing.applied_at = lane.now
        pricing.gain = compute_gain(solved)
        pricing.expected_bids = solved.inputs["forecast_tasks"] * solved.inputs["forecast_weight"]
    pricing.save()
    return not problem


def _explain_staleness(lane: Lane, pricing: Pricing, solved: events.Event) -> str:
    """Why these prices should not come into force; empty when they should.

    Bids decided since do not count against them: they took part in no forecast either way, and
    prices solved a moment ago fit better than those solved before. Nor do nodes that came or went:
    the engine passes over those it does not have, and new ones wait for the next solve.
    """
    if not isinstance(solved, events.PricesSolved):
        return f"{type(solved).__name__} is not a solve."
    if solved.inputs["solver"] != SOLVER:
        return "Another version of the program solved them."
    position = int(solved.inputs["position"])
    if position > lane.book.engine.position:
        return "They were solved on entries that this log does not have."
    if pricing.applied_position is not None and position < pricing.applied_position:
        return "Prices solved later are in force."
    # What a verifier of the log would say of them.
    return find_timing_problem(solved.inputs, taken_at=lane.book.engine.horizon) or ""


def compute_gain(solved: events.PricesSolved) -> float | None:
    """Share of the dual value that solving took off; ``None`` where nothing was expected."""
    before = float(solved.private["dual_value_before"])
    return 1.0 - float(solved.private["dual_value"]) / before if before > 0 else None
