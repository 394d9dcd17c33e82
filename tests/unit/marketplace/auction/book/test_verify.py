"""The replay finds every stored decision that was altered, by as little as a micro-dollar."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command

from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Bid, LogEntry, MarketHead, Reservation, Snapshot
from marketplace.fleet.slots import slot_starts_at
from marketplace.jobs.models import Job
from marketplace.payments.models import Hold
from tests import builders
from tests import market_builders as market
from tests.audits import alter_row, replay_transcript
from tests.builders import NOW

pytestmark = pytest.mark.django_db


@pytest.fixture
def zone():
    """A market with a few decisions of each kind behind it."""
    zone = market.zone()
    market.node(zone)
    market.node(zone, ask_micros=800_000)
    owner = builders.organisation(usd="100")
    for number in range(12):
        market.bid(
            owner,
            zone,
            price_micros=[150_000, 900_000, 2_000_000][number % 3],
            epochs=1 + number % 4,
            slots=3 + number % 5,
            now=NOW,
        )
    decide_pending_bids(zone=zone, now=NOW, limit=7)
    decide_pending_bids(zone=zone, now=NOW + timedelta(seconds=10))
    return zone


def problems(zone):
    found = verify_zone(zone)
    assert found.ok is (not found.problems)
    return found.problems


def test_honest_log_verifies(zone):
    found = verify_zone(zone)
    assert found.problems == []
    assert found.decisions == 12
    assert found.entries == LogEntry.objects.count()
    assert found.head_hash == MarketHead.objects.get().head_hash
    statuses = set(Bid.objects.values_list("status", flat=True))
    assert statuses == {"admitted", "refused"}


def test_command_succeeds_and_prints_the_head(zone, capsys):
    call_command("auction_verify", zone=zone.name)
    assert MarketHead.objects.get().head_hash in capsys.readouterr().out


def test_command_refuses_an_unknown_zone(zone):
    with pytest.raises(CommandError, match="no zone 'nowhere'"):
        call_command("auction_verify", zone="nowhere")


@pytest.mark.parametrize(
    "column",
    [
        "payment_micros",
        "price_micros",
        "winning_price_micros",
        "position",
    ],
)
def test_bid_altered_by_one_is_found(zone, column):
    chosen = Bid.objects.filter(**{f"{column}__isnull": False}, position__gt=0)
    bid = chosen.filter(status="admitted").order_by("-position")[0]
    change = "- 1" if column == "payment_micros" else "+ 1"
    if column == "position":
        change = "+ 1000"
    alter_row(f"UPDATE auction_bid SET {column} = {column} {change} WHERE id = %s", bid.pk)
    assert any(bid.pk in problem for problem in problems(zone))
    with pytest.raises(CommandError):
        call_command("auction_verify")


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ("status = 'cancelled'", "refused"),
        ("decision_hash = repeat('0', 64)", "admitted"),
        ("deadline_at = deadline_at + interval '10 seconds'", "admitted"),
        ("finish_planned_at = finish_planned_at + interval '1 second'", "admitted"),
        ("compute_demand = compute_demand + 0.001", "refused"),
        ("refusal = 'capacity'", "refused"),
    ],
)
def test_bid_altered_in_any_other_way_is_found(zone, change, status):
    bid = Bid.objects.filter(status=status).exclude(refusal="capacity").order_by("pk")[0]
    alter_row(f"UPDATE auction_bid SET {change} WHERE id = %s", bid.pk)
    assert any(bid.pk in problem for problem in problems(zone))


@pytest.mark.parametrize("change", ["revision = 2", "slot = slot + 7", "released_at = now()"])
def test_a_cell_of_another_plan_than_was_decided_is_found(zone, change):
    bid = Bid.objects.filter(status="admitted").order_by("pk")[0]
    alter_row(f"UPDATE auction_reservation SET {change} WHERE bid_id = %s", bid.pk)
    assert any("cell" in problem for problem in problems(zone))


def test_a_job_that_is_to_run_in_a_cell_it_does_not_hold_is_found(zone):
    job = Job.objects.order_by("pk")[0]
    node = job.cells[0][1]
    alter_row(
        f"""UPDATE jobs_job SET cells = cells || '[[150, "{node}"]]'::jsonb WHERE id = %s""", job.pk
    )
    assert problems(zone) == [f"cell ('{job.bid_id}', 150, '{node}') is planned and not held"]


def test_job_sold_at_another_price_is_found(zone):
    job = Job.objects.order_by("pk")[0]
    alter_row("UPDATE jobs_job SET price_micros = price_micros + 1 WHERE id = %s", job.pk)
    assert any("job's price" in problem for problem in problems(zone))


def test_charge_that_is_not_the_payment_is_found(zone):
    hold = Hold.objects.filter(status="charged").order_by("pk")[0]
    alter_row("UPDATE payments_hold SET charged_micros = charged_micros - 1 WHERE id = %s", hold.pk)
    assert any("was charged" in problem for problem in problems(zone))


@pytest.mark.parametrize(
    "change",
    [
        "event = replace(event, '\"bid\":900000', '\"bid\":900001')",
        "outcome = replace(outcome, '\"payment\":', '\"payment\":1')",
        "hash = repeat('0', 64)",
        "prev_hash = repeat('0', 64)",
    ],
)
def test_log_entry_altered_in_any_way_is_found(zone, change):
    bids = LogEntry.objects.filter(kind="BidArrived", event__contains='"bid":900000,')
    entry = bids.order_by("position")[0]
    alter_row(f"UPDATE auction_logentry SET {change} WHERE id = %s", entry.pk)
    assert problems(zone)[0].startswith(f"log position {entry.position}:")


@pytest.mark.parametrize(("early_s", "is_found"), [(60, False), (61, True)])
def test_a_beat_that_was_logged_before_its_time_is_found(zone, early_s, is_found):
    beat = LogEntry.objects.filter(kind="SlotAdvanced").latest("position")
    due = slot_starts_at(zone, json.loads(beat.event)["slot"])
    sql = "UPDATE auction_logentry SET recorded_at = %s WHERE id = %s"
    alter_row(sql, due - timedelta(seconds=early_s), beat.pk)
    said = (due - timedelta(seconds=early_s)).isoformat()
    assert problems(zone) == is_found * [
        f"the beat at {beat.position} came before its time: it was recorded at {said}"
    ]


def test_entries_past_a_beat_are_counted(zone, capsys):
    entry = LogEntry.objects.latest("position")
    beat = LogEntry.objects.filter(kind="SlotAdvanced").latest("position")
    slot = json.loads(beat.event)["slot"]
    next_beat = slot_starts_at(zone, slot) + timedelta(seconds=zone.slot_s / 2)
    sql = "UPDATE auction_logentry SET recorded_at = %s WHERE id = %s"
    for late_s, count in ((60, 0), (61, 1)):
        alter_row(sql, next_beat + timedelta(seconds=late_s), entry.pk)
        found = verify_zone(zone)
        assert (found.problems, found.beats_late) == ([], count)
    call_command("auction_verify", zone=zone.name)
    said = "0 beats without prices, 1 entries past a beat, 1 days without a witness"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["BidsReceived", "BidArrived"])
def test_log_entry_that_is_gone_is_found(zone, kind):
    entry = LogEntry.objects.filter(kind=kind).order_by("position")[0]
    alter_row("DELETE FROM auction_logentry WHERE id = %s", entry.pk)
    at = entry.position
    assert problems(zone) == [f"log position {at + 1}: entry {at} is missing"]


def test_log_cut_off_at_the_end_is_found(zone):
    entry = LogEntry.objects.latest("position")
    alter_row("DELETE FROM auction_logentry WHERE id = %s", entry.pk)
    assert any("the log ends at" in problem for problem in problems(zone))


def test_decided_bid_that_the_log_does_not_know_is_found(zone):
    stray = market.bid(builders.organisation(usd="10"), zone)
    alter_row("UPDATE auction_bid SET status = 'refused', position = 999 WHERE id = %s", stray.pk)
    assert any("marked as decided" in problem for problem in problems(zone))


def test_reservation_that_is_not_in_the_book_is_found(zone):
    row = Reservation.objects.filter(released_at=None).latest("slot")
    alter_row("UPDATE auction_reservation SET released_at = now() WHERE id = %s", row.pk)
    assert any("missing from the rows" in problem for problem in problems(zone))


def test_snapshot_that_is_not_the_replays_state_is_found(zone):
    snapshot = Snapshot.objects.get(position=0)
    state = json.loads(snapshot.state)
    state["rules"]["steepness"] = 0.3
    alter_row(
        "UPDATE auction_snapshot SET state = %s WHERE id = %s", json.dumps(state), snapshot.pk
    )
    assert problems(zone)


def test_transcript_is_replayed_without_a_database(zone, tmp_path):
    path = tmp_path / "zone.jsonl"
    call_command("auction_transcript", zone=zone.name, out=path, with_bids=True)
    verified = replay_transcript(path)
    assert verified.returncode == 0, verified.stderr
    assert json.loads(verified.stdout)["head_hash"] == MarketHead.objects.get().head_hash
    path.write_text(path.read_text().replace('"bid": 900000.0', '"bid": 900001.0', 1))
    assert replay_transcript(path).returncode == 1


def test_transcript_without_bids_is_checked_as_well_and_a_changed_payment_is_found(zone, tmp_path):
    path = tmp_path / "zone.jsonl"
    call_command("auction_transcript", zone=zone.name, out=path)
    text = path.read_text()
    assert '"bid": ' not in text
    verified = replay_transcript(path)
    assert verified.returncode == 0, verified.stderr
    assert json.loads(verified.stdout)["head_hash"] == MarketHead.objects.get().head_hash
    payment = re.search(r'"payment": ([1-9][0-9]*)\.0', text)
    assert payment is not None
    path.write_text(text.replace(payment[0], f'"payment": {int(payment[1]) + 10_000}.0', 1))
    assert replay_transcript(path).returncode == 1
