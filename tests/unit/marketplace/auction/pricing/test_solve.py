"""Prices solved apart from the lane, and what becomes of them when things go otherwise."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from math import inf, nextafter

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.core.management import CommandError, call_command
from django.db import connection

from marketplace.auction.book import engine_cache as books
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane import price_changes
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.errata import note_erratum
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.models import Bid, LogEntry, MarketHead, Pricing
from marketplace.auction.pricing import solve as solving
from marketplace.auction.pricing.solve import solve_zone_prices
from marketplace.auction.selectors import load_market
from marketplace.auction.settlement import settle_finished
from marketplace.auction.witnesses import days as witness_days
from marketplace.auction.witnesses.keys import load_signing_key, rotate_signing_key
from marketplace.common.durable.kinds import get_kinds
from marketplace.common.durable.run import run_due_work
from marketplace.common.errors import UserError
from marketplace.common.outbound import FetchedAnswer
from marketplace.fleet import slots
from marketplace.fleet.models import Node, Zone
from marketplace.fleet.services import set_policy_settings
from marketplace.jobs.models import Job
from marketplace.jobs.services import cancel_job
from scheduler.auction.audit.command import main
from scheduler.auction.audit.faults import KnownFault
from scheduler.auction.log import events
from scheduler.auction.log.codec import event_from_json
from scheduler.auction.log.rules import BEATS_PER_SLOT
from scheduler.public_log.days import DayPromise, choose_seed, commit_secret, write_promise
from scheduler.public_log.heads import is_signed
from scheduler.types import Beat
from tests import builders
from tests import market_builders as market
from tests.audits import alter_row
from tests.builders import NOW
from tests.unit.marketplace.auction.bidding.test_quotes import quote

pytestmark = pytest.mark.django_db


@pytest.fixture
def zone():
    """One node, of which the bids of ``crowd`` want far more than there is."""
    zone = market.zone(horizon_slots=12)
    market.node(zone)
    return zone


@pytest.fixture
def owner():
    return builders.organisation(usd="1000")


def at(slot: int, zone: Zone) -> datetime:
    return market.slot_at(zone, slot)


def crowd(owner, zone, *, now=NOW, count=16, price_micros=3_000_000) -> None:
    """Bids of one slot, each for three cells of the next nine."""
    for number in range(count):
        amount = price_micros + 10_000 * number
        market.bid(owner, zone, price_micros=amount, slots=9, epochs=3, now=now)
    decide_pending_bids(zone=zone, now=now)


def solve(zone, now) -> bool:
    return solve_zone_prices(zone_id=zone.pk, clock=lambda: now)


def beat(slot: int, part: int, zone: Zone) -> datetime:
    return at(slot, zone) + timedelta(seconds=part * zone.slot_s / BEATS_PER_SLOT)


def pricing(zone) -> Pricing:
    return Pricing.objects.get(zone=zone)


def solves(zone) -> list[events.PricesSolved]:
    rows = LogEntry.objects.filter(zone=zone, kind="PricesSolved").order_by("position")
    read = [event_from_json(json.loads(row.event)) for row in rows]
    return [event for event in read if isinstance(event, events.PricesSolved)]


def kinds(zone) -> list[str]:
    rows = LogEntry.objects.filter(zone=zone).order_by("position")
    return list(rows.values_list("kind", flat=True))


def dearest(zone, now) -> float:
    return max(max(row.compute_price) for row in load_market(zone, now=now).rows)


def test_prices_solved_on_one_beat_come_into_force_with_the_next(zone, owner):
    crowd(owner, zone)
    refresh_zone(zone=zone, now=at(101, zone))
    position = MarketHead.objects.get().beat_position
    assert kinds(zone)[position - 1] == "SlotAdvanced"
    # What comes after the beat has no part in them, and keeps what was decided.
    crowd(owner, zone, now=at(101, zone), count=3)
    decided = list(Bid.objects.order_by("arrival").values_list("status", "payment_micros"))
    later = beat(101, 1, zone)
    assert solve(zone, later)
    assert (pricing(zone).status, "PricesSolved" in kinds(zone)) == ("waiting", False)
    assert dearest(zone, at(101, zone)) == 0
    refresh_zone(zone=zone, now=at(101, zone) + timedelta(seconds=1))
    assert pricing(zone).status == "waiting"

    refresh_zone(zone=zone, now=later)
    assert kinds(zone)[-2:] == ["SlotAdvanced", "PricesSolved"]
    [solved] = solves(zone)
    assert solved.inputs["position"] == position
    assert (solved.inputs["beat"], solved.inputs["slot"]) == ([101, 1], 102)
    assert (solved.inputs["last_slot"], solved.inputs["bids_today"]) == (112, 16)
    assert solved.inputs["dual_value"] > 0
    row = pricing(zone)
    head = MarketHead.objects.get()
    assert (row.status, row.problem, row.waiting) == ("applied", "", None)
    assert (row.applied_position, row.applied_slot, row.applied_at) == (head.position, 101, later)
    assert (head.slot, head.beat_position) == (101, head.position)
    assert row.expected_bids == pytest.approx(11 * 16)
    assert row.gain is not None
    assert row.solve_s is not None
    assert dearest(zone, later) > 0
    assert list(Bid.objects.order_by("arrival").values_list("status", "payment_micros")) == decided
    found = verify_zone(zone)
    assert (found.problems, found.solved_again, found.taken_as_logged) == ([], 1, 0)


def test_each_beat_has_the_prices_of_the_one_before(zone, owner):
    crowd(owner, zone)
    for slot, part in ((100, 1), (101, 0), (101, 1), (102, 0)):
        moment = beat(slot, part, zone)
        refresh_zone(zone=zone, now=moment)
        assert [solve(zone, moment), solve(zone, moment)] == [True, False]
    beats = [event.inputs["beat"] for event in solves(zone)]
    assert beats == [[101, 0], [101, 1], [102, 0]]
    found = verify_zone(zone)
    assert (found.problems, found.solved_again) == ([], 3)


def test_a_slot_has_as_many_beats_as_the_zone_sets(owner):
    zone = market.zone(horizon_slots=12, policy_settings={"beats_per_slot": 1})
    market.node(zone)
    crowd(owner, zone)
    refresh_zone(zone=zone, now=beat(100, 1, zone))
    assert kinds(zone).count("SlotAdvanced") == 1
    refresh_zone(zone=zone, now=at(101, zone))
    assert solve(zone, at(101, zone))
    refresh_zone(zone=zone, now=at(102, zone))
    assert kinds(zone)[-2:] == ["SlotAdvanced", "PricesSolved"]
    assert verify_zone(zone).solved_again == 1


def test_prices_that_the_solve_does_not_come_to_are_found_by_verify(zone, owner):
    """A market that sees a bid may put prices just below it into its log."""
    crowd(owner, zone)
    refresh_zone(zone=zone, now=at(101, zone))
    assert solve(zone, at(101, zone))
    row = pricing(zone)
    assert row.waiting is not None
    waiting = json.loads(row.waiting)
    [prices] = waiting["compute_price"]["rows"]
    prices[prices.index(max(prices))] *= 1.001
    row.waiting = json.dumps(waiting)
    row.save()
    refresh_zone(zone=zone, now=beat(101, 1, zone))
    position = MarketHead.objects.get().position
    assert verify_zone(zone).problems == [
        f"log position {position}: solved again, the bids before lead to another compute_price"
    ]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"beat": [102, 0]}, "the prices are for another beat: [102, 0]"),
        ({"position": 3}, "the prices were not solved on the state of the beat before"),
    ],
)
def test_the_lane_refuses_prices_that_a_verifier_would_not_accept(zone, owner, change, problem):
    crowd(owner, zone)
    refresh_zone(zone=zone, now=at(101, zone))
    assert solve(zone, at(101, zone))
    row = pricing(zone)
    assert row.waiting is not None
    waiting = json.loads(row.waiting)
    waiting["inputs"] |= change
    row.waiting = json.dumps(waiting)
    row.save()
    refresh_zone(zone=zone, now=beat(101, 1, zone))
    assert "PricesSolved" not in kinds(zone)
    assert (pricing(zone).status, pricing(zone).problem) == ("discarded", problem)
    assert verify_zone(zone).problems == []


def test_an_erratum_names_a_fault_and_verifiers_say_so_and_go_on(
    zone, owner, monkeypatch, tmp_path, capsys
):
    crowd(owner, zone)
    refresh_zone(zone=zone, now=at(101, zone))
    assert solve(zone, at(101, zone))
    row = pricing(zone)
    waiting = json.loads(row.waiting or "")
    waiting["inputs"]["beat"] = [105, 0]
    row.waiting = json.dumps(waiting)
    row.save()
    # The lane as it was: it does not ask the verifier.
    monkeypatch.setattr(price_changes, "find_timing_problem", lambda *_, **__: None)
    refresh_zone(zone=zone, now=beat(101, 1, zone))
    monkeypatch.undo()
    crowd(owner, zone, now=at(101, zone))
    position = LogEntry.objects.get(kind="PricesSolved").position
    fault = "the prices are for another beat: [105, 0]"
    assert verify_zone(zone).problems == [f"log position {position}: {fault}"]
    assert read_exit(zone, tmp_path, capsys) == (1, fault, [])

    before = LogEntry.objects.count()
    with pytest.raises(CommandError, match="finds no fault in entry 1 of zone"):
        call_command("auction_erratum", zone.name, "1", "Nothing.")
    assert LogEntry.objects.count() == before

    with pytest.raises(UserError, match="without control characters"):
        note_erratum(zone=zone, position=position, problem="\x1b[2J", now=at(101, zone))
    assert LogEntry.objects.count() == before
    said = "The worker was slow; prices were those of a slot too far."
    named = note_erratum(zone=zone, position=position, problem=said, now=at(101, zone))
    off_by = json.loads(LogEntry.objects.get(position=named).event)["off_by"]
    assert off_by.keys() <= {"compute_price", "memory_price", "reserve_price", "usual_rates"}
    found = verify_zone(zone)
    assert (found.problems, found.known_faults) == (
        [],
        (KnownFault(position, said, named, fault, off_by, fault, measured=True),),
    )
    with pytest.raises(CommandError, match="All agrees but for") as ended:
        call_command("auction_verify", zone=zone.name)
    assert ended.value.returncode == 3
    state = "verified but for 1 entry that the log names as wrong, "
    out = capsys.readouterr().out
    assert out.startswith(f"{zone.name}: {state}")
    assert f"Rule: {fault}. Prices are off by at most: " in out
    # What comes after it is judged as ever.
    crowd(owner, zone, now=at(101, zone))
    known = {"position": position, "problem": said, "named_at": named, "measured": True}
    known |= {"rule": fault, "off_by": off_by, "found": fault}
    assert read_exit(zone, tmp_path, capsys) == (3, None, [known])
    alter_row("UPDATE auction_logentry SET hash = repeat('0', 64) WHERE position = %s", named + 1)
    assert read_exit(zone, tmp_path, capsys)[0] == 1


def read_exit(zone, folder, capsys):
    """What a stranger's verifier ends with on the published log, and what it names."""
    path = folder / "log.jsonl"
    call_command("auction_transcript", "--zone", zone.name, "--out", str(path))
    capsys.readouterr()
    status = main([str(path)])
    said = json.loads(capsys.readouterr().out)
    return status, said["problem"], said["known_faults"]


