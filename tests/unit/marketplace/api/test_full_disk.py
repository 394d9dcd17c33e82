"""A disk that is full while a file comes: the sender is told so, and nothing of it is kept."""

from __future__ import annotations

import errno
import io
import tempfile
from pathlib import Path

import pytest
import time_machine
from django.core.files import File
from django.core.files.uploadhandler import TemporaryFileUploadHandler
from django.db import connection
from django.test import Client

from marketplace.common.file_storage import FolderStorage
from marketplace.jobs.models import Dataset, Upload
from marketplace.jobs.services import dispatch_slots
from tests import builders
from tests import job_builders as build
from tests import market_builders as market
from tests.builders import NOW
from tests.unit.marketplace.api.client import ROWS, Api

pytestmark = pytest.mark.django_db


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def refuse_chunk(handler: TemporaryFileUploadHandler, *_: object) -> None:
    handler.file.close()
    refuse()


def write_half(file: File):
    content = file.read()
    yield content[: len(content) // 2]
    refuse()


def refuse_row(*_: object, **__: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute("DO $$ BEGIN RAISE EXCEPTION 'full' USING ERRCODE = 'disk_full'; END $$")


#: Where a file is written down: as a form's part, as it is hashed, for good, and in the database.
PLACES = [
    (TemporaryFileUploadHandler, "receive_data_chunk", refuse_chunk),
    (tempfile, "TemporaryFile", refuse),
    (File, "chunks", write_half),
    (Upload, "save", refuse_row),
]


@pytest.fixture(params=PLACES, ids=["form", "spool", "store", "row"])
def full(request, monkeypatch, settings, tmp_path) -> Path:
    settings.MEDIA_ROOT, settings.FILE_UPLOAD_MAX_MEMORY_SIZE = tmp_path, 0
    market.zone()
    monkeypatch.setattr(*request.param)
    return tmp_path


def assert_nothing_kept(folder: Path) -> None:
    assert not Upload.objects.exists()
    assert not Dataset.objects.exists()
    assert [path for path in folder.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("path", "fields"), [("/api/datasets", {}), ("/v1/files", {"purpose": "fine-tune"})]
)
def test_a_program_is_told(full, path, fields):
    file = io.BytesIO(ROWS)
    file.name = "rows.jsonl"
    reply = Api(builders.organisation()).form(path, {"file": file, **fields})
    said = reply.json()
    assert (reply.status_code, said.get("error", said)["code"]) == (503, "disk_full")
    assert_nothing_kept(full)


def test_a_person_is_told_on_a_page(full):
    browser = Client(enforce_csrf_checks=True, raise_request_exception=False)
    browser.force_login(builders.owner_of(builders.organisation()))
    browser.get("/datasets")
    file = io.BytesIO(ROWS)
    file.name = "rows.jsonl"
    token = browser.cookies["csrftoken"].value
    reply = browser.post("/datasets", {"csrfmiddlewaretoken": token, "file": file})
    assert reply.status_code == 503
    assert "The market has no room for files now." in reply.text
    assert_nothing_kept(full)


@time_machine.travel(NOW, tick=False)
def test_a_node_is_told(monkeypatch):
    zone = market.zone()
    node, reply = build.joined(zone)
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    job = build.job(zone, (0, node))
    dispatch_slots(now=NOW)
    held = build.lease(job)
    refused = Client().put(
        f"/internal/v1/leases/{held.lease_token}/adapter",
        b"x",
        content_type="application/octet-stream",
        headers={"Authorization": f"Bearer {reply.api_token}"},
    )
    assert (refused.status_code, refused.json()["code"]) == (503, "disk_full")


def test_a_folder_keeps_no_part_of_a_file_and_none_of_anothers_name(tmp_path, monkeypatch):
    storage = FolderStorage(location=tmp_path)
    names = {storage.save("a/b.txt", File(io.BytesIO(b"whole"))) for _ in range(2)}
    monkeypatch.setattr(File, "chunks", write_half)
    with pytest.raises(OSError, match="No space left"):
        storage.save("a/b.txt", File(io.BytesIO(b"half")))
    assert {f"a/{path.name}" for path in (tmp_path / "a").iterdir()} == names
    assert len(names) == 2
