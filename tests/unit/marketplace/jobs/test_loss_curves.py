"""A job's measurements become one file when its money is settled, and nobody sees a difference."""

from __future__ import annotations

import io
import json
import random
import zipfile
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.core.files.storage import FileSystemStorage, default_storage
from django.db import connection
from django.test import Client

from marketplace.accounts.erasure import ERASE, GRACE
from marketplace.accounts.models import Subject
from marketplace.accounts.own_data import build_archive
from marketplace.api.openai.files import OpenAIFileSerializer
from marketplace.api.openai.job_events import list_job_log
from marketplace.auction.models import Bid
from marketplace.auction.settlement import settle_finished
from marketplace.common.durable.kinds import get_kinds
from marketplace.common.durable.run import run_due_work
from marketplace.common.errors import StorageUnavailable
from marketplace.jobs.loss_curves import ARCHIVE, ARCHIVED_AFTER, read_points
from marketplace.jobs.models import Job, LossCurve, MetricPoint
from marketplace.jobs.selectors import load_metric_series
from marketplace.jobs.services import delete_job
from marketplace.live.snapshots import load_job_snapshot
from marketplace.web.presenters.progress import serialize_plan
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from tests.durable_work import do_work
from tests.warm_builders import finished, live_node

pytestmark = pytest.mark.django_db
SETTLED_AT = NOW + timedelta(seconds=60)
ARCHIVED_AT = SETTLED_AT + ARCHIVED_AFTER
POINTS = 300


@pytest.fixture(autouse=True)
def files(settings: Any, tmp_path: Any) -> None:
    settings.MEDIA_ROOT = tmp_path


@pytest.fixture
def job() -> Job:
    """A settled job whose node once began some steps again."""
    zone = market.zone()
    live_node(zone)
    made = finished(builders.organisation(usd="20"), zone)
    draw, held = random.Random(1), made.slices.get()
    MetricPoint.objects.bulk_create(
        MetricPoint(
            job=made,
            slice=held,
            seq=number,
            at=NOW + timedelta(seconds=number, microseconds=draw.randrange(10**6)),
            step=number if number < 200 else number - 20,
            epoch=number / 100,
            train_loss=draw.uniform(0.5, 4.0),
            valid_loss=draw.uniform(0.5, 4.0) if number % 10 == 0 else None,
            learning_rate=1e-3 * (1 - number / POINTS),
            grad_norm=draw.uniform(0.1, 2.0),
            tokens_per_s=round(draw.uniform(900, 1100), 1),
            samples_per_s=round(draw.uniform(9, 11), 2),
            memory_gb=7.25,
            log=[f"Line {number} of Ada's"] if number % 50 == 0 else [],
        )
        for number in range(1, POINTS + 1)
    )
    assert settle_finished(now=SETTLED_AT) == 1
    made.refresh_from_db()
    return made


def list_files() -> list[str]:
    try:
        return default_storage.listdir(f"jobs/{Job.objects.get().pk}/loss_curves")[1]
    except FileNotFoundError:
        return []


def read_all(job: Job) -> dict[str, Any]:
    """What each reader of the measurements gives."""
    boss = builders.owner_of(job.organisation)
    log = list_job_log(job, after=None, limit=400)
    parts = build_archive(subject=Subject.ORGANISATION, subject_id=job.organisation_id)
    with zipfile.ZipFile(io.BytesIO(b"".join(parts))) as archive:
        lines = archive.read(f"measurements/{job.pk}.jsonl").splitlines()
    return {
        "points": read_points(job.pk),
        "later": read_points(job.pk, after=read_points(job.pk)[-5].id),
        "newest": read_points(job.pk, newest=7),
        "series": load_metric_series(job),
        "snapshot": load_job_snapshot(watcher=boss, job_id=job.pk),
        "log": log,
        "page of it": list_job_log(job, after=log[150].id, limit=20),
        "own": [json.loads(line) for line in lines],
    }


def test_every_reader_gets_the_same_from_the_file(job: Job) -> None:
    before = read_all(job)
    assert [len(before[name]) for name in ("points", "later", "newest")] == [POINTS, 4, 7]
    assert do_work(ARCHIVE, now=ARCHIVED_AT - timedelta(seconds=1)) == 0
    assert do_work(ARCHIVE, now=ARCHIVED_AT) == 1
    assert not MetricPoint.objects.exists()
    curve = LossCurve.objects.get()
    assert (curve.job_id, curve.points, curve.archived_at) == (job.pk, POINTS, ARCHIVED_AT)
    assert curve.bytes == default_storage.size(curve.file.name) < 100 * POINTS
    assert read_all(job) == before
    assert do_work(ARCHIVE, now=ARCHIVED_AT + ARCHIVED_AFTER) == 0


def test_a_job_that_is_being_deleted_is_left_to_its_deletion(job: Job) -> None:
    delete_job(job=job, asked_by=None, now=ARCHIVED_AT)
    assert do_work(ARCHIVE, now=ARCHIVED_AT) == 1
    assert (list_files(), LossCurve.objects.count()) == ([], 0)
    assert do_work(ERASE, now=ARCHIVED_AT + GRACE) == 1
    assert read_points(job.pk) == []


