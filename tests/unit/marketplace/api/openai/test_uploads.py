"""Files in parts with OpenAI's own client."""

from __future__ import annotations

import concurrent.futures
import hashlib
from datetime import timedelta
from io import BytesIO

import openai
import pytest
from django.db import connection, transaction

from marketplace.api.openai.files import CHOICES
from marketplace.common import clock
from marketplace.common.errors import Conflict
from marketplace.jobs.models import Dataset, PartedUpload, Upload, UploadPart
from marketplace.jobs.services import parts as parted
from marketplace.jobs.services import sweep_parted_uploads
from tests import builders
from tests.unit.marketplace.api.client import ROWS

pytestmark = pytest.mark.django_db(transaction=True)

SIZE = len(ROWS)


@pytest.fixture(autouse=True)
def media(settings, tmp_path, tokenizer_zone):
    settings.MEDIA_ROOT = tmp_path / "media"
    return settings.MEDIA_ROOT


def begin(client, size=SIZE):
    return client.uploads.create(
        filename="rows.jsonl", purpose="fine-tune", bytes=size, mime_type="application/jsonl"
    )


def send(client, upload, data):
    return client.uploads.parts.create(upload.id, data=data).id


def test_parts_in_any_order_become_a_data_set_once(client, media):
    upload = begin(client)
    assert (upload.status, upload.bytes) == ("pending", len(ROWS))
    second = send(client, upload, ROWS[1000:])
    # Its answer was lost, and it came again.
    send(client, upload, ROWS[:1000])
    first = send(client, upload, ROWS[:1000])
    md5 = hashlib.md5(ROWS, usedforsecurity=False).hexdigest()
    for _ in range(2):
        done = client.uploads.complete(upload.id, part_ids=[first, second], md5=md5)
        assert (done.status, done.file.status) == ("completed", "processed")
    assert client.files.content(done.file.id).read() == ROWS
    assert Dataset.objects.get().rows == 100
    assert Upload.objects.count() == 1
    assert not UploadPart.objects.exists()
    assert list((media / "uploads").rglob("part_*")) == []
    with pytest.raises(openai.ConflictError) as refused:
        send(client, upload, b"more")
    assert refused.value.code == "upload_not_pending"


def test_the_client_cuts_a_large_file_by_itself(client):
    done = client.uploads.upload_file_chunked(
        file=ROWS,
        filename="rows.jsonl",
        bytes=len(ROWS),
        mime_type="text/plain",
        purpose="fine-tune",
        part_size=999,
    )
    assert done.file is not None
    assert client.files.content(done.file.id).read() == ROWS


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (lambda parts: {"part_ids": parts[:1]}, "wrong_size", "The parts have 1,000 bytes"),
        (lambda parts: {"part_ids": [parts[0], parts[0]]}, "unknown_part", "A part is named twice"),
        (lambda parts: {"part_ids": ["part_x"]}, "unknown_part", "no such part: 'part_x'"),
        (lambda parts: {"part_ids": parts, "md5": "0" * 32}, "file_damaged", "another MD5 hash"),
    ],
)
def test_what_is_not_the_announced_file_is_refused_and_can_be_mended(
    client, media, change, code, words
):
    upload = begin(client)
    parts = [send(client, upload, ROWS[:1000]), send(client, upload, ROWS[1000:])]
    with pytest.raises(openai.BadRequestError, match=words) as refused:
        client.uploads.complete(upload.id, **change(parts))
    assert refused.value.code == code
    assert not Upload.objects.exists()
    assert len([path for path in media.rglob("*") if path.is_file()]) == 2
    assert client.uploads.complete(upload.id, part_ids=parts).status == "completed"


def test_parts_are_bounded_and_are_text(client, settings):
    settings.UPLOAD_BYTES_MAX = 5000
    with pytest.raises(openai.APIStatusError) as refused:
        begin(client, size=5001)
    assert (refused.value.status_code, refused.value.code) == (413, "file_too_large")
    upload = begin(client, size=10)
    with pytest.raises(openai.BadRequestError, match="NUL"):
        send(client, upload, b"a\0b")
    with pytest.raises(openai.BadRequestError):
        send(client, upload, b"")
    settings.UPLOAD_BYTES_MAX = 10**6
    for _ in range(parted.PENDING_MAX - 1):
        begin(client, size=1)
    with pytest.raises(openai.RateLimitError) as refused:
        client.with_options(max_retries=0).uploads.create(
            filename="x", purpose="fine-tune", bytes=1, mime_type="text/plain"
        )
    assert refused.value.code == "too_many_uploads"


def test_more_than_twice_what_was_announced_is_refused(client, monkeypatch):
    monkeypatch.setattr(parted, "PART_BYTES_MAX", 5)
    upload = begin(client, size=5)
    for _ in range(3):
        send(client, upload, b"12345")
    with pytest.raises(openai.APIStatusError) as refused:
        send(client, upload, b"1")
    assert refused.value.status_code == 413