def test_prices_that_come_late_are_passed_over_and_those_in_force_stand(zone, owner):
    crowd(owner, zone)
    market.reprice(zone, at(101, zone))
    in_force = dearest(zone, at(101, zone))
    assert solve(zone, beat(101, 1, zone))
    waiting = pricing(zone).waiting
    # The worker has them only once their beat has come.
    Pricing.objects.update(waiting=None)
    refresh_zone(zone=zone, now=at(102, zone))
    Pricing.objects.update(waiting=waiting)
    refresh_zone(zone=zone, now=beat(102, 1, zone))
    row = pricing(zone)
    assert (row.status, row.waiting, kinds(zone).count("PricesSolved")) == ("discarded", None, 1)
    assert dearest(zone, at(102, zone)) == in_force > 0
    assert solve(zone, beat(102, 1, zone))
    refresh_zone(zone=zone, now=at(103, zone))
    assert (pricing(zone).status, kinds(zone).count("PricesSolved")) == ("applied", 2)
    found = verify_zone(zone)
    assert (found.problems, found.beats_missed) == ([], 2)


def test_prices_come_into_force_with_their_beat_where_the_lane_comes_after_several(zone, owner):
    """Where slots are shorter than its rounds, a zone at rest would have none ever again."""
    crowd(owner, zone)
    market.reprice(zone, at(101, zone))
    assert solve(zone, beat(101, 1, zone))
    refresh_zone(zone=zone, now=at(104, zone))
    assert kinds(zone)[-3:] == ["SlotAdvanced", "PricesSolved", "SlotAdvanced"]
    assert [event.inputs["beat"] for event in solves(zone)] == [[101, 1], [102, 0]]
    assert pricing(zone).status == "applied"
    head = MarketHead.objects.get()
    assert (head.slot, head.beat_position) == (104, head.position)
    found = verify_zone(zone)
    # The two beats of slot 102 and 103 that were passed over, and those that came without prices.
    assert (found.problems, found.solved_again) == ([], 2)


