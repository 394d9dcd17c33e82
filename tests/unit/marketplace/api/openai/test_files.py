"""Training data with OpenAI's own client."""

from __future__ import annotations

import openai
import pytest

from marketplace.jobs.models import Dataset, Upload
from tests import market_builders as market
from tests.unit.marketplace.api.client import ROWS

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_file_is_uploaded_read_listed_and_deleted(client, tokenizer_zone):
    file = client.files.create(file=("rows.jsonl", ROWS), purpose="fine-tune")
    assert file.id.startswith("file-")
    assert (file.object, file.filename, file.bytes) == ("file", "rows.jsonl", len(ROWS))
    assert (file.purpose, file.status, file.rows) == ("fine-tune", "processed", 100)
    assert client.files.wait_for_processing(file.id) == file
    assert client.files.content(file.id).read() == ROWS
    other = client.files.create(file=("more.jsonl", ROWS + b"\n"), purpose="fine-tune")
    assert [one.id for one in client.files.list(limit=1)] == [other.id, file.id]
    assert [one.id for one in client.files.list(order="asc")] == [file.id, other.id]
    assert list(client.files.list(purpose="fine-tune-results")) == []
    deleted = client.files.delete(file.id)
    assert (deleted.id, deleted.deleted) == (file.id, True)
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)


def test_a_bad_file_is_refused_with_its_lines(client, tokenizer_zone):
    with pytest.raises(openai.BadRequestError) as refused:
        client.files.create(file=("bad.jsonl", ROWS + b"{\n"), purpose="fine-tune")
    assert (refused.value.code, refused.value.param) == ("invalid_dataset", "file")
    assert refused.value.body["errors"][0]["line"] == 101
    assert not Dataset.objects.exists()


def test_other_purposes_are_refused(client, tokenizer_zone):
    with pytest.raises(openai.BadRequestError) as refused:
        client.files.create(file=("rows.jsonl", ROWS), purpose="assistants")
    assert refused.value.code == "unsupported_purpose"
    assert not Upload.objects.exists()


def test_a_file_of_a_bid_is_deleted_for_its_owner(client, owner, zone, lane):
    data = market.dataset(owner, zone)
    market.bid(owner, zone, data=data)
    assert client.files.delete(f"file-{data.pk[-26:]}").deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(f"file-{data.pk[-26:]}")
