"""The policy and settings a zone sells under: what log, readers and operator see of them."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from math import inf

import pytest
from django.core.management import CommandError, call_command

from marketplace.auction.book import engine_cache as books
from marketplace.auction.book.transcript import write_transcript
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane import enter
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.models import Bid, LogEntry, MarketHead, Pricing, Snapshot
from marketplace.auction.pricing.past_bids import load_past_bids
from marketplace.auction.selectors import get_policy_in_force
from marketplace.fleet import slots
from marketplace.fleet.models import Zone
from marketplace.fleet.services import set_policy_settings
from scheduler.auction import ZoneRules
from scheduler.auction.audit.transcripts import verify_transcript
from scheduler.auction.prices import forecast_span
from scheduler.auction.prices.forecast_span import ForecastSpan, choose_span
from tests import builders
from tests import market_builders as market
from tests.audits import alter_row
from tests.builders import NOW

pytestmark = pytest.mark.django_db


@pytest.fixture
def owner():
    return builders.organisation(usd="1000")


@pytest.fixture
def zone():
    zone = market.zone(horizon_slots=12)
    market.node(zone)
    return zone


def sell(owner, zone, *, now=NOW, count=3, slots=9, worth=2_000_000, **terms):
    placed = [
        market.bid(owner, zone, price_micros=worth + number, now=now, slots=slots, **terms)
        for number in range(count)
    ]
    decide_pending_bids(zone=zone, now=now)
    return placed


reprice = market.reprice


def rules(zone) -> ZoneRules:
    with books.read_book(zone=zone, now=NOW) as book:
        return book.engine.rules


def kinds(zone) -> list[str]:
    rows = LogEntry.objects.filter(zone=zone).order_by("position")
    return list(rows.values_list("kind", flat=True))


def set_settings(zone, **settings) -> Zone:
    return set_policy_settings(zone=zone, settings=settings, now=NOW)


# -- from the first bid --------------------------------------------------------------------


def test_a_zone_sells_at_asks_from_its_first_bid_and_at_solved_prices_from_the_first_solve(
    zone, owner
):
    [first] = sell(owner, zone, count=1)
    first.refresh_from_db()
    # One cell of a quarter of the node, and nothing on top of the ask.
    assert (first.status, first.payment_micros) == ("admitted", market.CELL_MICROS)
    assert rules(zone).policy == get_policy_in_force(zone) == "lagrangian"
    sell(owner, zone, count=14, epochs=3)
    later = market.slot_at(zone, 101)
    assert reprice(zone, later)
    [bid] = sell(owner, zone, count=1, now=later)
    bid.refresh_from_db()
    assert bid.parts["compute"] > 0
    assert "RulesChanged" not in kinds(zone)
    row = Pricing.objects.get()
    assert (row.policy, row.policy_since_at, row.status) == ("lagrangian", NOW, "applied")
    assert verify_zone(zone).problems == []


# -- the operator's wish and the log -----------------------------------------------------


def test_settings_are_changed_by_an_entry_of_the_log(zone, owner):
    sell(owner, zone)
    zone = set_settings(zone, refusal_hints=False, growth=0.3)
    sell(owner, zone)
    assert (rules(zone).refusal_hints, rules(zone).settings) == (False, {"growth": 0.3})
    zone = set_settings(zone)
    sell(owner, zone)
    assert (rules(zone).refusal_hints, rules(zone).settings) == (True, {})
    assert kinds(zone).count("RulesChanged") == 2
    # A lane that read the zone before the change does not take it back.
    stale = Zone.objects.get(pk=zone.pk)
    stale.settings = {"growth": 0.3}
    refresh_zone(zone=stale, now=NOW)
    assert kinds(zone).count("RulesChanged") == 2
    assert verify_zone(zone).problems == []


def test_a_lane_that_dies_while_its_rules_change_has_changed_nothing(zone, owner, monkeypatch):
    sell(owner, zone)
    zone = set_settings(zone, growth=0.3)
    with monkeypatch.context() as patch:
        patch.setattr(enter, "write_lane", lambda lane: _raise(ConnectionError()))
        with pytest.raises(ConnectionError):
            refresh_zone(zone=zone, now=NOW)
    assert "RulesChanged" not in kinds(zone)
    refresh_zone(zone=zone, now=NOW)
    assert kinds(zone)[-1] == "RulesChanged"
    assert verify_zone(zone).problems == []


def _raise(error: Exception) -> None:
    raise error


def test_lanes_that_take_turns_all_see_a_setting_that_was_changed_and_changed_back(zone, owner):
    """Two engines for one zone, as in two processes."""
    kept: list[dict] = [{}, {}]

    def lane(which: int) -> None:
        books._lane_books.clear()
        books._lane_books.update(kept[which])
        refresh_zone(zone=Zone.objects.get(pk=zone.pk), now=NOW)
        kept[which] = dict(books._lane_books)

    set_settings(zone, growth=0.5)
    lane(0)
    lane(1)
    set_settings(zone, growth=0.7)
    lane(1)
    set_settings(zone, growth=0.5)
    lane(0)
    assert rules(zone).settings == {"growth": 0.5}
    lane(1)
    assert kinds(zone).count("RulesChanged") == 2
    assert verify_zone(zone).problems == []


def test_rules_that_the_engine_refuses_do_not_stop_the_lane(zone, owner, monkeypatch, caplog):
    sell(owner, zone)
    zone = set_settings(zone, growth=0.5)
    with monkeypatch.context() as patch:
        patch.setattr("scheduler.auction.engine.zone_state.make_policy", lambda *_: int("odd"))
        sell(owner, zone)
    assert "goes on under its old rules: invalid literal" in caplog.text
    assert rules(zone).settings == {}
    assert not Bid.objects.filter(status="pending").exists()
    assert verify_zone(zone).problems == []


def test_growth_moves_prices_between_solves_by_as_much_as_the_operator_says(owner):
    risen = {}
    for growth in (0.0, 2.0):
        zone = market.zone(horizon_slots=12, policy_settings={"growth": growth})
        market.node(zone)
        for _ in range(16):
            market.bid(owner, zone, price_micros=3_000_000, slots=9, epochs=3)
        decide_pending_bids(zone=zone, now=NOW)
        later = market.slot_at(zone, 101)
        reprice(zone, later)
        paid = []
        for _ in range(2):
            bid = market.bid(owner, zone, price_micros=9_000_000, slots=10, epochs=2, now=later)
            decide_pending_bids(zone=zone, now=later)
            bid.refresh_from_db()
            assert bid.status == "admitted"
            paid.append(bid.parts["compute"])
        risen[growth] = paid[1] / paid[0]
    # Each cell of the two is used by a quarter.
    assert risen[0.0] == 1.0
    assert risen[2.0] == pytest.approx(1 + 2.0 * 0.25)


def test_rows_with_settings_that_nobody_checked_do_not_stop_the_lane(zone, owner):
    sell(owner, zone)
    Zone.objects.filter(pk=zone.pk).update(settings={"growth": "fast"})
    zone.refresh_from_db()
    sell(owner, zone)
    assert Bid.objects.filter(status="pending").count() == 0
    assert rules(zone).settings == {}
    # Prices are solved by the rules that the log has.
    assert reprice(zone, NOW + timedelta(seconds=10))
    assert Pricing.objects.get().status == "applied"


def test_a_restart_from_a_snapshot_knows_the_policy_in_force(zone, owner, monkeypatch):
    monkeypatch.setattr(books, "SNAPSHOT_AT_LATEST", 3)
    sell(owner, zone)
    later = market.slot_at(zone, 101)
    reprice(zone, later)
    sell(owner, zone, now=later)
    taken = Snapshot.objects.latest("position")
    assert taken.position > LogEntry.objects.get(kind="PricesSolved").position - 3
    books.discard_lane_book(zone_id=zone.pk)
    sell(owner, zone, now=later)
    assert rules(zone).policy == "lagrangian"
    assert verify_zone(zone).problems == []


# -- history -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("began", "slot", "last_slot", "past_days", "expected"),
    [
        # Days of 10 slots. The first hours: today is all there is.
        (100, 103, 106, 2, (100, ())),
        # A day and a half: of yesterday only a part is known.
        (100, 115, 118, 2, (105, ())),
        (100, 120, 123, 2, (110, (100,))),
        (100, 190, 193, 2, (180, (170, 160))),
        (100, 190, 193, 0, (180, ())),
        # A horizon longer than a day: yesterday's sequel is not known yet.
        (100, 190, 201, 2, (180, (160, 150))),
    ],
)
def test_a_forecast_takes_days_that_the_log_knows_whole(
    began, slot, last_slot, past_days, expected
):
    span = choose_span(
        day_slots=10, began=began, slot=slot, last_slot=last_slot, past_days=past_days
    )
    assert (span.day_start, span.past_starts) == expected
    assert all(start + span.length <= slot for start in span.past_starts)


@pytest.fixture
def days(owner, monkeypatch):
    """A zone whose days are 4 slots, after 13 slots with as many bids as the slot's place in it."""
    monkeypatch.setattr(slots, "DAY_S", 40)
    zone = market.zone(horizon_slots=6)
    market.node(zone)
    for slot in range(100, 113):
        sell(owner, zone, now=market.slot_at(zone, slot), count=slot % 4, slots=4)
        refresh_zone(zone=zone, now=market.slot_at(zone, slot))
    return zone