@pytest.mark.parametrize("waiting", ["{}", "nonsense", '{"type": "SlotAdvanced", "slot": 900}'])
def test_what_the_lane_cannot_read_is_discarded_and_moves_nothing(zone, owner, waiting):
    crowd(owner, zone)
    Pricing.objects.update(waiting=waiting)
    refresh_zone(zone=zone, now=beat(100, 1, zone))
    assert (pricing(zone).status, pricing(zone).waiting) == ("discarded", None)
    assert kinds(zone)[-1] == "SlotAdvanced"


def test_a_solve_that_fails_leaves_the_prices_and_is_tried_at_the_next_beat(
    zone, owner, monkeypatch
):
    crowd(owner, zone)
    later = at(101, zone)
    market.reprice(zone, later)
    in_force = dearest(zone, later)
    with monkeypatch.context() as patch:
        patch.setattr(solving, "solve_for_beat", lambda *_, **__: 1 / 0)
        assert not solve(zone, later)
    row = pricing(zone)
    assert (row.status, row.problem) == ("failed", "ZeroDivisionError: division by zero")
    assert not solve(zone, later)
    market.bid(owner, zone, price_micros=3_000_000, slots=9, epochs=1, now=later)
    assert decide_pending_bids(zone=zone, now=later).decided == 1
    refresh_zone(zone=zone, now=at(102, zone))
    assert dearest(zone, at(102, zone)) >= in_force > 0
    assert solve(zone, at(102, zone))
    refresh_zone(zone=zone, now=beat(102, 1, zone))
    assert pricing(zone).status == "applied"
    assert verify_zone(zone).problems == []


