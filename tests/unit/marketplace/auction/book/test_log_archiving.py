"""Old entries of a log leave the database for files, and everything reads them there."""

from __future__ import annotations

import hashlib
import json
import lzma
from contextlib import nullcontext
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
import time_machine
from django.core.files.storage import default_storage
from django.core.management import CommandError, call_command
from django.db import DatabaseError, ProgrammingError, connection, models, transaction

from marketplace.auction.book import engine_cache as books
from marketplace.auction.book import log_archiving, log_segments
from marketplace.auction.book.log_archiving import archive_log
from marketplace.auction.book.log_segments import read_log
from marketplace.auction.book.proofs import build_bid_proof
from marketplace.auction.book.transcript import write_transcript
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Bid, LogEntry, LogSegment, MarketHead, PublishedHead
from marketplace.auction.pricing.past_bids import _find_first_position
from marketplace.auction.witnesses.heads import sign_heads
from marketplace.auction.witnesses.keys import load_signing_key
from marketplace.common import archive_files
from marketplace.common.archive_files import ArchiveUnreadable, list_lost_files
from marketplace.common.errors import Conflict, StorageUnavailable
from marketplace.common.locks import lock_number
from marketplace.config.backups import _list_names
from marketplace.config.database_roles import list_rights
from marketplace.config.management.commands import archive as archive_command
from marketplace.embedded.servers import MARKET_ROLE
from marketplace.fleet.selectors import slot_at
from marketplace.payments.closed_months import close_month
from marketplace.payments.models import Hold
from tests import builders
from tests import market_builders as market
from tests.audits import alter_row, replay_transcript
from tests.builders import NOW
from tests.object_bucket import create_bucket, list_objects, serve_buckets, use_bucket

pytestmark = pytest.mark.django_db

#: Its month is closed, and no forecast reads it.
LATER = NOW + timedelta(days=100)


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def key(settings, tmp_path):
    settings.MARKET_KEY_DIR = tmp_path / "keys"
    settings.MEDIA_ROOT = tmp_path / "media"
    return load_signing_key(now=NOW)


@pytest.fixture
def owner():
    return builders.organisation(usd="10")


@pytest.fixture
def zone(owner, key, monkeypatch):
    """A log with a signed head and a snapshot after each of eight batches."""
    monkeypatch.setattr(books, "SNAPSHOT_AT_LATEST", 3)
    monkeypatch.setattr(log_archiving, "ENTRIES_OF_SEGMENT", 8)
    zone = market.zone()
    market.node(zone)
    for batch in range(8):
        refuse(owner, zone, now=NOW + timedelta(seconds=batch))
    return zone


def refuse(owner, zone, *, now):
    """Decide bids that win nothing, so that nothing of them is left to settle."""
    for _ in range(2):
        market.bid(owner, zone, price_micros=1, now=now)
    decide_pending_bids(zone=zone, now=now)
    sign_heads(now=now)


@pytest.fixture
def closed(zone):
    return close_month(month=f"{NOW:%Y-%m}", closed_by=builders.operator(), now=LATER)


def archive(zone, key):
    return archive_log(zone=zone, key=key, now=LATER)


def read_all(zone):
    """What a log shows outside: its transcript with and without bids, and a proof of each bid."""
    return (
        list(write_transcript(zone, with_bids=True)),
        list(write_transcript(zone, with_bids=False)),
        [build_bid_proof(bid=bid) for bid in Bid.objects.order_by("arrival")],
    )


def find_problems(zone):
    return verify_zone(zone).problems


def count_rows():
    return LogEntry.objects.count(), LogSegment.objects.count()


