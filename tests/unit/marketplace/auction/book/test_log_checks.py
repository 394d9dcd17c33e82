"""A check of the log begins where the last one ended, if the market's own key says so."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.core.management import CommandError, call_command

from marketplace.auction.book import log_checks
from marketplace.auction.book.log_checks import find_verified_state, store_verified_state
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.enter import enter_lane
from marketplace.auction.lane.errata import note_restore
from marketplace.auction.models import Bid, LogCheck, LogEntry, MarketHead, MarketKey
from marketplace.auction.witnesses.keys import SigningKey, load_signing_key, rotate_signing_key
from tests import builders
from tests import market_builders as market
from tests.audits import alter_row
from tests.builders import NOW
from tests.grown_house import count_reads

pytestmark = pytest.mark.django_db


@pytest.fixture
def zone():
    zone = market.zone()
    market.node(zone)
    decide(zone, 6)
    return zone


@pytest.fixture
def key(settings, tmp_path):
    settings.MARKET_KEY_DIR = tmp_path / "keys"
    return load_signing_key(now=NOW)


def decide(zone, count, *, after_s=0, price_micros=None):
    owner, now = builders.organisation(usd="1000"), NOW + timedelta(seconds=after_s)
    for number in range(count):
        price = price_micros or [150_000, 2_000_000][number % 2]
        market.bid(owner, zone, price_micros=price, now=now)
    decide_pending_bids(zone=zone, now=now)


def check(zone, key):
    found = verify_zone(zone)
    assert found.problems == []
    return store_verified_state(zone=zone, found=found, key=key, now=NOW)


def run(*options):
    said = StringIO()
    call_command("auction_verify", *options, stdout=said)
    return said.getvalue()


def test_the_next_check_begins_where_the_last_one_ended(zone, key):
    before, first = LogEntry.objects.count(), run("--since-last")
    assert f"{before} entries," in first
    assert LogCheck.objects.get().position == before
    decide(zone, 4, after_s=10)
    head, count = MarketHead.objects.get(), LogEntry.objects.count()
    second = run("--since-last")
    assert f"verified, {count - before} entries after {before}, 4 decisions" in second
    assert second.rstrip().endswith(head.head_hash)
    row = LogCheck.objects.get()
    assert (row.position, row.head_hash) == (head.position, head.head_hash)
    assert f"verified, {count} entries, 10 decisions" in run()
    # Nothing came since.
    assert f"verified, 0 entries after {count}, 0 decisions" in run("--since-last")


def test_the_state_of_a_part_is_that_of_the_whole(zone, key):
    check(zone, key)
    decide(zone, 4, after_s=10)
    since = find_verified_state(zone=zone, key=key)
    part, whole = verify_zone(zone, since=since), verify_zone(zone)
    assert part.problems == whole.problems == []
    assert part.state == whole.state
    assert (part.solved, part.express) == (whole.solved, whole.express)


def test_what_was_altered_since_is_found(zone, key):
    check(zone, key)
    decide(zone, 4, after_s=10)
    since = find_verified_state(zone=zone, key=key)
    bid = Bid.objects.filter(status="admitted").latest("position")
    alter_row("UPDATE auction_bid SET payment_micros = payment_micros + 1 WHERE id = %s", bid.pk)
    assert any("payment_micros" in each for each in verify_zone(zone, since=since).problems)
    stray = market.bid(builders.organisation(usd="10"), zone)
    alter_row("UPDATE auction_bid SET status = 'refused', position = 999 WHERE id = %s", stray.pk)
    problems = verify_zone(zone, since=since).problems
    assert "5 bids are marked as decided, the log has 4 decisions" in problems


def test_what_was_altered_before_is_found_by_the_whole_check_alone(zone, key):
    row = check(zone, key)
    bid = Bid.objects.filter(status="admitted").earliest("position")
    alter_row("UPDATE auction_bid SET payment_micros = payment_micros + 1 WHERE id = %s", bid.pk)
    assert "verified" in run("--since-last")
    with pytest.raises(CommandError, match="not what its log replays to"):
        run()
    # What failed leaves no mark.
    assert LogCheck.objects.get().position == row.position


def test_a_log_that_no_longer_has_the_verified_entry_is_found(zone, key):
    row = check(zone, key)
    alter_row("DELETE FROM auction_logentry WHERE position = %s", row.position)
    since = find_verified_state(zone=zone, key=key)
    said = f"log position {row.position}: it is not the entry that was verified before"
    assert said in verify_zone(zone, since=since).problems


@pytest.mark.parametrize("column", ["state", "carried", "head_hash", "position", "checked_at"])
def test_a_state_that_was_altered_counts_for_nothing(zone, key, column):
    row = check(zone, key)
    changed = {
        "state": json.dumps(json.loads(row.state) | {"posted": None}),
        "carried": json.dumps(json.loads(row.carried) | {"solved": 1}),
        "head_hash": "0" * 64,
        "position": row.position - 1,
        "checked_at": NOW + timedelta(days=1),
    }
    LogCheck.objects.update(**{column: changed[column]})
    assert find_verified_state(zone=zone, key=key) is None
    assert f"verified, {LogEntry.objects.count()} entries, 6 decisions" in run("--since-last")


def test_a_state_under_a_key_that_stands_in_the_database_alone_counts_for_nothing(zone, key):
    check(zone, key)
    private = Ed25519PrivateKey.generate()
    public = private.public_key().public_bytes_raw().hex()
    MarketKey.objects.create(public_key=public, created_at=NOW)
    forger = SigningKey(public_key=public, sign=private.sign)
    found = verify_zone(zone)
    store_verified_state(zone=zone, found=found, key=forger, now=NOW)
    assert find_verified_state(zone=zone, key=forger) is not None
    assert find_verified_state(zone=zone, key=key) is None


def test_a_state_of_another_zone_counts_for_nothing(zone, key):
    row = check(zone, key)
    other = market.zone()
    market.node(other)
    decide(other, 1)
    row.zone = other
    row.save(force_insert=True)
    assert find_verified_state(zone=other, key=key) is None


def test_after_a_new_key_and_without_a_key_the_check_is_whole(zone, key, settings, tmp_path):
    check(zone, key)
    whole = f"verified, {LogEntry.objects.count()} entries, 6 decisions"
    rotate_signing_key(now=NOW)
    assert whole in run("--since-last")
    LogCheck.objects.all().delete()
    settings.MARKET_KEY_DIR = tmp_path / "nowhere"
    assert whole in run("--since-last")
    assert not LogCheck.objects.exists()
    # A process without the key makes none.
    assert not (tmp_path / "nowhere").exists()


def test_a_check_costs_what_came_since(zone, key):
    def count_next() -> int:
        since = find_verified_state(zone=zone, key=key)
        return count_reads(lambda: verify_zone(zone, since=since))

    # Of jobs that run there are few, however many there were; here there are no more than before.
    check(zone, key)
    decide(zone, 2, after_s=3600, price_micros=1)
    few = count_next()
    for turn in range(1, 9):
        decide(zone, 6, after_s=3600 + 600 * turn, price_micros=1)
    check(zone, key)
    decide(zone, 2, after_s=3 * 3600, price_micros=1)
    many = count_next()
    whole = count_reads(lambda: verify_zone(zone))
    assert many <= few * 1.2
    assert whole > 3 * many


def test_seats_of_jobs_that_wait_or_are_to_come_are_carried_on(zone, key):
    found = verify_zone(zone)
    first = found.state["first_slot"]
    found.express = {
        "bid_over": (("task", market_cell(first - 1)),),
        "bid_coming": (("task", market_cell(first + 1)),),
    }
    store_verified_state(zone=zone, found=found, key=key, now=NOW)
    since = find_verified_state(zone=zone, key=key)
    assert since.express == {"bid_coming": (("task", market_cell(first + 1)),)}


def market_cell(slot):
    return log_checks.Cell(slot, "node_1")


def test_faults_that_the_log_names_are_said_by_every_later_check(zone, key):
    found = verify_zone(zone)
    found.known_before = ("entry 3 is wrong, as entry 9 says",)
    store_verified_state(zone=zone, found=found, key=key, now=NOW)
    with pytest.raises(CommandError, match="but for entries") as raised:
        run("--since-last")
    assert raised.value.returncode == 3
    later = find_verified_state(zone=zone, key=key)
    assert later.known_faults == found.known_before


def test_a_restore_is_an_entry_like_others(zone, key):
    check(zone, key)
    note_restore(zone=zone, backed_up_at=NOW, now=NOW + timedelta(seconds=5))
    with enter_lane(zone=zone, now=NOW + timedelta(seconds=10)):
        pass
    assert verify_zone(zone, since=find_verified_state(zone=zone, key=key)).problems == []