def test_a_solver_that_died_halfway_is_followed_by_the_next(zone, owner, monkeypatch):
    crowd(owner, zone)
    refresh_zone(zone=zone, now=at(101, zone))

    class Killed(BaseException):
        pass

    def killed(*_, **__):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(solving, "solve_for_beat", killed)
        with pytest.raises(Killed):
            solve(zone, at(101, zone))
    assert pricing(zone).status == "solving"
    assert solve(zone, at(101, zone))
    refresh_zone(zone=zone, now=beat(101, 1, zone))
    assert pricing(zone).status == "applied"


def test_a_lane_that_died_while_taking_prices_takes_them_the_next_time(zone, owner, monkeypatch):
    crowd(owner, zone)
    refresh_zone(zone=zone, now=at(101, zone))
    solve(zone, at(101, zone))

    def broken(lane):
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(price_changes, "_follow_day", broken)
        with pytest.raises(RuntimeError, match="killed"):
            refresh_zone(zone=zone, now=beat(101, 1, zone))
    assert "PricesSolved" not in kinds(zone)
    assert pricing(zone).status == "waiting"
    refresh_zone(zone=zone, now=beat(101, 1, zone))
    assert kinds(zone).count("PricesSolved") == 1
    assert verify_zone(zone).problems == []


def test_a_solve_is_asked_for_at_each_beat_and_run_once(zone, monkeypatch):
    told = []
    monkeypatch.setattr(price_changes, "enqueue", lambda name, **terms: told.append((name, terms)))
    asked = [("auction.prices_solve", {"expires_s": 60.0, "zone_id": zone.pk})]
    for slot in (100, 101):
        refresh_zone(zone=zone, now=at(slot, zone))
        refresh_zone(zone=zone, now=at(slot, zone))
    assert told == 2 * asked
    runs = []
    monkeypatch.setattr(solving, "_solve", runs.append)
    for _ in range(2):
        assert not solve(zone, at(101, zone))
        assert (pricing(zone).status, len(runs)) == ("idle", 1)
    # One whose solver died halfway is run again as its message comes again.
    Pricing.objects.update(status="solving")
    assert not solve(zone, at(101, zone))
    assert (pricing(zone).status, len(runs)) == ("idle", 2)