def test_everything_reads_as_before(zone, closed, key, tmp_path):
    before, (entries, _) = read_all(zone), count_rows()
    done = archive(zone, key)
    assert done.entries == entries - LogEntry.objects.count() > entries // 2
    assert done.until == "The next prices are solved from the latest beat."
    assert not LogEntry.objects.filter(position__lte=done.entries).exists()
    segments = list(LogSegment.objects.order_by("first"))
    assert len(segments) == done.segments > 1
    assert [of.first for of in segments] == [1, *(of.last + 1 for of in segments[:-1])]
    heads = set(PublishedHead.objects.filter(zone=zone).values_list("position", flat=True))
    assert {of.last for of in segments} <= heads
    assert read_all(zone) == before
    found = verify_zone(zone)
    assert (found.problems, found.entries, found.decisions) == ([], entries, 16)
    assert found.head_hash == MarketHead.objects.get().head_hash
    transcript = tmp_path / "log.jsonl"
    transcript.write_text("".join(f"{line}\n" for line in before[0]))
    assert replay_transcript(transcript).returncode == 0


def test_the_market_and_its_checks_go_on(owner, zone, closed, key):
    refuse(owner, zone, now=LATER)
    refuse(owner, zone, now=LATER + timedelta(hours=1))
    slot = slot_at(zone, LATER)
    last = MarketHead.objects.get().position
    slots = (slot, slot + 1, slot_at(zone, LATER + timedelta(hours=1)), slot + 10**6)
    places = [_find_first_position(zone, slot, last=last) for slot in slots]
    assert len(set(places)) == 3
    archive(zone, key)
    assert [_find_first_position(zone, slot, last=last) for slot in slots] == places
    books.discard_lane_book(zone_id=zone.pk)
    refuse(owner, zone, now=LATER + timedelta(hours=2))
    said = StringIO()
    call_command("auction_verify", "--since-last", stdout=said)
    assert "verified" in said.getvalue()
    assert find_problems(zone) == []


def test_the_second_run_finds_nothing_and_a_later_one_goes_on(owner, zone, closed, key):
    first = archive(zone, key)
    rows = count_rows()
    again = archive(zone, key)
    assert (again.segments, again.entries) == (0, 0)
    assert count_rows() == rows
    for second in range(4):
        refuse(owner, zone, now=LATER + timedelta(seconds=second))
    refuse(owner, zone, now=LATER + timedelta(hours=1))
    recent = LogEntry.objects.filter(recorded_at__gte=LATER)
    added = recent.count()
    assert archive(zone, key).until.endswith("is of an open month or recent.")
    assert recent.count() == added == LogEntry.objects.count()
    much_later = LATER + timedelta(days=100)
    close_month(month=f"{LATER:%Y-%m}", closed_by=builders.operator(), now=much_later)
    assert archive_log(zone=zone, key=key, now=much_later).entries > 0
    assert LogSegment.objects.latest("first").first > first.entries
    assert find_problems(zone) == []


def test_a_file_has_no_more_text_than_its_readers_have_memory_for(zone, closed, key, monkeypatch):
    monkeypatch.setattr(log_archiving, "CHARS_OF_SEGMENT", 1)
    before = read_all(zone)
    done = archive(zone, key)
    heads = PublishedHead.objects.filter(zone=zone, position__lte=done.entries)
    ends = list(LogSegment.objects.order_by("last").values_list("last", flat=True))
    # None fits, and each ends at the next signed head all the same.
    assert ends == sorted(heads.values_list("position", flat=True))
    assert done.segments == len(ends) > 2
    assert (read_all(zone), find_problems(zone)) == (before, [])


def test_a_proof_unpacks_no_more_of_a_file_than_it_shows(zone, closed, key, monkeypatch):
    archive(zone, key)
    segment = LogSegment.objects.earliest("first")
    parsed = []
    true_loads = json.loads

    def loads(line):
        parsed.append(true_loads(line))
        return parsed[-1]

    monkeypatch.setattr(log_segments.json, "loads", loads)
    rows = list(read_log(zone.pk, first=2, last=3))
    assert [row.position for row in rows] == [2, 3]
    # One beyond: nothing else says that no other comes.
    assert len(parsed) == 4 < segment.last