def test_of_a_job_that_is_deleted_meanwhile_no_file_stays(
    job: Job, django_capture_on_commit_callbacks: Any
) -> None:
    kind = get_kinds()[ARCHIVE]

    def store_and_lose(*args: Any) -> Any:
        stored = kind.do(*args)
        assert len(list_files()) == 1
        delete_job(job=job, asked_by=None, now=ARCHIVED_AT)
        return stored

    with django_capture_on_commit_callbacks(execute=True):
        assert run_due_work(replace(kind, do=store_and_lose), clock=lambda: ARCHIVED_AT) == 1
    assert (list_files(), LossCurve.objects.count()) == ([], 0)
    assert MetricPoint.objects.count() == POINTS


def test_the_file_goes_with_the_job(job: Job) -> None:
    do_work(ARCHIVE, now=ARCHIVED_AT)
    assert len(list_files()) == 1
    delete_job(job=job, asked_by=None, now=ARCHIVED_AT)
    assert do_work(ERASE, now=ARCHIVED_AT + GRACE) == 1
    assert (list_files(), LossCurve.objects.count()) == ([], 0)
    assert read_points(job.pk) == []


@pytest.mark.parametrize("error", [StorageUnavailable("It is away."), FileNotFoundError("lost")])
def test_pages_do_without_a_curve_that_cannot_be_read(
    job: Job, error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    do_work(ARCHIVE, now=ARCHIVED_AT)
    cache.clear()
    boss, opened = builders.owner_of(job.organisation), []

    def open_nothing(*_: Any) -> Any:
        opened.append(1)
        raise error

    page = Client()
    page.force_login(boss)
    later = Job.objects.get()
    later.created_at += timedelta(days=2)
    with monkeypatch.context() as patched:
        patched.setattr(FileSystemStorage, "_open", open_nothing)
        snapshot = load_job_snapshot(watcher=boss, job_id=job.pk)
        assert (snapshot["points"], snapshot["log"], snapshot["seq"]) == ([], [], job.seq)
        assert page.get(f"/jobs/{job.pk}?tab=metrics").status_code == 200
        earlier = serialize_plan(Bid.objects.get(), later, {})["earlier"]
        assert earlier == {"name": job.name, "loss": []}
        assert {item.type for item in list_job_log(job, after=None, limit=400)} == {"message"}
        assert [OpenAIFileSerializer.show(job)["bytes"] for _ in range(2)] == [0, 0]
        with pytest.raises(type(error)):
            load_metric_series(job)
    # A list of files asks a storage that is away once.
    assert len(opened) == (7 if isinstance(error, FileNotFoundError) else 6)
    cache.clear()
    assert OpenAIFileSerializer.show(job)["bytes"] > POINTS


def test_a_snapshot_asks_the_storage_after_its_transaction(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    do_work(ARCHIVE, now=ARCHIVED_AT)
    outside, seen = len(connection.savepoint_ids), []
    open_file = FileSystemStorage._open  # pyright: ignore[reportAttributeAccessIssue]

    def open_and_look(*args: Any) -> Any:
        seen.append(len(connection.savepoint_ids))
        return open_file(*args)

    monkeypatch.setattr(FileSystemStorage, "_open", open_and_look)
    load_job_snapshot(watcher=builders.owner_of(job.organisation), job_id=job.pk)
    assert seen == [outside]


def test_a_file_that_no_row_names_goes_with_the_job(job: Job) -> None:
    kind = get_kinds()[ARCHIVE]

    def die(*args: Any) -> Any:
        kind.do(*args)
        raise SystemExit

    with pytest.raises(SystemExit):
        run_due_work(replace(kind, do=die), clock=lambda: ARCHIVED_AT)
    assert do_work(ARCHIVE, now=ARCHIVED_AT + kind.lease) == 1
    assert (len(list_files()), LossCurve.objects.count()) == (2, 1)
    delete_job(job=job, asked_by=None, now=ARCHIVED_AT + kind.lease)
    # Files go first, and readers of the job find it without.
    default_storage.delete(LossCurve.objects.get().file.name)
    assert load_metric_series(job) == []
    assert do_work(ERASE, now=ARCHIVED_AT + kind.lease + GRACE) == 1
    assert (list_files(), LossCurve.objects.count()) == ([], 0)


def test_rows_that_changed_meanwhile_are_archived_later(
    job: Job, django_capture_on_commit_callbacks: Any
) -> None:
    kind = get_kinds()[ARCHIVE]

    def store_and_add(*args: Any) -> Any:
        stored = kind.do(*args)
        MetricPoint.objects.create(
            job=job, slice=job.slices.get(), seq=POINTS + 1, at=NOW, step=POINTS, epoch=3.0
        )
        return stored

    with django_capture_on_commit_callbacks(execute=True):
        assert run_due_work(replace(kind, do=store_and_add), clock=lambda: ARCHIVED_AT) == 1
    assert (list_files(), LossCurve.objects.count()) == ([], 0)
    assert do_work(ARCHIVE, now=ARCHIVED_AT + timedelta(hours=1)) == 1
    assert LossCurve.objects.get().points == len(read_points(job.pk)) == POINTS + 1