def test_a_zone_without_bids_is_not_solved_for_and_has_one_beat_a_slot(zone, owner):
    assert not solve(zone, NOW)
    assert not LogEntry.objects.exists()
    for slot in (101, 102, 103):
        for part in range(BEATS_PER_SLOT):
            refresh_zone(zone=zone, now=beat(slot, part, zone))
            assert not solve(zone, beat(slot, part, zone))
    assert kinds(zone).count("SlotAdvanced") == 3
    assert "PricesSolved" not in kinds(zone)
    assert dearest(zone, at(103, zone)) == 0.0
    found = verify_zone(zone)
    assert (found.problems, found.beats_missed) == ([], 0)
    # With its first bid it has its beats again.
    crowd(owner, zone, now=beat(103, 1, zone), count=1)
    assert market.reprice(zone, at(104, zone))
    assert kinds(zone)[-2:] == ["SlotAdvanced", "PricesSolved"]
    assert verify_zone(zone).problems == []


def test_bids_that_end_a_zones_quiet_come_after_the_beat_that_was_due(zone, owner):
    """An honest log has no entries past a beat."""
    refresh_zone(zone=zone, now=at(101, zone))
    assert not solve(zone, at(101, zone))
    late = beat(101, 1, zone) + timedelta(seconds=90)
    crowd(owner, zone, now=late, count=6)
    assert kinds(zone)[-9:] == ["SlotAdvanced"] * 2 + ["BidsReceived"] + ["BidArrived"] * 6
    found = verify_zone(zone)
    assert (found.problems, found.beats_late) == ([], 0)


def test_one_bid_is_enough_to_solve(zone, owner):
    crowd(owner, zone, count=1)
    assert market.reprice(zone, at(101, zone))
    assert solves(zone)[0].inputs["bids_today"] == 1
    assert pricing(zone).expected_bids == pytest.approx(11.0)


