"""A zone's beats, days, rules and solved prices, as its lane writes them to the log.

The rules in force are the log's. What the operator sets is a wish: the lane turns it into a
``RulesChanged`` entry, which holds from the day after the next on.
"""

from __future__ import annotations

import json
import logging

from django.conf import settings

from marketplace.auction import locks
from marketplace.auction.book import engine_cache as books
from marketplace.auction.lane.ended_jobs import note_sold_again
from marketplace.auction.lane.lane import Lane
from marketplace.auction.models import Bid, BidStatus, Pricing, SolveStatus
from marketplace.auction.witnesses.days import ask_witness, take_signature
from marketplace.auction.witnesses.keys import KeyUnusable, SigningKey, load_signing_key
from marketplace.common.errors import UserError
from marketplace.common.queue import enqueue
from marketplace.fleet.models import Zone
from marketplace.fleet.slots import beat_at
from scheduler.auction import ZoneRules
from scheduler.auction.log import events
from scheduler.auction.log.codec import event_from_json
from scheduler.auction.log.outcomes import GridChange
from scheduler.auction.prices.beats import find_next_beat, find_timing_problem
from scheduler.public_log.days import commit_secret
from scheduler.types import Beat

log = logging.getLogger(__name__)

#: What the secret of a day is the market's signature of; its zone and day follow.
_DAY_FORMAT = "finetender-day-secret-1"


def follow_beat(lane: Lane) -> None:
    """Log that a beat has come, with the prices that wait for it, and what the day brings."""
    engine = lane.book.engine
    beat = beat_at(lane.zone, lane.now, beats=engine.rules.beats_per_slot)
    if engine.beat is not None:
        if beat <= engine.beat or _is_idle(lane, beat):
            return
        following = find_next_beat(engine)
        waits = Pricing.objects.filter(zone=lane.zone, waiting__isnull=False)
        if following < beat and waits.exists():
            # Where slots are shorter than the lane's rounds, prices would come into force at none.
            _log_beat(lane, following)
    _log_beat(lane, beat)
    # Once this is committed; where it gets lost, the next beat has no new prices.
    enqueue("auction.prices_solve", expires_s=60.0, zone_id=lane.zone.pk)


def _log_beat(lane: Lane, beat: Beat) -> None:
    engine, head, before = lane.book.engine, lane.head, lane.book.engine.rules
    outcome = lane.apply(events.SlotAdvanced(beat.slot, beat.part)).outcome
    assert isinstance(outcome, GridChange)
    note_sold_again(outcome.sold_again)
    _note_rules(lane, before)
    _take_solved_prices(lane, beat)
    head.slot = beat.slot
    _follow_day(lane)
    head.beat_position = engine.position


def _is_idle(lane: Lane, beat: Beat) -> bool:
    """Whether nothing came since the latest beat, in whose slot this one is, and no bid waits."""
    if beat.part == 0 or lane.book.engine.position != lane.head.beat_position:
        return False
    if Bid.objects.filter(zone=lane.zone, status=BidStatus.PENDING).exists():
        # They come after the beat, as verifiers expect of what is recorded after its time.
        return False
    pricing = Pricing.objects.filter(zone=lane.zone, status=SolveStatus.IDLE)
    return pricing.filter(attempted_position=lane.head.beat_position).exists()


def _follow_day(lane: Lane) -> None:
    """Open a promised day when it has come, and promise the next one.

    A market that runs for a part of the day only promises as well. A log promises none before it
    is half a day old: its operator sets the zone up, and rules that change after a promise have to
    wait for it.
    """
    try:
        key = load_signing_key(now=lane.now)
    except (KeyUnusable, OSError) as error:
        # Bids must not wait for it; days keep the value before, and verifiers count them.
        log.error("zone %s: no key to promise or open a day with: %s", lane.zone.name, error)
        return
    engine = lane.book.engine
    promised, today = engine.day.promise, engine.today
    if promised is not None and promised.day == today:
        secret, signature = _make_secret(lane.zone, today, key), take_signature(lane.zone)
        if promised.commitment != commit_secret(secret):
            log.error("zone %s: the key that promised day %d is gone", lane.zone.name, today)
        elif signature or not promised.witness_key:
            lane.apply(events.DayOpened(today, secret, signature))
        else:
            log.error("zone %s: nobody witnessed day %d", lane.zone.name, today)
    rules, first = engine.rules, engine.horizon.first_slot
    if first - rules.first_slot < rules.day_slots // 2:
        return
    if engine.day.promise is None or engine.day.promise.day <= today:
        commitment = commit_secret(_make_secret(lane.zone, today + 1, key))
        witness = settings.AUCTION_DAY_WITNESS_KEY if settings.AUCTION_DAY_WITNESS else ""
        lane.apply(
            events.DayPromised(today + 1, lane.zone.name, commitment, key.public_key, witness)
        )
        assert engine.day.promise is not None
        ask_witness(lane.zone, engine.day.promise, now=lane.now)


