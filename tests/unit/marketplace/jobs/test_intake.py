"""Uploads: read by a worker once, decided by a person, whatever dies on the way."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from datetime import datetime, timedelta
from fractions import Fraction
from pathlib import Path
from threading import Barrier, BrokenBarrierError, local
from typing import Any

import pytest
from django.core.files.storage import default_storage

from marketplace.accounts.models import Organisation
from marketplace.common.durable.kinds import get_kinds
from marketplace.common.durable.run import run_due_work
from marketplace.common.errors import MarketFault, StorageUnavailable, UserError
from marketplace.common.models import DurableWork
from marketplace.jobs import reading_process
from marketplace.jobs.models import Dataset, DatasetTokens, PartedUpload, Upload, UploadStatus
from marketplace.jobs.reading_process import FileToRead, read_in_process
from marketplace.jobs.selectors import build_upload_error
from marketplace.jobs.services import (
    decide_upload,
    delete_dataset,
    ensure_dataset_tokens,
    intake,
    parts,
    readings,
    receive_upload,
    sweep_uploads,
)
from marketplace.jobs.upload_choices import UploadChoices
from marketplace.vendors.offers import measure_growth
from marketplace.vendors.plans import request_plan
from tests import builders
from tests import market_builders as market
from tests import vendor_builders as vendors
from tests.builders import NOW
from tests.object_bucket import list_objects, use_bucket
from tests.unit.marketplace.common.threads import at_once
from tests.unit.marketplace.jobs.test_datasets import tokenizer_file
from workers.protocol.job_terms import PreparationWish

pytestmark = pytest.mark.django_db

ROW = b'{"prompt": "one two", "completion": " three"}\n'
LONG = json.dumps({"prompt": "word " * 200, "completion": " end"}).encode() + b"\n"
BAD = b"{broken\n"


@pytest.fixture
def zone(tmp_path, settings):
    settings.MEDIA_ROOT = tmp_path / "media"
    return market.zone(tokenizer_source=tokenizer_file(tmp_path))


@pytest.fixture
def owner():
    return builders.organisation()


def receive(owner: Organisation, content: bytes, *, name="data.jsonl", now=NOW, **more) -> Upload:
    return receive_upload(
        organisation=owner,
        name=name,
        content=io.BytesIO(content),
        uploaded_by=None,
        now=now,
        **more,
    )


def describe(source: Path, *, name: str) -> FileToRead:
    """A file to read without a tokenizer."""
    folder = source.parent
    return FileToRead(
        path=source,
        output_path=folder / "out",
        runs_path=folder / "runs",
        name=name,
        tokenizer=None,
        max_tokens=None,
    )


def read(now: datetime = NOW) -> bool:
    return run_due_work(get_kinds()[readings.READ], clock=lambda: now) > 0


def seen(upload: Upload) -> Upload:
    return Upload.objects.get(pk=upload.pk)


def found(upload: Upload) -> dict[str, Any]:
    """What was found in a file about which something is to be decided."""
    reading: Any = seen(upload).reading
    return reading


def decide(upload: Upload, **chosen: Any) -> Upload:
    decide_upload(upload=upload, choices=UploadChoices(**chosen), now=NOW)
    read()
    return seen(upload)


def test_a_file_is_read_in_a_process_of_its_own_and_becomes_a_data_set(
    zone, owner, programs_run_apart
):
    upload = receive(owner, ROW * 3)
    assert (upload.status, Dataset.objects.count()) == (UploadStatus.WAITING, 0)
    assert read()
    done = seen(upload)
    assert (done.status, done.file.name, done.share_read) == ("stored", "", 1.0)
    assert done.dataset is not None
    assert (done.dataset.rows, done.dataset.tokens, done.dataset.zone) == (3, 9, zone)
    with done.dataset.file.open("rb") as file:
        assert file.read() == ROW * 3
    assert not read()


def test_an_empty_file_gets_an_answer_and_leaves_no_trace(zone, owner):
    with pytest.raises(UserError) as refused:
        receive(owner, b"")
    assert refused.value.code == "file_empty"
    assert not Upload.objects.exists()
    assert not default_storage.exists(f"uploads/{owner.pk}")


def test_lines_that_cannot_be_used_are_left_out_only_by_choice(zone, owner):
    upload = receive(owner, ROW + BAD * 60 + ROW)
    read()
    asked = seen(upload)
    assert (asked.status, Dataset.objects.count()) == (UploadStatus.UNDECIDED, 0)
    assert [fault["line"] for fault in found(upload)["errors"]] == list(range(2, 62))
    done = decide(upload, faulty_lines="leave_out")
    assert done.dataset is not None
    assert (done.dataset.rows, done.dataset.faulty_lines) == (2, list(range(2, 62)))


def test_who_wants_to_correct_the_file_has_nothing_stored(
    zone, owner, django_capture_on_commit_callbacks
):
    upload = receive(owner, ROW + BAD)
    read()
    with django_capture_on_commit_callbacks(execute=True):
        done = decide(upload, faulty_lines="refuse")
    assert (done.status, Dataset.objects.count()) == (UploadStatus.REFUSED, 0)
    assert build_upload_error(done).message == (
        "1 line cannot be used. Correct them, or have them left out: faulty_lines=leave_out."
    )
    assert default_storage.listdir(f"uploads/{owner.pk}") == ([], [])


def test_rows_that_are_too_long_are_said_by_line_and_cut_or_left_out_by_choice(zone, owner):
    content = ROW + LONG + ROW + LONG
    upload = receive(owner, content)
    read()
    asked = seen(upload)
    assert asked.status == UploadStatus.UNDECIDED
    assert (found(upload)["long_rows"], found(upload)["long_lines"]) == (2, [2, 4])
    cut = decide(upload, long_rows="cut").dataset
    assert cut is not None
    assert (cut.rows, cut.long_rows, cut.long_lines, cut.faulty_lines) == (4, 2, [2, 4], [])
    other = receive(owner, content)
    read()
    left_out = decide(other, long_rows="leave_out").dataset
    assert left_out is not None
    assert (left_out.rows, left_out.long_rows, left_out.faulty) == (2, 0, 0)
    assert (left_out.left_out_long, left_out.faulty_lines) == (2, [2, 4])
    assert left_out.longest_row_tokens == 3


def test_only_what_is_left_to_choose_is_asked(zone, owner):
    upload = receive(owner, ROW + BAD + LONG)
    read()
    assert decide(upload, faulty_lines="leave_out").status == UploadStatus.UNDECIDED
    done = decide(upload, faulty_lines="leave_out", long_rows="leave_out")
    assert done.dataset is not None
    assert (done.dataset.rows, done.dataset.faulty_lines) == (1, [2, 3])
    with pytest.raises(UserError, match="nothing to decide"):
        decide(upload, faulty_lines="leave_out")


def test_columns_of_a_table_are_named_by_choice(zone, owner):
    table = b"Question,Answer,Id\none,two,1\nthree,four,2\n"
    upload = receive(owner, table, name="faq.csv")
    read()
    asked = seen(upload)
    assert asked.status == UploadStatus.UNDECIDED
    assert found(upload)["columns"] == ["question", "answer", "id"]
    done = decide(upload, columns={"prompt": "question", "completion": "answer"})
    assert done.dataset is not None
    assert (done.dataset.format, done.dataset.rows) == ("completion", 2)
    with done.dataset.file.open("rb") as file:
        assert file.read() == table.replace(b"Question,Answer,Id", b"prompt,completion,id")
    wrong = receive(owner, table, name="faq.csv", choices=UploadChoices(columns={"text": "no"}))
    read()
    assert build_upload_error(seen(wrong)).code == "invalid_columns"


@pytest.mark.parametrize(
    ("content", "choices"),
    [
        (ROW + BAD, UploadChoices(faulty_lines="refuse", long_rows="cut")),
        (ROW + LONG, UploadChoices(faulty_lines="leave_out", long_rows="refuse")),
        (b"a,b\n1,2\n", UploadChoices(faulty_lines="leave_out", long_rows="cut")),
    ],
)
def test_a_program_is_answered_and_never_asked(zone, owner, content, choices):
    upload = receive(
        owner, content, name="a.csv" if b"," in content[:2] else "a.jsonl", choices=choices
    )
    read()
    assert build_upload_error(seen(upload)).code == "invalid_dataset"


#: Chats with a comma too many, and a line that no program can repair.
BROKEN = "".join(vendors.chat(n)[:-1] + ",}\n" for n in range(4)).encode() + b"{no row\n"


def test_a_file_without_one_usable_row_is_counted_as_a_vendor_repairs_it(
    zone, owner, programs_run_apart
):
    upload = receive(owner, BROKEN)
    read()
    made = seen(upload).dataset
    assert made is not None
    assert (made.needs_preparation, made.format) == (True, "chat")
    # A row that is beyond repair is counted beside the others, for people to look at.
    assert (made.rows, made.faulty, made.faulty_lines) == (4, 1, [])
    assert made.tokens == made.repaired_tokens > 0
    assert [error["line"] for error in made.errors] == [1, 2, 3, 4, 5]
    with made.file.open("rb") as file:
        assert file.read() == BROKEN
    # Another zone counts the same rows with its own tokenizer.
    DatasetTokens.objects.all().delete()
    assert ensure_dataset_tokens(dataset=made, zone=zone).tokens == made.tokens


#: Rows of which the program knows no key, with a text beside what is asked and told.
FOREIGN = "".join(
    json.dumps({"frage": f"Was kostet {n}?", "antwort": f"{n} Franken.", "notiz": "In aller Eile."})
    + "\n"
    for n in range(3)
).encode()
SAID = {"frage": "prompt", "antwort": "completion", "notiz": "context"}


def test_rows_of_unknown_keys_are_asked_about_and_lose_none_of_them(zone, owner):
    upload = receive(owner, FOREIGN)
    read()
    assert seen(upload).status == UploadStatus.UNDECIDED
    assert found(upload)["keys"] == ["frage", "antwort", "notiz"]
    made = decide(upload, roles=SAID).dataset
    assert made is not None
    assert (made.needs_preparation, made.rows, made.roles) == (True, 3, SAID)
    with made.file.open("rb") as file:
        assert file.read() == FOREIGN
    DatasetTokens.objects.all().delete()
    assert ensure_dataset_tokens(dataset=made, zone=zone).tokens == made.tokens > 0
    # What was said is what is planned with.
    plan = request_plan(dataset=made, zone=zone, wish=PreparationWish(), now=NOW)
    assert plan.asked["roles"] == SAID


@pytest.mark.parametrize("roles", [{}, {"frage": "prompt", "antwort": "completion"}])
def test_a_program_is_told_the_keys_and_no_text_goes_that_nobody_placed(zone, owner, roles):
    choices = UploadChoices(faulty_lines="leave_out", long_rows="cut", roles=roles)
    upload = receive(owner, FOREIGN, choices=choices)
    read()
    error = build_upload_error(seen(upload))
    assert (error.code, error.extra["columns"]) == ("invalid_dataset", list(SAID))
    assert not Dataset.objects.exists()


def test_a_file_that_no_program_can_repair_is_refused(zone, owner):
    upload = receive(owner, b"{no row\n" * 3, choices=UploadChoices(faulty_lines="leave_out"))
    read()
    assert "can repair none" in build_upload_error(seen(upload)).message
    upload = receive(owner, BROKEN, choices=UploadChoices(faulty_lines="refuse"))
    read()
    assert build_upload_error(seen(upload)).message == "No line of the file is a usable row."
    assert not Dataset.objects.exists()


def test_short_rows_do_not_make_long_ones_cheap_that_are_still_to_be_repaired(zone, owner):
    long = json.loads(vendors.chat(1))
    long["messages"][0]["content"] = " ".join(f"word{n}" for n in range(120))
    content = (vendors.chat(2) + "\n" + json.dumps(long)[:-1] + ",}\n").encode()
    upload = receive(owner, content, choices=UploadChoices(faulty_lines="leave_out"))
    read()
    made = seen(upload).dataset
    assert made is not None
    assert (made.rows, made.faulty, made.needs_preparation) == (1, 1, False)
    assert measure_growth(made) == Fraction(made.repaired_tokens, made.tokens) > 2


def test_words_that_are_no_choice_are_refused(zone, owner):
    for choices in (
        UploadChoices(faulty_lines="x"),
        UploadChoices(long_rows="leave"),
        UploadChoices(roles={"frage": "poem"}),
    ):
        with pytest.raises(UserError) as refused:
            receive(owner, ROW, choices=choices)
        assert refused.value.code == "invalid_choice"
    assert not Upload.objects.exists()


def test_a_file_that_no_worker_survives_is_refused_as_our_fault(zone, owner, monkeypatch):
    def die(*_: Any, **__: Any) -> None:
        raise MarketFault("the reader ended")

    monkeypatch.setattr(readings, "read_in_process", die)
    upload = receive(owner, ROW)
    now = NOW
    for _ in range(3):
        assert read(now)
        now += timedelta(minutes=10)
    assert not read(now)
    error = build_upload_error(seen(upload))
    assert (error.code, error.status) == ("dataset_unreadable", 500)


def test_the_same_request_again_is_the_same_upload(zone, owner):
    first = receive(owner, ROW, key="k")
    assert receive(owner, ROW, key="k").pk == first.pk
    with pytest.raises(UserError) as refused:
        receive(owner, ROW * 2, key="k")
    assert refused.value.code == "idempotency_key_reused"
    assert receive(builders.organisation(), ROW * 2, key="k").pk != first.pk
    bad = receive(owner, BAD, key="bad")
    while read():
        pass
    # A file that was refused may be put right and sent under its key again.
    assert receive(owner, ROW, key="bad").pk != bad.pk


def test_an_organisation_stores_so_much_and_no_more(zone, owner, settings):
    settings.DATASET_BYTES_PER_ORGANISATION = 2 * len(ROW)
    receive(owner, ROW)
    read()
    receive(owner, ROW)
    with pytest.raises(UserError) as refused:
        receive(owner, b"x")
    assert (refused.value.code, refused.value.status) == ("storage_full", 413)
    assert Upload.objects.count() == 2
    receive(builders.organisation(), ROW)
    data = Dataset.objects.get()
    delete_dataset(dataset=data, asked_by=None, now=NOW)
    with pytest.raises(UserError):
        receive(owner, ROW)
    Dataset.everything.filter(pk=data.pk).update(file="")
    receive(owner, ROW)


def test_what_was_announced_in_parts_takes_room(zone, owner, settings):
    settings.DATASET_BYTES_PER_ORGANISATION = 2 * len(ROW)
    terms = {"organisation": owner, "created_by": None, "name": "a", "now": NOW}
    upload = parts.open_parted_upload(size=len(ROW), **terms)
    with pytest.raises(UserError) as refused:
        receive(owner, ROW + b"x")
    assert refused.value.code == "storage_full"
    receive(owner, ROW)
    part = parts.add_part(upload=upload, content=io.BytesIO(ROW), now=NOW)
    choices = UploadChoices()
    whole = parts.complete_parted_upload(
        upload=upload, part_ids=[part.pk], md5=None, choices=choices, clock=lambda: NOW
    )
    assert whole.bytes == len(ROW)
    with pytest.raises(UserError):
        receive(owner, b"x")


@pytest.mark.django_db(transaction=True)
def test_two_files_at_once_do_not_both_take_the_last_room(zone, owner, settings, monkeypatch):
    settings.DATASET_BYTES_PER_ORGANISATION = 100
    both_looked, seen = Barrier(2, timeout=30), local()

    def look(*args, **options):
        intake_check(*args, **options)
        if not hasattr(seen, "once"):
            seen.once = both_looked.wait()

    intake_check = intake.check_room
    monkeypatch.setattr(intake, "check_room", look)
    outcomes = at_once([lambda: receive(owner, b"x" * 60)] * 2)
    refused = [outcome.code for outcome in outcomes if isinstance(outcome, UserError)]
    assert refused == ["storage_full"]
    kept = Upload.objects.get()
    assert default_storage.listdir(f"uploads/{owner.pk}")[1] == [Path(kept.file.name).name]


@pytest.mark.django_db(transaction=True)
def test_files_announced_at_once_share_one_room(owner, settings, monkeypatch):
    settings.DATASET_BYTES_PER_ORGANISATION = 100
    check, looked = parts.check_room, Barrier(2)

    def look(*args, **options):
        check(*args, **options)
        # Who comes second waits for the first; without a lock both stand here.
        with suppress(BrokenBarrierError):
            looked.wait(0.3)

    monkeypatch.setattr(parts, "check_room", look)
    terms = {"organisation": owner, "created_by": None, "name": "a", "size": 60, "now": NOW}
    outcomes = at_once([lambda: parts.open_parted_upload(**terms)] * 2)
    assert [one.code for one in outcomes if isinstance(one, UserError)] == ["storage_full"]
    assert PartedUpload.objects.get().bytes == 60


def test_what_nobody_decided_is_forgotten_after_a_day(zone, owner):
    upload = receive(owner, ROW + BAD)
    path = upload.file.name
    read()
    waiting = receive(owner, ROW)
    assert sweep_uploads(now=NOW + intake.UPLOAD_LIFE - timedelta(seconds=1)) == 0
    assert default_storage.exists(path)
    assert sweep_uploads(now=NOW + intake.UPLOAD_LIFE) == 1
    assert not default_storage.exists(path)
    assert list(Upload.objects.all()) == [waiting]


def test_a_file_that_takes_too_long_to_parse_is_stopped(tmp_path):
    source = tmp_path / "slow.jsonl"
    source.write_bytes(
        b'{"prompt": "a", "completion": "b", "x": [' + b"[],[]," * 600_000 + b"0]}\n"
    )
    file = describe(source, name="slow.jsonl")
    with pytest.raises(UserError) as refused:
        read_in_process(file, on_progress=lambda rows, share: None, wall_s=0.0)
    assert refused.value.code == "dataset_too_complex"


def test_a_reader_that_fails_by_itself_is_our_fault(tmp_path, monkeypatch):
    monkeypatch.setattr(reading_process, "MEMORY_BYTES", "much")
    source = tmp_path / "a.jsonl"
    source.write_bytes(ROW)
    file = describe(source, name="a")
    with pytest.raises(MarketFault):
        read_in_process(file, on_progress=lambda rows, share: None)


def test_the_reader_knows_none_of_the_markets_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "hidden")
    given: dict[str, Any] = {}

    class Stop(Exception):
        pass

    def start(*_: Any, env: dict[str, str], **__: Any) -> None:
        given.update(env)
        raise Stop

    monkeypatch.setattr(reading_process.subprocess, "Popen", start)
    source = tmp_path / "a.jsonl"
    source.write_bytes(ROW)
    file = describe(source, name="a")
    with pytest.raises(Stop):
        read_in_process(file, on_progress=lambda rows, share: None)
    assert "SECRET_KEY" not in given
    assert "DATABASE_URL" not in given


def test_a_file_that_cannot_be_fetched_waits_and_no_attempt_is_counted(
    bucket, zone, owner, settings
):
    upload = receive(owner, ROW, zone=zone)
    assert len(list_objects(bucket)) == 1
    use_bucket(settings, bucket | {"bucket_name": "away"})
    for number in range(4):
        assert read(NOW + number * readings.STORAGE_ASKED_AGAIN)
        attempts = DurableWork.objects.get().attempts
        assert (seen(upload).status, attempts) == (UploadStatus.WAITING, 0)
    use_bucket(settings, bucket)
    assert read(NOW + 4 * readings.STORAGE_ASKED_AGAIN)
    assert found(upload)["rows"] == 1
    dataset = Dataset.objects.get()
    with dataset.file.open("rb") as file:
        assert file.read() == ROW


def test_a_file_that_cannot_be_stored_is_refused_and_leaves_no_trace(bucket, zone, owner, settings):
    use_bucket(settings, bucket | {"bucket_name": "away"})
    with pytest.raises(StorageUnavailable):
        receive(owner, ROW, zone=zone)
    assert not Upload.objects.exists()