def test_parts_that_come_at_once_are_not_more_than_others(client, media, monkeypatch):
    monkeypatch.setattr(parted, "PART_BYTES_MAX", 100)
    upload, lock = begin(client, size=100), parted.lock_parted_upload
    rivals = [b"x" * 100] * 3

    def lock_late(upload_id):
        # Others came after the first look.
        for content in rivals:
            UploadPart.objects.create(
                upload_id=upload_id, bytes=len(content), created_at=clock.now()
            )
        return lock(upload_id)

    monkeypatch.setattr(parted, "lock_parted_upload", lock_late)
    with pytest.raises(openai.APIStatusError) as refused:
        send(client, upload, b"y" * 100)
    assert (refused.value.status_code, refused.value.code) == (413, "file_too_large")
    assert list(media.rglob("part_*")) == []


def test_cancelled_and_late_uploads_leave_nothing(client, media):
    upload = begin(client)
    send(client, upload, b"x")
    for _ in range(2):
        assert client.uploads.cancel(upload.id).status == "cancelled"
    late = begin(client)
    send(client, late, b"x")
    sweep_parted_uploads(now=clock.now() + parted.PARTED_LIFE + timedelta(seconds=1))
    assert [row.status for row in PartedUpload.objects.order_by("pk")] == ["cancelled", "expired"]
    assert not UploadPart.objects.exists()
    assert [path for path in media.rglob("*") if path.is_file()] == []


def test_uploads_of_others_are_not_there(client, connect):
    upload = begin(client)
    other = connect(builders.organisation())
    for call in (
        lambda: send(other, upload, b"x"),
        lambda: other.uploads.cancel(upload.id),
        lambda: other.uploads.complete(upload.id, part_ids=["part_x"]),
    ):
        with pytest.raises(openai.NotFoundError):
            call()


def complete(upload_id, *parts, clock=clock.now):
    upload = PartedUpload.objects.get(pk=upload_id)
    return parted.complete_parted_upload(
        upload=upload, part_ids=parts, md5=None, choices=CHOICES, clock=clock
    )


def test_two_completions_at_once_give_one_file_and_the_row_is_free_meanwhile(
    client, media, monkeypatch
):
    upload = begin(client)
    part = send(client, upload, ROWS)
    seen = []
    store = parted.store_upload

    def store_while_another_asks(*arguments, **more):
        # Another connection may lock the row, and is sent away at once.
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            seen.append(pool.submit(refuse_another).result(10))
        return store(*arguments, **more)

    def refuse_another():
        try:
            with transaction.atomic():
                PartedUpload.objects.select_for_update(nowait=True).get(pk=upload.id)
            with pytest.raises(Conflict) as refused:
                complete(upload.id, part)
            return refused.value.code
        finally:
            connection.close()

    monkeypatch.setattr(parted, "store_upload", store_while_another_asks)
    whole = complete(upload.id, part)
    assert seen == ["upload_joining"]
    assert complete(upload.id, part) == whole
    assert Upload.objects.count() == 1
    assert len([path for path in media.rglob("*") if path.is_file()]) == 1


def test_a_completion_whose_process_died_is_taken_over_and_its_late_file_is_not(
    client, media, monkeypatch
):
    upload = begin(client)
    part = send(client, upload, ROWS)
    store = parted.store_upload
    wholes = []

    def store_late(draft, _, **more):
        # The claim runs out while the file is read, and another process does all of it.
        monkeypatch.setattr(parted, "store_upload", store)
        late = clock.now() + parted.CLAIM_LIFE
        wholes.append(complete(upload.id, part, clock=lambda: late))
        return store(draft, BytesIO(ROWS), **more)

    monkeypatch.setattr(parted, "store_upload", store_late)
    with pytest.raises(Conflict):
        complete(upload.id, part)
    assert [complete(upload.id, part)] == wholes
    assert Upload.objects.count() == 1
    assert len([path for path in media.rglob("*") if path.is_file()]) == 1


def test_an_upload_whose_process_died_is_completed_later_or_expires(client, media):
    upload = begin(client)
    part = send(client, upload, ROWS)
    rows = PartedUpload.objects.filter(pk=upload.id)
    rows.update(status="joining", claim="claim_dead", claimed_at=clock.now())
    with pytest.raises(openai.ConflictError) as refused:
        client.with_options(max_retries=0).uploads.complete(upload.id, part_ids=[part])
    assert refused.value.code == "upload_joining"
    rows.update(claimed_at=clock.now() - parted.CLAIM_LIFE)
    assert client.uploads.complete(upload.id, part_ids=[part]).status == "completed"
    other = begin(client)
    send(client, other, b"x")
    late = clock.now() + parted.PARTED_LIFE + timedelta(hours=1)
    PartedUpload.objects.filter(pk=other.id).update(
        status="joining", claim="claim_dead", claimed_at=clock.now()
    )
    sweep_parted_uploads(now=late)
    assert PartedUpload.objects.get(pk=other.id).status == "expired"
    assert not UploadPart.objects.exists()