def _make_secret(zone: Zone, day: int, key: SigningKey) -> str:
    """The secret of a day: whoever lacks the market's key cannot know it, and it needs no row."""
    return key.sign(f"{_DAY_FORMAT}|{zone.pk}|{day}".encode()).hex()


def sync_rules(lane: Lane) -> None:
    """Write to the log what changed in what zones sell under, or in the zone's settings."""
    rules = lane.book.engine.wanted_rules
    if lane.book.rules_seen == (lane.zone.settings, rules):
        return
    before = lane.book.engine.rules
    try:
        if books.replace_zone_settings(rules, zone=lane.zone) != rules:
            # The caller may have read the zone before the operator's last change.
            zone = Zone.objects.get(pk=lane.zone.pk)
            wanted = books.replace_zone_settings(rules, zone=zone)
            if wanted != rules:
                lane.apply(events.RulesChanged(rules=wanted))
                _note_rules(lane, before)
    except (UserError, ValueError) as error:
        # Refused before anything moved; bids must not wait for the operator to mend it.
        log.error("zone %s goes on under its old rules: %s", lane.zone.name, error)
    lane.book.rules_seen = (lane.zone.settings, lane.book.engine.wanted_rules)


def _note_rules(lane: Lane, before: ZoneRules) -> None:
    policy, fee = lane.book.engine.rules.policy, lane.book.engine.rules.fee_per_unit
    if fee != before.fee_per_unit:
        Pricing.objects.filter(zone=lane.zone).update(fee_per_unit=fee)
    if policy != before.policy:
        Pricing.objects.filter(zone=lane.zone).update(
            policy=policy, policy_since_at=lane.now, status=SolveStatus.NONE
        )
        log.info("zone %s: %s is in force, after %s", lane.zone.name, policy, before.policy)


def _take_solved_prices(lane: Lane, beat: Beat) -> None:
    """Apply the prices that wait, if they are for this beat; else those in force stand."""
    pricing = locks.lock_pricing(zone_id=lane.zone.pk)
    if pricing is None or pricing.waiting is None:
        return
    problem = _apply_waiting(lane, pricing, pricing.waiting, beat)
    pricing.waiting, pricing.problem = None, (problem or "")[:500]
    pricing.status = SolveStatus.DISCARDED if problem else SolveStatus.APPLIED
    pricing.save()


def _apply_waiting(lane: Lane, pricing: Pricing, waiting: str, beat: Beat) -> str | None:
    """Apply prices and note them; else say why they are not for this beat."""
    try:
        solved = event_from_json(json.loads(waiting))
        if not isinstance(solved, events.PricesSolved):
            raise ValueError(f"{type(solved).__name__} is no solve")
        # What a verifier of the log would say of them.
        problem = find_timing_problem(solved.inputs, beat, position=lane.head.beat_position)
        if problem is not None:
            return problem
        pricing.applied_position = lane.apply(solved).position
        pricing.applied_slot = solved.first_slot
        pricing.applied_at = lane.now
        pricing.gain = compute_gain(solved)
        tasks, weight = solved.inputs["forecast_tasks"], solved.inputs["forecast_weight"]
        pricing.expected_bids = tasks * weight
    except (ValueError, KeyError, TypeError) as error:
        return f"Not readable: {error!r}"
    return None


def compute_gain(solved: events.PricesSolved) -> float | None:
    """Share of the dual value that solving took off; ``None`` where nothing was expected."""
    before = float(solved.inputs["dual_value_before"])
    return 1.0 - float(solved.inputs["dual_value"]) / before if before > 0 else None