def test_a_zone_with_a_broken_log_is_not_solved_for_and_says_so(zone, owner):
    crowd(owner, zone)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute("UPDATE auction_logentry SET hash = %s WHERE position = 1", ["0" * 64])
        cursor.execute("SET LOCAL session_replication_role = origin")
    books._beat_books.clear()
    assert not solve(zone, NOW)
    assert pricing(zone).status == "failed"
    assert "auction_verify" in pricing(zone).problem


def test_bids_that_no_node_could_serve_in_time_are_no_part_of_a_solve(zone, owner):
    crowd(owner, zone)
    stranger = builders.organisation(usd="1000000")
    for _ in range(30):
        # More than three cells are left until the deadline.
        market.bid(stranger, zone, price_micros=90_000_000, slots=9, epochs=40, now=NOW)
    decide_pending_bids(zone=zone, now=NOW)
    assert market.reprice(zone, at(101, zone))
    assert solves(zone)[-1].inputs["bids_today"] == 16


def test_the_seed_of_a_solve_follows_from_the_day_and_the_beat_and_from_no_bid(zone, owner):
    refresh_zone(zone=zone, now=NOW)
    beats = [Beat(102, 0), Beat(102, 1), Beat(103, 0)]

    def seeds() -> list[int]:
        with books.read_book(zone=zone, now=NOW) as book:
            value = book.engine.day.value
            return [choose_seed(value, slot=beat.slot, part=beat.part) for beat in beats]

    before = seeds()
    crowd(owner, zone)
    set_policy_settings(zone=zone, settings={"growth": 0.1}, now=NOW)
    zone.refresh_from_db()
    refresh_zone(zone=zone, now=NOW)
    assert kinds(zone)[-1] == "RulesChanged"
    assert seeds() == before
    assert len(set(before)) == 3


@pytest.fixture
def days(monkeypatch):
    """A zone whose days are 4 slots, the first of them slot 100."""
    monkeypatch.setattr(slots, "DAY_S", 4 * 10)
    zone = market.zone(horizon_slots=6)
    market.node(zone)
    return zone


def test_a_day_is_promised_a_day_before_and_opened_when_it_comes(days):
    for slot in range(100, 106):
        refresh_zone(zone=days, now=at(slot, days))
    rows = LogEntry.objects.filter(kind__startswith="Day").order_by("position")
    promised, opened = (json.loads(row.event) for row in rows[:2])
    assert [(row.kind, json.loads(row.event)["day"]) for row in rows] == [
        ("DayPromised", 26),
        ("DayOpened", 26),
        ("DayPromised", 27),
    ]
    assert promised["commitment"] == commit_secret(opened["secret"])
    with books.read_book(zone=days, now=NOW) as book:
        assert book.engine.day.day == 26
    found = verify_zone(days)
    # Days 25 and 26.
    assert (found.problems, found.unwitnessed) == ([], 2)


def test_a_witness_is_asked_to_sign_each_promise(days, settings, monkeypatch):
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    settings.AUCTION_DAY_WITNESS = "https://witness.example/days"
    settings.AUCTION_DAY_WITNESS_KEY = key.public_key().public_bytes_raw().hex()
    posted, signs = [], [Ed25519PrivateKey.generate(), key]

    def post(url, *, body, headers, **_):
        posted.append((url, body))
        # A witness signs for nobody but the market: the request is its own.
        own = load_signing_key(now=NOW).public_key
        assert is_signed(body, key=own, signature=headers[witness_days.SIGNATURE])
        signature = signs[len(posted) - 1].sign(body).hex()
        return FetchedAnswer(json.dumps({"signature": signature}).encode(), {})

    monkeypatch.setattr(witness_days, "ask_stranger", post)
    for slot in (100, 102):
        refresh_zone(zone=days, now=at(slot, days))
    moment = at(102, days)
    # One key signs that the promise does not name.
    run_due_work(get_kinds()[witness_days.ASK], clock=lambda: moment)
    assert pricing(days).day_signature == ""
    later = moment + timedelta(seconds=15)
    run_due_work(get_kinds()[witness_days.ASK], clock=lambda: later)
    entry = LogEntry.objects.get(kind="DayPromised")
    promise = event_from_json(json.loads(entry.event))
    assert isinstance(promise, events.DayPromised)
    assert (promise.day, promise.market_key) == (26, load_signing_key(now=NOW).public_key)
    text = write_promise(DayPromise(**asdict(promise), entry_hash=entry.hash))
    assert posted == 2 * [("https://witness.example/days", text)]
    refresh_zone(zone=days, now=at(104, days))
    opened = json.loads(LogEntry.objects.get(kind="DayOpened").event)
    assert opened["witness_signature"] == key.sign(posted[0][1]).hex()
    found = verify_zone(days)
    # Day 25, with which the log began.
    assert (found.problems, found.unwitnessed) == ([], 1)