def test_bids_are_told_apart_by_day(days):
    span = ForecastSpan(day_start=109, slot=113, last_slot=114, past_starts=(105, 101))
    position = MarketHead.objects.get().position
    seen = load_past_bids(zone=days, span=span, position=position)
    today, past_days = seen.split(span)
    # Bids of slot 108 start in slot 109.
    assert [task.arrival_slot for task in today] == [110, 111, 111, 112, 112, 112]
    expected = [1, 2, 2, 3, 3, 3, 5]
    assert [[task.arrival_slot for task in day] for day in past_days] == [expected] * 2
    assert {task.deadline_slot - task.arrival_slot for task in past_days[0]} == {3}
    admitted = set(Bid.objects.filter(status="admitted").values_list("pk", flat=True))
    bids = [*today, *past_days[0], *past_days[1]]
    assert seen.won <= admitted
    assert {task.id for task in bids} & admitted == {task.id for task in bids} & seen.won
    # Each with the price that it met, and not with its limit.
    prices = dict(Bid.objects.values_list("pk", "winning_price_micros"))
    for task in bids:
        price = prices[task.id]
        assert task.bid == (inf if price is None else price)
    # The log begins in slot 100, which is where the search for slot 101 begins.
    assert seen.first_position == 1


def test_of_a_long_log_an_even_sample_is_read(days, monkeypatch):
    monkeypatch.setattr(forecast_span, "MOST_ENTRIES", 12)
    span = ForecastSpan(day_start=109, slot=113, last_slot=114, past_starts=(105, 101))
    position = MarketHead.objects.get().position
    seen = load_past_bids(zone=days, span=span, position=position)
    each = -(-(position - seen.first_position + 1) // 12)
    assert each > 1
    read = LogEntry.objects.filter(
        kind="BidArrived", position__in=range(seen.first_position, position + 1, each)
    )
    slots = [
        json.loads(event)["task"]["arrival_slot"] for event in read.values_list("event", flat=True)
    ]
    assert sorted(task.arrival_slot for task in seen.split(span)[0]) == sorted(
        slot for slot in slots if slot >= 109
    )


# -- checks and what is published ----------------------------------------------------------


@pytest.fixture
def traded(zone, owner):
    """A zone whose rules changed, with bids decided before and after, at solved prices too."""
    sell(owner, zone, count=14, slots=9, epochs=3)
    zone = set_settings(zone, growth=0.3)
    later = market.slot_at(zone, 101)
    reprice(zone, later)
    sell(owner, zone, now=later, count=4, slots=11, epochs=2, worth=20_000_000)
    return zone


def test_a_payment_under_solved_prices_altered_by_a_cent_is_found(traded):
    call_command("auction_verify")
    solved = LogEntry.objects.get(kind="PricesSolved")
    bid = Bid.objects.filter(position__gt=solved.position, status="admitted").latest("position")
    assert bid.parts["compute"] > 0
    alter_row(
        "UPDATE auction_bid SET payment_micros = payment_micros - 10000 WHERE id = %s", bid.pk
    )
    with pytest.raises(CommandError):
        call_command("auction_verify")


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("RulesChanged", "event = replace(event, '\"growth\":0.3', '\"growth\":0.4')"),
        ("RulesChanged", "event = replace(event, 'hints\":true', 'hints\":false')"),
        ("PricesSolved", "event = replace(event, '\"seed\":', '\"seed\":1')"),
        ("PricesSolved", "event = replace(event, '\"dual_value\":', '\"dual_value\":1')"),
        ("PricesSolved", "event = replace(event, '\"bids_today\":', '\"bids_today\":1')"),
    ],
)
def test_a_change_of_rules_or_a_solve_that_was_altered_is_found(traded, kind, change):
    entry = LogEntry.objects.get(kind=kind)
    alter_row(f"UPDATE auction_logentry SET {change} WHERE id = %s", entry.pk)
    assert verify_zone(traded).problems[0].startswith(f"log position {entry.position}:")
    with pytest.raises(CommandError):
        call_command("auction_verify")