def test_the_command_says_what_it_did(zone, closed, key):
    said = StringIO()
    with time_machine.travel(LATER, tick=False):
        call_command("archive", stdout=said)
    files = LogSegment.objects.count()
    archived = LogSegment.objects.latest("last").last
    assert f"{zone.name}: {archived} entries into {files} files of" in said.getvalue()


def test_a_storage_that_does_not_answer_for_one_part_leaves_the_others_their_turn(
    zone, closed, key, monkeypatch
):
    def refuse(_name, _content):
        raise StorageUnavailable("the bucket is away")

    def refuse_events(**_):
        raise StorageUnavailable("the bucket is slow")

    monkeypatch.setattr(archive_files, "save_for_good", refuse)
    monkeypatch.setattr(archive_command, "archive_events", refuse_events)
    said, rows = StringIO(), count_rows()
    with time_machine.travel(LATER, tick=False), pytest.raises(CommandError, match="Not all could"):
        call_command("archive", stderr=said, stdout=said)
    assert said.getvalue() == (
        f"Events of jobs: the bucket is slow\n{zone.name}: the bucket is away\n"
    )
    assert count_rows() == rows


def test_without_the_markets_key_nothing_is_archived(zone, closed, settings, tmp_path):
    settings.MARKET_KEY_DIR = tmp_path / "nowhere"
    with pytest.raises(CommandError, match="key is not here"):
        call_command("archive")
    assert LogSegment.objects.count() == 0


def test_an_open_month_stays(zone, key):
    done = archive(zone, key)
    assert (done.entries, done.until) == (0, "No month is closed.")


def test_what_a_forecast_may_read_stays(zone, closed, key):
    done = archive_log(zone=zone, key=key, now=NOW + timedelta(days=35))
    assert done.entries == 0
    assert "is of an open month or recent" in done.until


def test_entries_from_a_bid_that_is_not_settled_on_stay(owner, zone, key):
    won = market.bid(owner, zone, now=NOW + timedelta(seconds=9))
    decide_pending_bids(zone=zone, now=NOW + timedelta(seconds=9))
    for second in range(10, 17):
        refuse(owner, zone, now=NOW + timedelta(seconds=second))
    won.refresh_from_db()
    assert won.status == "admitted"
    assert won.position is not None
    close_month(month=f"{NOW:%Y-%m}", closed_by=builders.operator(), now=LATER)
    done = archive(zone, key)
    assert done.until == f"The bid {won.pk} is not settled for good."
    assert 0 < LogSegment.objects.latest("last").last < won.position
    Hold.objects.filter(status="charged").update(distributed_at=NOW)
    assert archive(zone, key).entries == 0
    alter_row(
        "UPDATE jobs_job SET status = 'succeeded', finished_at = %s, settled_at = %s", NOW, NOW
    )
    assert archive(zone, key).entries > 0
    assert LogSegment.objects.latest("last").last >= won.position


def test_a_log_that_does_not_verify_stays(zone, closed, key):
    last = LogEntry.objects.filter(kind="BidArrived").latest("position")
    changed = last.event.replace('"bid":1,', '"bid":2,')
    assert changed != last.event
    alter_row("UPDATE auction_logentry SET event = %s WHERE id = %s", changed, last.pk)
    with pytest.raises(Conflict, match="does not verify"):
        archive(zone, key)
    assert LogSegment.objects.count() == 0


@pytest.mark.parametrize(
    "step",
    ["save_for_good", "read_segment", "_replace_rows", "LogSegment.save", "delete", "commit"],
)
def test_one_that_is_killed_anywhere_leaves_all_or_nothing(zone, closed, key, monkeypatch, step):
    before, rows = read_all(zone), count_rows()

    def die(*_args, **_options):
        raise Killed

    with monkeypatch.context() as patch:
        if step == "LogSegment.save":
            patch.setattr(LogSegment, "save", die)
        elif step == "delete":
            patch.setattr(models.QuerySet, "delete", die)
        elif step == "commit":
            replace = log_archiving._replace_rows
            patch.setattr(log_archiving, "_replace_rows", lambda *of: (replace(*of), die()))
        else:
            of = archive_files if step == "save_for_good" else log_archiving
            patch.setattr(of, step, die)
        with pytest.raises(Killed):
            archive(zone, key)
    if step == "commit":
        assert LogSegment.objects.count() == 1
    else:
        assert count_rows() == rows
    assert read_all(zone) == before
    assert archive(zone, key).entries > 0
    assert read_all(zone) == before
    assert find_problems(zone) == []