def test_rules_hold_from_the_day_on_whose_secret_was_not_promised(days):
    """Else the operator would choose among settings by the prices that each leads to."""
    for slot in range(100, 103):
        refresh_zone(zone=days, now=at(slot, days))
    set_policy_settings(zone=days, settings={"futures": 3}, now=NOW)
    days.refresh_from_db()
    held = []
    for slot in range(103, 111):
        refresh_zone(zone=days, now=at(slot, days))
        with books.read_book(zone=days, now=NOW) as book:
            held.append(book.engine.rules.settings.get("futures"))
    # Day 26 was promised before, and day 27 was not; prices of its value come after slot 108.
    assert held == [None] * 6 + [3, 3]
    assert kinds(days).count("RulesChanged") == 1
    assert verify_zone(days).problems == []


def test_rules_hold_in_a_market_that_runs_in_the_morning_only(days):
    held = []
    for slot in (100, 104, 108, 112, 113):
        if slot == 104:
            set_policy_settings(zone=days, settings={"futures": 3}, now=NOW)
            days.refresh_from_db()
        refresh_zone(zone=days, now=at(slot, days))
        with books.read_book(zone=days, now=NOW) as book:
            held.append(book.engine.rules.settings.get("futures"))
    assert held == [None, None, None, None, 3]
    assert kinds(days).count("DayOpened") == 2
    assert verify_zone(days).problems == []


def test_rules_of_a_log_that_begins_late_in_a_day_change_at_once(days):
    refresh_zone(zone=days, now=at(103, days))
    set_policy_settings(zone=days, settings={"futures": 3}, now=NOW)
    days.refresh_from_db()
    refresh_zone(zone=days, now=at(103, days))
    with books.read_book(zone=days, now=NOW) as book:
        assert book.engine.rules.settings.get("futures") == 3
    for slot in (104, 105, 106):
        refresh_zone(zone=days, now=at(slot, days))
    # The log is half a day old in slot 105.
    assert kinds(days).count("DayPromised") == 1
    assert kinds(days)[-3:] == ["SlotAdvanced", "DayPromised", "SlotAdvanced"]
    assert verify_zone(days).problems == []


def test_a_day_whose_secret_went_with_the_key_keeps_the_value_before(days):
    for slot in (100, 102):
        refresh_zone(zone=days, now=at(slot, days))
    rotate_signing_key(now=NOW)
    for slot in (104, 106, 108):
        refresh_zone(zone=days, now=at(slot, days))
    rows = LogEntry.objects.filter(kind__startswith="Day").order_by("position")
    assert [(row.kind, json.loads(row.event)["day"]) for row in rows] == [
        ("DayPromised", 26),
        ("DayPromised", 27),
        ("DayOpened", 27),
        ("DayPromised", 28),
    ]
    assert verify_zone(days).problems == []


