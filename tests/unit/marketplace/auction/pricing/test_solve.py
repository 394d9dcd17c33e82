"""Prices solved apart from the lane, and what becomes of them when things go otherwise."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from math import inf, nextafter

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from marketplace.auction.book import engine_cache as books
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane import price_changes
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.errata import note_erratum
from marketplace.auction.lane.price_changes import take_solved_prices
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.models import Bid, LogEntry, MarketHead, Pricing
from marketplace.auction.pricing import solve as solving
from marketplace.auction.pricing.solve import (
    apply_prices,
    choose_seed,
    find_due_solve,
    request_due_solves,
    solve_zone_prices,
)
from marketplace.auction.selectors import load_market
from marketplace.auction.settlement import settle_finished
from marketplace.common.errors import UserError
from marketplace.fleet.models import Node, Zone
from marketplace.fleet.services import set_policy_settings
from marketplace.jobs.models import Job
from marketplace.jobs.services import cancel_job
from scheduler.auction.audit.command import main
from scheduler.auction.audit.faults import KnownFault
from scheduler.auction.log import events
from scheduler.auction.log.codec import event_from_json
from scheduler.auction.prices import bursts
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


def crowd(owner, zone, *, now=NOW, count=16, price_micros=3_000_000, epochs=3) -> None:
    """Bids of one slot, each for so many cells of the next nine."""
    for number in range(count):
        amount = price_micros + 10_000 * number
        market.bid(owner, zone, price_micros=amount, slots=9, epochs=epochs, now=now)
    decide_pending_bids(zone=zone, now=now)


def solve(zone, now) -> bool:
    return solve_zone_prices(zone_id=zone.pk, clock=lambda: now)


def apply(zone, now) -> bool:
    return apply_prices(zone_id=zone.pk, clock=lambda: now)


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


def test_solved_prices_enter_the_log_with_what_they_were_made_from(zone, owner):
    crowd(owner, zone)
    later = at(101, zone)
    refresh_zone(zone=zone, now=later)
    position = MarketHead.objects.get().position

    assert solve(zone, later)
    assert kinds(zone)[-1] == "SlotAdvanced"
    assert pricing(zone).status == "waiting"
    assert apply(zone, later)

    assert kinds(zone)[-1] == "PricesSolved"
    [solved] = solves(zone)
    with books.read_book(zone=zone, now=later) as book:
        assert solved.seed == choose_seed(book.engine, slot=102)
    assert solved.inputs["position"] == position
    assert (solved.inputs["slot"], solved.inputs["last_slot"]) == (102, 112)
    assert (solved.inputs["bids_today"], solved.inputs["past_days"]) == (16, 0)
    assert (solved.inputs["first_position"], solved.inputs["last_position"]) == (1, position)
    assert solved.private["dual_value"] > 0
    row = pricing(zone)
    assert (row.status, row.problem, row.waiting) == ("applied", "", None)
    assert (row.applied_position, row.applied_slot, row.applied_at) == (position + 1, 101, later)
    assert row.expected_bids == pytest.approx(11 * 16)
    assert row.gain is not None
    assert row.solve_s is not None
    assert dearest(zone, later) > 0
    found = verify_zone(zone)
    assert (found.problems, found.solved_again, found.taken_as_logged) == ([], 1, 0)


def test_prices_that_the_solve_does_not_come_to_are_found_by_verify(zone, owner):
    """A market that sees a bid may put prices just below it into its log."""
    crowd(owner, zone)
    later = at(101, zone)
    assert solve(zone, later)
    row = pricing(zone)
    assert row.waiting is not None
    waiting = json.loads(row.waiting)
    [prices] = waiting["compute_price"]["rows"]
    prices[prices.index(max(prices))] *= 1.001
    row.waiting = json.dumps(waiting)
    row.save()
    assert apply(zone, later)
    position = MarketHead.objects.get().position
    assert verify_zone(zone).problems == [
        f"log position {position}: solved again, the bids before lead to another compute_price"
    ]


def test_a_lane_that_goes_on_while_a_solve_begins_leaves_a_log_that_verifies(
    zone, owner, monkeypatch
):
    """Slot and state of a solve are one read: a slow worker must not make the market a cheat."""
    crowd(owner, zone)
    read_book = books.read_book

    def advance_first(**terms):
        refresh_zone(zone=zone, now=at(103, zone))
        return read_book(**terms)

    monkeypatch.setattr(books, "read_book", advance_first)
    assert solve(zone, at(101, zone))
    monkeypatch.undo()
    assert apply(zone, at(103, zone))
    [solved] = solves(zone)
    assert solved.inputs["slot"] == 104
    found = verify_zone(zone)
    assert (found.problems, found.solved_again) == ([], 1)


@pytest.mark.parametrize(
    ("slot", "problem"),
    [
        (105, "prices were solved for slot 105, which was not the next"),
        (100, "prices for slot 100 came 2 slots late"),
    ],
)
def test_the_lane_refuses_prices_that_a_verifier_would_not_accept(zone, owner, slot, problem):
    crowd(owner, zone)
    assert solve(zone, at(101, zone))
    row = pricing(zone)
    assert row.waiting is not None
    waiting = json.loads(row.waiting)
    waiting["inputs"]["slot"] = slot
    row.waiting = json.dumps(waiting)
    row.save()
    before = kinds(zone)
    assert not apply(zone, at(101, zone))
    assert "PricesSolved" not in kinds(zone)[len(before) :]
    assert (pricing(zone).status, pricing(zone).problem) == ("discarded", problem)
    assert verify_zone(zone).problems == []


def test_an_erratum_names_a_fault_and_verifiers_say_so_and_go_on(
    zone, owner, monkeypatch, tmp_path, capsys
):
    crowd(owner, zone)
    assert solve(zone, at(101, zone))
    row = pricing(zone)
    waiting = json.loads(row.waiting or "")
    waiting["inputs"]["slot"] = 105
    row.waiting = json.dumps(waiting)
    row.save()
    # The lane as it was: it does not ask the verifier.
    monkeypatch.setattr(price_changes, "find_timing_problem", lambda *_, **__: None)
    assert apply(zone, at(101, zone))
    monkeypatch.undo()
    crowd(owner, zone, now=at(101, zone))
    position = LogEntry.objects.get(kind="PricesSolved").position
    fault = "prices were solved for slot 105, which was not the next"
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
    known = {"position": position, "problem": said, "named_at": named, "measured": False}
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
    assert solve(zone, later)
    assert apply(zone, later)
    [solved] = solves(zone)
    assert solved.inputs["bids_today"] == counted
    found = verify_zone(zone)
    assert (found.problems, found.solved_again) == ([], 1)


def test_a_bid_pays_the_quote_at_solved_prices(zone, owner):
    crowd(owner, zone)
    later = at(101, zone)
    solve(zone, later)
    apply(zone, later)
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


def test_a_solve_and_its_application_run_twice_are_done_once(zone, owner):
    crowd(owner, zone)
    later = at(101, zone)
    assert [solve(zone, later), solve(zone, later)] == [True, False]
    assert [apply(zone, later), apply(zone, later)] == [True, False]
    assert kinds(zone).count("PricesSolved") == 1
    assert not solve(zone, later)


def test_bids_decided_while_prices_were_solved_keep_their_decisions(zone, owner):
    crowd(owner, zone)
    later = at(101, zone)
    solve(zone, later)
    crowd(owner, zone, now=later, count=3)

    def read_decisions() -> list[tuple[str, int | None, list[list[int]]]]:
        bids = Bid.objects.order_by("arrival")
        return [(bid.status, bid.payment_micros, bid.cells) for bid in bids]

    before = read_decisions()
    assert apply(zone, later)
    assert read_decisions() == before
    assert solves(zone)[0].inputs["position"] < MarketHead.objects.get().position - 3
    assert verify_zone(zone).problems == []


@pytest.mark.parametrize(("slots_late", "status"), [(1, "applied"), (2, "discarded")])
def test_prices_may_be_one_slot_late_and_no_more(zone, owner, slots_late, status):
    crowd(owner, zone)
    solve(zone, at(101, zone))
    late = at(101 + slots_late, zone)
    assert apply(zone, late) is (status == "applied")
    row = pricing(zone)
    assert row.status == status
    assert kinds(zone).count("PricesSolved") == (status == "applied")
    if status == "discarded":
        assert row.problem == "prices for slot 102 came 2 slots late"
        # Whatever waited is gone, and the next solve is due.
        assert row.waiting is None
        assert solve(zone, late + timedelta(seconds=5))
        assert apply(zone, late + timedelta(seconds=5))


def test_prices_solved_earlier_never_replace_later_ones(zone, owner):
    crowd(owner, zone)
    later = at(101, zone)
    solve(zone, later)
    old = pricing(zone).waiting
    apply(zone, later)
    crowd(owner, zone, now=later, count=2)
    Pricing.objects.update(waiting=old)
    prices = dearest(zone, later)
    assert not apply(zone, later)
    assert "later" in pricing(zone).problem
    assert dearest(zone, later) == prices
    assert kinds(zone).count("PricesSolved") == 1


def test_prices_that_another_version_of_the_program_solved_are_discarded(zone, owner, monkeypatch):
    crowd(owner, zone)
    later = at(101, zone)
    solve(zone, later)
    monkeypatch.setattr(price_changes, "SOLVER", price_changes.SOLVER + 1)
    assert not apply(zone, later)
    row = pricing(zone)
    assert (row.status, row.waiting) == ("discarded", None)
    assert row.problem == "Another version of the program solved them."
    assert "PricesSolved" not in kinds(zone)


@pytest.mark.parametrize("waiting", ["{}", "nonsense", '{"type": "SlotAdvanced", "slot": 900}'])
def test_what_the_lane_cannot_read_is_discarded_and_moves_nothing(zone, owner, waiting):
    crowd(owner, zone)
    Pricing.objects.update(waiting=waiting)
    before = MarketHead.objects.get().position
    assert not apply(zone, NOW)
    assert (pricing(zone).status, pricing(zone).waiting) == ("discarded", None)
    assert MarketHead.objects.get().position == before


def test_a_solve_that_fails_leaves_the_prices_and_the_lane_as_they_are(zone, owner, monkeypatch):
    crowd(owner, zone)
    later = at(101, zone)
    solve(zone, later)
    apply(zone, later)
    in_force = dearest(zone, later)
    due_at = at(102, zone)
    waits = []
    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(solving, "solve_prices", lambda *_, **__: 1 / 0)
            assert not solve(zone, due_at)
        row = pricing(zone)
        assert row.status == "failed"
        assert row.problem == "ZeroDivisionError: division by zero"
        assert row.next_at is not None
        waits.append((row.next_at - due_at).total_seconds())
        assert find_due_solve(zone=zone, now=row.next_at - timedelta(seconds=1)) is None
        due_at = row.next_at
    assert waits == [15, 30, 60]
    market.bid(owner, zone, price_micros=3_000_000, slots=9, epochs=1, now=later)
    assert decide_pending_bids(zone=zone, now=later).decided == 1
    assert dearest(zone, later) >= in_force > 0
    assert pricing(zone).applied_slot == 101
    assert solve(zone, due_at)
    assert apply(zone, due_at)
    assert (pricing(zone).status, pricing(zone).failures) == ("applied", 0)
    assert verify_zone(zone).problems == []


@pytest.mark.parametrize("price", [float("nan"), float("inf"), -1.0])
def test_what_is_no_price_never_reaches_the_lane(zone, owner, monkeypatch, price):
    crowd(owner, zone)
    node = Node.objects.get()

    def odd(*args, **terms):
        solved = solve_prices(*args, **terms)
        row = solved.compute_price[node.pk]
        return replace(solved, compute_price={node.pk: (price, *row[1:])})

    solve_prices = solving.solve_prices
    monkeypatch.setattr(solving, "solve_prices", odd)
    assert not solve(zone, at(101, zone))
    assert pricing(zone).status == "failed"
    assert "negative or not a number" in pricing(zone).problem
    assert pricing(zone).waiting is None


def test_a_solver_that_died_halfway_is_followed_by_the_next(zone, owner, monkeypatch):
    crowd(owner, zone)
    later = at(101, zone)

    class Killed(BaseException):
        pass

    def killed(*_, **__):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(solving, "solve_prices", killed)
        with pytest.raises(Killed):
            solve(zone, later)
    assert pricing(zone).status == "solving"
    assert solve(zone, later)
    assert apply(zone, later)


def test_a_lane_that_died_while_taking_prices_takes_them_the_next_time(zone, owner, monkeypatch):
    crowd(owner, zone)
    later = at(101, zone)
    solve(zone, later)

    def broken(lane):
        take_solved_prices(lane)
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(solving, "take_solved_prices", broken)
        with pytest.raises(RuntimeError, match="killed"):
            apply(zone, later)
    assert "PricesSolved" not in kinds(zone)
    assert pricing(zone).status == "waiting"
    assert apply(zone, later)
    assert kinds(zone).count("PricesSolved") == 1
    assert verify_zone(zone).problems == []


def test_a_lane_whose_wake_up_was_lost_is_told_again(zone, owner, monkeypatch):
    crowd(owner, zone)
    later = at(101, zone)
    solve(zone, later)
    told = []
    monkeypatch.setattr(solving, "enqueue", lambda name, **terms: told.append((name, terms)))
    assert request_due_solves(clock=lambda: later) == []
    assert told == [("auction.prices_apply", {"zone_id": zone.pk})]


def test_zones_that_are_due_are_asked_for_and_a_broken_one_does_not_stop_them(owner, monkeypatch):
    broken, fine, quiet = (market.zone() for _ in range(3))
    for zone in (broken, fine):
        market.node(zone)
        refresh_zone(zone=zone, now=NOW)
    Pricing.objects.filter(zone=broken).delete()
    told = []
    monkeypatch.setattr(solving, "enqueue", lambda name, **terms: told.append((name, terms)))
    assert request_due_solves(clock=lambda: NOW) == [fine.pk]
    assert told == [("auction.prices_solve", {"expires_s": 60.0, "zone_id": fine.pk})]
    assert not MarketHead.objects.filter(zone=quiet).exists()


def test_a_zone_without_a_log_or_without_nodes_is_not_solved_for():
    zone = market.zone()
    assert not solve(zone, NOW)
    assert not LogEntry.objects.exists()
    refresh_zone(zone=zone, now=NOW)
    assert not solve(zone, NOW)
    assert pricing(zone).status == "none"


def test_a_zone_without_bids_is_priced_at_nothing_but_cost(zone):
    refresh_zone(zone=zone, now=NOW)
    assert solve(zone, NOW)
    assert apply(zone, NOW)
    assert dearest(zone, NOW) == 0.0
    assert (pricing(zone).gain, pricing(zone).expected_bids) == (None, 0.0)


def test_one_bid_is_enough_to_solve(zone, owner):
    crowd(owner, zone, count=1)
    later = at(101, zone)
    assert solve(zone, later)
    assert apply(zone, later)
    assert solves(zone)[0].inputs["bids_today"] == 1
    assert pricing(zone).expected_bids == pytest.approx(11.0)


def test_a_zone_with_a_broken_log_is_not_solved_for_and_says_so(zone, owner):
    crowd(owner, zone)
    MarketHead.objects.update(head_hash="0" * 64)
    books._read_books.clear()
    assert not solve(zone, at(101, zone))
    assert pricing(zone).status == "failed"
    assert "auction_verify" in pricing(zone).problem


def test_prices_are_solved_again_after_some_slots_and_when_the_fleet_changes(zone, owner):
    set_policy_settings(zone=zone, settings={"solve_every_slots": 4}, now=NOW)
    zone.refresh_from_db()
    crowd(owner, zone)
    # At its beginning, a log is solved for in every slot.
    solved_in = []
    for slot in range(101, 117):
        if solve(zone, at(slot, zone)):
            apply(zone, at(slot, zone))
            solved_in.append(slot)
    assert solved_in == [101, 102, 103, 104, 105, 106, 110, 114]
    market.node(zone)
    assert solve(zone, at(116, zone))


def test_a_burst_has_prices_solved_again_within_its_slot(zone, owner, monkeypatch):
    # So much is never sold, so that bids alone make a solve due.
    monkeypatch.setattr(bursts, "MOST_SOLD", inf)
    crowd(owner, zone)
    for slot in range(101, 107):
        solve(zone, at(slot, zone))
        apply(zone, at(slot, zone))
    quiet = at(107, zone)
    assert not solve(zone, quiet)
    # Worth more than their cells cost, and less than those sell for: alone they are no burst.
    poor = {"now": quiet, "price_micros": 110_000, "epochs": 1}
    crowd(owner, zone, count=30, **poor)
    assert not solve(zone, quiet)
    # Twenty of one slot are a burst. Four jobs let twelve of them count besides the three that
    # always do, and five let fifteen.
    crowd(owner, zone, count=4, now=quiet, price_micros=90_000_000, epochs=1)
    assert not solve(zone, quiet)
    crowd(owner, zone, count=1, now=quiet, price_micros=90_000_000, epochs=1)
    assert solve(zone, quiet)
    assert apply(zone, quiet)
    # Those have been seen.
    assert not solve(zone, quiet)
    crowd(owner, zone, count=30, **poor)
    assert not solve(zone, quiet)
    # Nor are bids of the slot before a burst of this one.
    assert not solve(zone, at(108, zone))
    assert verify_zone(zone).problems == []


def test_prices_are_solved_again_when_much_was_sold(zone, owner):
    for slot in range(101, 108):
        refresh_zone(zone=zone, now=at(slot, zone))
        solve(zone, at(slot, zone))
        apply(zone, at(slot, zone))
    now = at(107, zone)
    assert not solve(zone, now)
    # One node has four places in a slot: three jobs of three cells do, and are three jobs.
    crowd(owner, zone, now=now, count=3)
    assert Bid.objects.filter(status="admitted").count() == 3
    assert not solve(zone, now)
    crowd(owner, zone, now=now, count=1)
    assert Bid.objects.filter(status="admitted").count() == 4
    assert solve(zone, now)
    assert apply(zone, now)
    assert not solve(zone, now)
    assert verify_zone(zone).problems == []


@pytest.mark.parametrize(
    "terms",
    [
        # Three cells cost 300,000.
        {"price_micros": 1},
        # More than three cells are left until the deadline.
        {"price_micros": 90_000_000, "epochs": 40},
    ],
)
def test_bids_that_could_not_win_in_an_empty_zone_are_no_burst_and_no_part_of_a_solve(
    zone, owner, terms
):
    crowd(owner, zone)
    for slot in range(101, 107):
        solve(zone, at(slot, zone))
        apply(zone, at(slot, zone))
    quiet = at(107, zone)
    stranger = builders.organisation(usd="1000000")
    for _ in range(30):
        market.bid(stranger, zone, **{"slots": 9, "epochs": 3, "now": quiet, **terms})
    decide_pending_bids(zone=zone, now=quiet)
    assert not solve(zone, quiet)
    later = at(110, zone)
    assert solve(zone, later)
    assert apply(zone, later)
    assert solves(zone)[-1].inputs["bids_today"] == 16


def test_the_seed_of_a_solve_follows_from_rules_and_slot_and_from_no_bid(zone, owner):
    refresh_zone(zone=zone, now=NOW)
    with books.read_book(zone=zone, now=NOW) as book:
        seeds = [choose_seed(book.engine, slot=slot) for slot in (102, 103)]
    crowd(owner, zone)
    with books.read_book(zone=zone, now=NOW) as book:
        assert [choose_seed(book.engine, slot=slot) for slot in (102, 103)] == seeds
    assert seeds[0] != seeds[1]


def test_a_flood_counts_with_three_times_the_work_that_it_bought(zone, owner):
    for number in range(4):
        other = builders.organisation(usd="100")
        market.bid(other, zone, price_micros=2_000_000 + number, slots=9, now=NOW)
    crowd(owner, zone, count=60)
    bids = Bid.objects.filter(organisation=owner)
    assert bids.filter(status="admitted").count() == 8
    later = at(101, zone)
    assert solve(zone, later)
    assert apply(zone, later)
    # And the three that always do: four jobs of one epoch let one of its jobs of three count.
    assert solves(zone)[0].inputs["bids_today"] == 4 + 8 + 3 * 8 + 3
    assert verify_zone(zone).problems == []


def test_a_burst_is_measured_by_the_slots_of_the_day(zone, owner):
    # All bids win, and none takes much.
    market.node(zone, compute_capacity=40_000.0, memory_gb=800.0)
    for slot in range(100, 107):
        crowd(owner, zone, now=at(slot, zone), count=20)
        solve(zone, at(slot + 1, zone))
        apply(zone, at(slot + 1, zone))
    assert pricing(zone).applied_slot == 106
    for count, burst in ((22, False), (12, True)):
        crowd(owner, zone, now=at(107, zone), count=count)
        assert solve(zone, at(107, zone)) is burst


def test_a_zone_rests_between_solves_for_longer_than_they_take(zone, owner, monkeypatch):
    monkeypatch.setattr(solving, "REST", 4.0)
    crowd(owner, zone)
    later = at(101, zone)
    solve(zone, later)
    apply(zone, later)
    row = pricing(zone)
    assert row.solve_s is not None
    assert row.next_at == later + timedelta(seconds=4.0 * row.solve_s)
    Pricing.objects.update(next_at=at(108, zone))
    assert find_due_solve(zone=zone, now=at(107, zone)) is None
    assert find_due_solve(zone=zone, now=at(108, zone)) is not None


def test_an_altered_solved_price_is_found(zone, owner):
    crowd(owner, zone)
    later = at(101, zone)
    solve(zone, later)
    apply(zone, later)
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
