"""Events of jobs that were settled long ago are in files, and nobody sees a difference."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from django.core.files.storage import default_storage
from django.core.management import CommandError, call_command
from django.db import DatabaseError, models, transaction
from django.test import Client

from marketplace.api.callers import ORGANISATION_HEADER
from marketplace.api.openai.job_events import list_job_log
from marketplace.auction.settlement import settle_finished
from marketplace.auction.witnesses.keys import SigningKey, load_signing_key
from marketplace.common import archive_files
from marketplace.common.archive_files import ArchiveUnreadable, list_lost_files
from marketplace.common.errors import Conflict
from marketplace.config.database_roles import list_rights
from marketplace.jobs import event_files
from marketplace.jobs.event_files import archive_events, read_events
from marketplace.jobs.models import EventFile, EventKind, Job, JobEvent
from marketplace.jobs.services import add_job_event
from marketplace.live.snapshots import load_job_snapshot
from marketplace.web.presenters.progress import find_moves
from scheduler.public_log.canonical_json import serialize_canonical
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from tests.pages import read_text
from tests.warm_builders import finished, live_node

pytestmark = pytest.mark.django_db
SETTLED_AT = NOW + timedelta(seconds=60)
LATER = NOW + timedelta(days=100)


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def key(settings: Any, tmp_path: Any) -> SigningKey:
    settings.MEDIA_ROOT = tmp_path / "media"
    settings.MARKET_KEY_DIR = tmp_path / "keys"
    return load_signing_key(now=NOW)


@pytest.fixture
def jobs(key: SigningKey) -> list[Job]:
    """Two settled jobs, each of a zone of its own."""
    owner = builders.organisation(usd="20")
    made = []
    for _ in range(2):
        zone = market.zone()
        live_node(zone)
        made.append(finished(owner, zone))
    assert settle_finished(now=SETTLED_AT) == 2
    assert JobEvent.objects.filter(job=made[0]).count() > 2
    return list(Job.objects.order_by("pk"))


def archive(key: SigningKey, *, before: Any = LATER) -> event_files.ArchivedEvents:
    return archive_events(before=before, public_key=key.public_key, sign=key.sign, now=LATER)


def read_all(job: Job) -> dict[str, Any]:
    """What each reader of a job's events gives."""
    boss = builders.owner_of(job.organisation)
    client = Client(headers={ORGANISATION_HEADER: job.organisation_id})
    client.force_login(boss)
    events = [
        {field.attname: getattr(event, field.attname) for field in JobEvent._meta.concrete_fields}
        for event in read_events(job)
    ]
    log = list_job_log(job, after=None, limit=100)
    return {
        "events": events,
        "later": [event.seq for event in read_events(job, after_seq=events[0]["seq"], most=2)],
        "snapshot": load_job_snapshot(watcher=boss, job_id=job.pk)["events"],
        "log": log,
        "page of it": list_job_log(job, after=log[0].id, limit=2),
        "moves": find_moves(job, {}),
        "page": [e["message"] for e in client.get(f"/jobs/{job.pk}").context["events"]],
        "api": client.get(f"/api/jobs/{job.pk}/events?limit=3").json(),
    }


def test_every_reader_gets_the_same_from_the_file(jobs: list[Job], key: SigningKey) -> None:
    before, events = [read_all(job) for job in jobs], JobEvent.objects.count()
    assert len(before[0]["api"]["data"]) == 3
    assert archive(key, before=SETTLED_AT).jobs == 0
    done = archive(key)
    assert (done.files, done.jobs, done.events) == (1, 2, events)
    assert done.bytes == EventFile.objects.get().bytes < 150 * events
    assert not JobEvent.objects.exists()
    assert [read_all(job) for job in jobs] == before
    assert archive(key).files == 0
    assert list_lost_files(EventFile) == []