@pytest.mark.parametrize(("cancels", "counted"), [(False, 9), (True, 6)])
def test_jobs_that_their_owner_cancels_count_in_prices_like_refused_bids(zone, cancels, counted):
    """To win, and to have the price back, must not weigh more than to lose."""
    for _ in range(3):
        crowd(builders.organisation(usd="100"), zone, count=1)
    flood = builders.organisation(usd="100")
    crowd(flood, zone, count=6)
    won = Bid.objects.filter(organisation=flood, status="admitted")
    assert won.count() == 6
    for job in Job.objects.filter(bid_id__in=won.values("pk")) if cancels else ():
        cancel_job(job=job, cancelled_by=None, now=NOW)
    assert settle_finished(now=NOW) == (6 if cancels else 0)
    later = at(101, zone)
    assert market.reprice(zone, later)
    [solved] = solves(zone)
    assert solved.inputs["bids_today"] == counted
    found = verify_zone(zone)
    assert (found.problems, found.solved_again) == ([], 1)


def test_a_bid_pays_the_quote_at_solved_prices(zone, owner):
    crowd(owner, zone)
    later = at(101, zone)
    market.reprice(zone, later)
    terms = {"data": market.dataset(owner, zone), "epochs": 2, "now": later}
    posted = quote(owner, zone, slots=12, **terms)
    assert posted.parts is not None
    assert posted.price_micros is not None
    assert posted.parts.compute > 0
    terms["deadline_at"] = posted.deadline_at
    bid = market.bid(owner, zone, price_micros=posted.price_micros, **terms)
    decide_pending_bids(zone=zone, now=later)
    bid.refresh_from_db()
    assert (bid.status, bid.refusal) == ("refused", "price")
    bid = market.bid(owner, zone, price_micros=posted.price_micros + 1, **terms)
    decide_pending_bids(zone=zone, now=later)
    bid.refresh_from_db()
    assert (bid.status, bid.payment_micros) == ("admitted", posted.price_micros)


def test_a_flood_counts_with_three_times_the_work_that_it_bought(zone, owner):
    for number in range(4):
        other = builders.organisation(usd="100")
        market.bid(other, zone, price_micros=2_000_000 + number, slots=9, now=NOW)
    crowd(owner, zone, count=60)
    bids = Bid.objects.filter(organisation=owner)
    assert bids.filter(status="admitted").count() == 8
    assert market.reprice(zone, at(101, zone))
    # And the three that always do: four jobs of one epoch let one of its jobs of three count.
    assert solves(zone)[0].inputs["bids_today"] == 4 + 8 + 3 * 8 + 3
    assert verify_zone(zone).problems == []


@pytest.mark.parametrize("price", [float("nan"), float("inf"), -1.0])
def test_what_is_no_price_never_reaches_the_lane(zone, owner, monkeypatch, price):
    crowd(owner, zone)
    node = Node.objects.get()

    def odd(*args, **terms):
        solved = solve_for_beat(*args, **terms)
        row = solved.compute_price[node.pk]
        return replace(solved, compute_price={node.pk: (price, *row[1:])})

    solve_for_beat = solving.solve_for_beat
    monkeypatch.setattr(solving, "solve_for_beat", odd)
    refresh_zone(zone=zone, now=at(101, zone))
    assert not solve(zone, NOW)
    assert pricing(zone).status == "failed"
    assert "negative or not a number" in pricing(zone).problem
    assert pricing(zone).waiting is None


def test_an_altered_solved_price_is_found(zone, owner):
    crowd(owner, zone)
    later = at(101, zone)
    market.reprice(zone, later)
    crowd(owner, zone, now=later, count=3)
    entry = LogEntry.objects.get(kind="PricesSolved")
    event = json.loads(entry.event)
    row = event["compute_price"]["rows"][0]
    # Less than another machine's arithmetic is off by.
    row[3] = nextafter(row[3], inf)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(
            "UPDATE auction_logentry SET event = %s WHERE id = %s", [json.dumps(event), entry.pk]
        )
        cursor.execute("SET LOCAL session_replication_role = origin")
    [problem] = verify_zone(zone).problems
    assert problem == f"log position {entry.position}: the hash is not that of the entry"