def test_a_storage_that_keeps_something_else_costs_no_row(zone, closed, key, monkeypatch):
    rows, save = count_rows(), default_storage.save

    def lie(name, content, **options):
        stored = save(name, content, **options)
        path = Path(default_storage.path(stored))
        path.write_bytes(path.read_bytes()[:-1])
        return stored

    monkeypatch.setattr(default_storage, "save", lie)
    with pytest.raises(ArchiveUnreadable, match="is not what was archived"):
        archive(zone, key)
    assert count_rows() == rows


def test_rows_that_change_meanwhile_stay(zone, closed, key, monkeypatch):
    rows, store = count_rows(), log_archiving._store

    def change(*args, **options):
        store(*args, **options)
        alter_row("UPDATE auction_logentry SET recorded_at = now() WHERE position = 2")

    monkeypatch.setattr(log_archiving, "_store", change)
    with pytest.raises(Conflict, match="changed while they were archived"):
        archive(zone, key)
    assert count_rows() == rows


def get_path(segment):
    return Path(default_storage.path(segment.file.name))


def test_a_file_that_is_lost_is_named(zone, closed, key):
    archive(zone, key)
    segment = LogSegment.objects.earliest("first")
    content = get_path(segment).read_bytes()
    get_path(segment).unlink()
    [problem] = find_problems(zone)
    assert problem.startswith(f"log positions 1 to {segment.last}: the file {segment.file.name}")
    with pytest.raises(CommandError):
        call_command("auction_verify")
    with pytest.raises(ArchiveUnreadable):
        list(write_transcript(zone, with_bids=False))
    # What is verified already and what comes since needs no file.
    call_command("auction_verify", "--since-last")
    assert list_lost_files(LogSegment) == [segment.file.name]
    said = StringIO()
    with pytest.raises(CommandError):
        call_command("doctor", stdout=said)
    assert f"BAD  Archive: 1 files are lost, such as {segment.file.name}" in said.getvalue()
    get_path(segment).write_bytes(content)
    assert (find_problems(zone), list_lost_files(LogSegment)) == ([], [])


@pytest.mark.parametrize("is_row_altered", [False, True])
def test_an_entry_that_was_altered_in_a_file_is_named(zone, closed, key, is_row_altered):
    archive(zone, key)
    segment = LogSegment.objects.earliest("first")
    lines = lzma.decompress(get_path(segment).read_bytes()).decode().split("\n")
    place = next(at for at, line in enumerate(lines) if "BidArrived" in line)
    entry = json.loads(lines[place])
    entry[2] = entry[2].replace('"bid":1,', '"bid":2,')
    assert json.dumps(entry) != lines[place]
    lines[place] = json.dumps(entry)
    content = lzma.compress("\n".join(lines).encode())
    get_path(segment).write_bytes(content)
    if not is_row_altered:
        [problem] = find_problems(zone)
        assert problem.endswith("is not what was archived")
        return
    alter_row(
        "UPDATE auction_logsegment SET sha256 = %s WHERE id = %s",
        hashlib.sha256(content).hexdigest(),
        segment.pk,
    )
    signed, replayed = find_problems(zone)
    assert signed.endswith("the file's manifest is not signed by the market's key")
    assert replayed.startswith(f"log position {place}: ")


def test_a_file_that_is_left_out_is_named(zone, closed, key):
    archive(zone, key)
    second = LogSegment.objects.order_by("first")[1]
    alter_row("DELETE FROM auction_logsegment WHERE id = %s", second.pk)
    problems = find_problems(zone)
    assert any("does not follow the one before it" in each for each in problems)
    assert any("is missing" in each for each in problems)