@pytest.mark.parametrize("change", ["policy = 'residual'", "applied_position = NULL"])
def test_what_the_operator_is_shown_is_compared_with_the_log(traded, change):
    alter_row(f"UPDATE auction_pricing SET {change}")
    [problem] = verify_zone(traded).problems
    assert problem.startswith("policy and position of the last solve are shown as ")


def test_a_published_transcript_is_replayed_over_the_change_and_tells_no_bid(traded):
    lines = list(write_transcript(traded, with_bids=False))
    found = verify_transcript(lines)
    assert (found.ok, found.head_hash) == (True, MarketHead.objects.get().head_hash)
    [solved] = [json.loads(line)["event"] for line in lines if '"PricesSolved"' in line]
    assert set(solved) == {
        *("type", "first_slot", "compute_price", "memory_price", "seed", "inputs", "usual_rates")
    }
    # Prices are made of nothing that is hidden: whoever has the log solves them again.
    assert (found.solved_again, found.taken_as_logged) == (1, 0)
    text = "\n".join(lines)
    for hidden in ('"bid":', '"salt": "'):
        assert hidden not in text
    cheaper = re.search(r'"payment": ([1-9][0-9]{4,})\.0', lines[-1])
    assert cheaper is not None
    forged = lines[-1].replace(cheaper[0], f'"payment": {int(cheaper[1]) - 10_000}.0')
    assert not verify_transcript([*lines[:-1], forged]).ok


def test_the_operators_transcript_shows_bids(traded):
    lines = list(write_transcript(traded, with_bids=True))
    assert verify_transcript(lines).ok
    assert any('"bid":' in line or '"bid": ' in line for line in lines)