def test_a_page_of_a_job_parses_no_other_jobs_events(
    jobs: list[Job], key: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = jobs
    add_job_event(
        job=first, kind=EventKind.REFUNDED, message=f"As for {second.pk}.", data={}, now=SETTLED_AT
    )
    wanted = read_all(second)
    events = JobEvent.objects.filter(job=second).count()
    assert archive(key).files == 1
    parsed: list[str] = []
    true_parse = event_files._parse_line

    def parse(line: str) -> JobEvent:
        parsed.append(line)
        return true_parse(line)

    monkeypatch.setattr(event_files, "_parse_line", parse)
    assert len(read_events(second)) == events
    # And the one that names it, which is not shown.
    assert len(parsed) == events + 1
    assert read_all(second) == wanted


def test_what_happens_later_is_a_row_beside_the_file(jobs: list[Job], key: SigningKey) -> None:
    before = [event.seq for event in read_events(jobs[0])]
    archive(key)
    add_job_event(job=jobs[0], kind=EventKind.REFUNDED, message="Two dollars.", now=LATER)
    assert [event.seq for event in read_events(jobs[0])][:-1] == before
    assert read_all(jobs[0])["page"][0] == "Two dollars."
    assert list_job_log(jobs[0], after=None, limit=1)[0].message == "Two dollars."
    assert archive(key).files == 0
    assert JobEvent.objects.count() == 1


def test_files_have_some_jobs_each(
    jobs: list[Job], key: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [read_all(job) for job in jobs]
    monkeypatch.setattr(event_files, "JOBS_OF_FILE", 1)
    assert archive(key).files == 2
    assert [read_all(job) for job in jobs] == before


@pytest.mark.parametrize("step", ["save_for_good", "_read_file", "_replace_rows", "save", "delete"])
def test_one_that_is_killed_anywhere_leaves_all_or_nothing(
    jobs: list[Job], key: SigningKey, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    before, events = [read_all(job) for job in jobs], JobEvent.objects.count()

    def die(*_args: Any, **_options: Any) -> None:
        raise Killed

    of = {"save": EventFile, "delete": models.QuerySet, "save_for_good": archive_files}.get(
        step, event_files
    )
    with monkeypatch.context() as patch:
        patch.setattr(of, step, die)
        with pytest.raises(Killed):
            archive(key)
    assert (JobEvent.objects.count(), EventFile.objects.count()) == (events, 0)
    assert not Job.objects.exclude(event_file=None).exists()
    assert archive(key).events == events
    assert [read_all(job) for job in jobs] == before


def test_an_event_that_comes_meanwhile_is_not_lost(
    jobs: list[Job], key: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = event_files._replace_rows

    def add_and_replace(*args: Any) -> None:
        add_job_event(job=jobs[0], kind=EventKind.REFUNDED, message="Now.", now=LATER)
        replace(*args)

    monkeypatch.setattr(event_files, "_replace_rows", add_and_replace)
    archive(key)
    assert JobEvent.objects.get().message == "Now."
    assert read_events(jobs[0])[-1].message == "Now."


def test_a_storage_that_keeps_something_else_costs_no_row(
    jobs: list[Job], key: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, save = JobEvent.objects.count(), default_storage.save

    def lie(name: str, content: Any, **options: Any) -> str:
        stored = save(name, content, **options)
        path = Path(default_storage.path(stored))
        path.write_bytes(path.read_bytes()[:-1])
        return stored

    monkeypatch.setattr(default_storage, "save", lie)
    with pytest.raises(ArchiveUnreadable, match="is not what was archived"):
        archive(key)
    assert (JobEvent.objects.count(), EventFile.objects.count()) == (events, 0)


def test_a_second_run_of_the_same_jobs_changes_nothing(
    jobs: list[Job], key: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = event_files._replace_rows

    def replace_twice(file: EventFile, *args: Any) -> None:
        replace(file, *args)
        file.pk = None
        replace(file, *args)

    monkeypatch.setattr(event_files, "_replace_rows", replace_twice)
    with pytest.raises(Conflict, match="changed while they were archived"):
        archive(key)
    assert EventFile.objects.count() == 1
    assert not JobEvent.objects.exists()


def test_a_page_does_without_a_file_that_is_lost_and_a_program_is_refused(
    jobs: list[Job], key: SigningKey
) -> None:
    client = Client()
    client.force_login(builders.owner_of(jobs[0].organisation))
    assert "Archived on" not in read_text(client.get(f"/jobs/{jobs[0].pk}"))
    archive(key)
    file = EventFile.objects.get()
    for tab in ("", "/events"):
        text = read_text(client.get(f"/jobs/{jobs[0].pk}{tab}"))
        assert re.search(r"Archived on [^.]*: the events up to then are read from a file", text)
    default_storage.delete(file.file.name)
    answer = client.get(f"/jobs/{jobs[0].pk}")
    assert answer.context["events"] == []
    text = read_text(answer)
    assert re.search(r"Archived on [^.]*: .* a file that cannot be read now\.", text)
    assert "Nothing has happened yet." not in text
    with pytest.raises(ArchiveUnreadable):
        read_events(jobs[0])
    assert list_lost_files(EventFile) == [file.file.name]
    said = StringIO()
    with pytest.raises(CommandError):
        call_command("doctor", stdout=said)
    assert f"BAD  Archive: 1 files are lost, such as {file.file.name}" in said.getvalue()


def test_the_manifest_is_signed_and_nobody_changes_what_is_archived(
    jobs: list[Job], key: SigningKey
) -> None:
    archive(key)
    file = EventFile.objects.get()
    with file.manifest.open() as stored:
        manifest = json.loads(stored.read())
    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(manifest["public_key"]))
    signature = bytes.fromhex(manifest.pop("signature"))
    public.verify(signature, serialize_canonical(manifest).encode())
    assert manifest["sha256"] == file.sha256
    assert list_rights(EventFile) == list_rights(JobEvent) == ["INSERT"]
    for change in (
        lambda: EventFile.objects.all().delete(),
        lambda: Job.objects.update(event_file=None),
        # One that was read before, and is written whole.
        jobs[0].save,
    ):
        with pytest.raises(DatabaseError, match="Cannot"), transaction.atomic():
            change()