def test_a_row_in_place_of_an_archived_entry_is_named(zone, closed, key):
    last = LogEntry.objects.latest("position")
    archive(zone, key)
    LogEntry.objects.create(
        zone=zone,
        position=2,
        kind=last.kind,
        event=last.event,
        outcome=last.outcome,
        prev_hash=last.prev_hash,
        hash=last.hash,
        recorded_at=NOW,
    )
    assert find_problems(zone) == ["log position 2: it is a row and in a file"]


def test_two_at_once_are_one(zone, closed, key):
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            number = lock_number("auction.archive", zone.pk)
            cursor.execute("SELECT pg_advisory_lock(%s)", [number])
            with pytest.raises(Conflict, match="being archived already"):
                archive(zone, key)
            cursor.execute("SELECT pg_advisory_unlock(%s)", [number])
    finally:
        other.close()
    assert LogSegment.objects.count() == 0
    assert archive(zone, key).entries > 0


def test_the_market_itself_neither_changes_nor_deletes_what_is_archived(zone, closed, key):
    archive(zone, key)
    assert list_rights(LogSegment) == list_rights(LogEntry) == ["INSERT"]
    for change in (
        lambda: LogSegment.objects.update(last=1),
        lambda: LogSegment.objects.all().delete(),
        lambda: LogEntry.objects.all().delete(),
    ):
        with pytest.raises(DatabaseError, match="Cannot"), transaction.atomic():
            change()


def test_the_manifest_says_what_the_market_signed(zone, closed, key):
    archive(zone, key)
    segments = list(LogSegment.objects.all())
    for segment in segments:
        with segment.manifest.open() as file:
            manifest = json.loads(file.read())
        signature = manifest.pop("signature")
        assert signature == segment.signature
        assert manifest["sha256"] in segment.file.name
        assert (manifest["first"], manifest["last"]) == (segment.first, segment.last)
        assert manifest["head_hash"] == segment.head_hash
    # A backup holds them.
    stored = {name for of in segments for name in (of.file.name, of.manifest.name)}
    assert stored <= set(_list_names())


def test_a_part_of_the_log_is_read_over_the_files_end(zone, closed, key):
    whole = list(read_log(zone.pk, first=1))
    archive(zone, key)
    end = LogSegment.objects.latest("last").last
    assert list(read_log(zone.pk, first=end - 1, last=end + 1)) == whole[end - 2 : end + 1]
    assert list(read_log(zone.pk, first=len(whole) + 1)) == []
    assert [row.position for row in read_log(zone.pk, first=1)] == list(range(1, len(whole) + 1))


def test_entries_that_are_moved_while_they_are_read_come_once(zone, closed, key, monkeypatch):
    monkeypatch.setattr(log_segments, "_PAGE_ROWS", 3)
    whole = list(read_log(zone.pk, first=1))
    reading = read_log(zone.pk, first=1)
    begun = [next(reading), next(reading)]
    archive(zone, key)
    assert begun + list(reading) == whole


def test_the_markets_own_role_cannot_archive(zone, closed, key, monkeypatch):
    rows = count_rows()
    # In a transaction that has failed it cannot be given back.
    monkeypatch.setattr(log_archiving, "advisory_session_lock", lambda *_, **__: nullcontext(True))

    def try_it():
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL ROLE {MARKET_ROLE}")
            archive(zone, key)

    with pytest.raises(ProgrammingError, match="permission denied for table auction_logentry"):
        try_it()
    assert count_rows() == rows


def test_files_may_lie_in_a_bucket(zone, closed, key, settings):
    before = read_all(zone)
    with serve_buckets() as url:
        options = create_bucket(url)
        use_bucket(settings, options)
        archive(zone, key)
        files = LogSegment.objects.count()
        assert len(list_objects(options)) == 2 * files
        assert read_all(zone) == before
        assert (find_problems(zone), list_lost_files(LogSegment)) == ([], [])
