"""Uploads of training data: what is stored, and what leaves no trace."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from django.core.files.storage import default_storage
from tokenizers import Tokenizer, models, pre_tokenizers

from marketplace.accounts.models import Organisation
from marketplace.common.durable.kinds import get_kinds
from marketplace.common.durable.run import run_due_work
from marketplace.common.errors import UserError
from marketplace.fleet.text_encoder import TokenizerFiles, load_text_encoder
from marketplace.jobs import dataset_tokens
from marketplace.jobs.dataset_reader import read_dataset
from marketplace.jobs.models import Dataset, DatasetTokens, Upload, UploadStatus
from marketplace.jobs.selectors import build_upload_error
from marketplace.jobs.services import (
    ensure_dataset_tokens,
    receive_upload,
)
from marketplace.jobs.services.readings import READ
from marketplace.jobs.upload_choices import UploadChoices
from marketplace.jobs.work import load_job_totals
from tests import builders, job_builders
from tests import market_builders as market
from tests.builders import NOW

pytestmark = pytest.mark.django_db


def tokenizer_file(folder, *, name: str = "tokenizer.json", split: bool = True) -> str:
    """A tokenizer of one token per word, or per whole text."""
    words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    if split:
        words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    words.save(str(path))
    return str(path)


@pytest.fixture
def zone(tmp_path, settings):
    settings.MEDIA_ROOT = tmp_path / "media"
    return market.zone(tokenizer_source=tokenizer_file(tmp_path))


@pytest.fixture
def owner():
    return builders.organisation()


def upload(owner: Organisation, content: bytes, *, name: str = "data.jsonl", **more) -> Dataset:
    terms: dict[str, Any] = {
        "choices": UploadChoices(faulty_lines="leave_out", long_rows="cut")
    } | more
    received = receive_upload(
        organisation=owner,
        name=name,
        content=io.BytesIO(content),
        uploaded_by=None,
        now=NOW,
        **terms,
    )
    assert run_due_work(get_kinds()[READ], clock=lambda: NOW) == 1
    done = Upload.objects.get(pk=received.pk)
    if done.status == UploadStatus.REFUSED:
        raise build_upload_error(done)
    assert done.dataset is not None
    return done.dataset


def completion(prompt: str, answer: str) -> bytes:
    return json.dumps({"prompt": prompt, "completion": answer}).encode() + b"\n"


def assert_no_trace(owner: Organisation) -> None:
    assert not Dataset.objects.exists()
    assert not default_storage.exists(f"datasets/{owner.pk}")


def test_a_data_set_is_stored_with_its_rows_and_tokens_counted(zone, owner):
    content = completion("one two", " three") + completion("one", " two three four five")
    data = upload(owner, content)
    assert (data.format, data.rows, data.faulty, data.errors) == ("completion", 2, 0, [])
    assert (data.tokens, data.longest_row_tokens) == (3 + 5, 5)
    assert (data.bytes, data.zone) == (len(content), zone)
    with data.file.open("rb") as file:
        assert file.read() == content


def test_a_json_list_is_stored_as_the_lines_that_a_node_reads(zone, owner):
    rows = [{"instruction": "one", "output": "two"}, {"instruction": "three"}]
    data = upload(owner, json.dumps(rows, indent=1).encode(), name="alpaca.json")
    assert (data.format, data.rows, data.faulty_lines) == ("instruction", 1, [2])
    with data.file.open("rb") as file:
        stored = file.read()
    assert [json.loads(line) for line in stored.splitlines()] == rows
    assert (data.bytes, data.sha256) == (len(stored), hashlib.sha256(stored).hexdigest())


def test_chat_is_counted_in_its_frame_and_preferences_by_their_longer_answer(zone, owner):
    chat = {"messages": [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]}
    data = upload(owner, json.dumps(chat).encode())
    # "### User:" and "### Assistant:" are two words each.
    assert (data.format, data.tokens) == ("chat", 4 + 3)
    pair = {"prompt": "a", "chosen": "b c d", "rejected": "e"}
    data = upload(owner, json.dumps(pair).encode())
    assert (data.format, data.rows) == ("preference", 1)
    assert (data.tokens, data.longest_row_tokens) == (1 + 3 + 1 + 1, 1 + 3)


def test_faulty_lines_are_told_by_line_and_left_out(zone, owner):
    content = completion("a", " b") + b"{broken\n" + completion("c", " d") + b"[]\n"
    data = upload(owner, content)
    assert (data.rows, data.faulty, data.faulty_lines) == (2, 2, [2, 4])
    assert [error["line"] for error in data.errors] == [2, 4]
    assert all(error["message"] for error in data.errors)


def test_keys_that_are_not_trained_on_are_counted_and_a_misspelt_one_is_asked_about(zone, owner):
    rows = [{"instruction": "a", "inputs": "b", "output": "c", "id": 1}] * 2
    rows.append({"instruction": "a", "output": "c", "id": 3})
    content = b"{broken\n" + b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    data = upload(owner, content)
    assert (data.rows, data.faulty) == (3, 1)
    assert Dataset.objects.get(pk=data.pk).ignored_keys == [
        {"key": "inputs", "rows": 2, "line": 2, "hint": "Did you mean input? Then rename it."},
        {"key": "id", "rows": 3, "line": 2, "hint": ""},
    ]


def test_keys_that_the_database_could_not_hold_are_stored_as_they_can_be_shown(zone, owner):
    data = upload(owner, b'{"prompt": "a", "completion": "b", "\\u0000\\ud800x": 1}\n')
    (ignored,) = Dataset.objects.get(pk=data.pk).ignored_keys
    assert (ignored["key"], ignored["rows"]) == ("??x", 1)


def test_every_fault_is_kept(zone, owner):
    data = upload(owner, completion("a", " b") + b"{broken\n" * 80)
    assert (data.faulty, len(data.errors), len(data.faulty_lines)) == (80, 80, 80)


@pytest.mark.parametrize(
    ("content", "name", "code", "word"),
    [
        (b"", "data.jsonl", "file_empty", "empty"),
        (b"  \n\n  ", "data.jsonl", "invalid_dataset", "empty"),
        (b"\x00\x01\x02\xff" * 100, "data.jsonl", "invalid_dataset", "binary"),
        (b"PK\x03\x04rest", "data.zip", "invalid_dataset", "zip"),
        (b"{broken\n" * 3, "data.jsonl", "invalid_dataset", "usable row"),
        (b'{"what": 1}\n' * 3, "data.jsonl", "invalid_dataset", "usable row"),
    ],
)
def test_a_file_that_cannot_be_used_leaves_no_trace(zone, owner, content, name, code, word):
    with pytest.raises(UserError) as refused:
        upload(owner, content, name=name)
    assert refused.value.code == code
    assert word in refused.value.message
    assert_no_trace(owner)


def test_a_refusal_shows_the_first_faults(zone, owner):
    with pytest.raises(UserError) as refused:
        upload(owner, b"{broken\n" * 70)
    assert refused.value.extra["faulty"] == 70
    assert [error["line"] for error in refused.value.extra["errors"]] == list(range(1, 71))


def test_a_file_beyond_the_limit_is_refused_at_the_limit(zone, owner, settings):
    settings.UPLOAD_BYTES_MAX = 1000
    with pytest.raises(UserError) as refused:
        upload(owner, completion("a", " b") * 100)
    assert (refused.value.code, refused.value.status) == ("file_too_large", 413)
    assert_no_trace(owner)


def test_a_line_of_megabytes_is_a_fault_of_that_line_alone(zone, owner):
    long = b'{"prompt": "' + b"x" * (5 * 1024 * 1024) + b'", "completion": "y"}\n'
    data = upload(owner, completion("a", " b") + long + completion("c", " d"))
    assert (data.rows, data.faulty_lines) == (2, [2])


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\data\\mine.jsonl", "mine.jsonl"),
        ("line\nbreak\x00\u202e.jsonl", "line break  .jsonl"),
        ("", "dataset"),
        ("x" * 400, "x" * 255),
    ],
)
def test_a_hostile_name_is_cleaned_and_never_part_of_a_path(zone, owner, given, kept):
    data = upload(owner, completion("a", " b"), name=given)
    assert data.name == kept
    assert data.file.name.startswith(f"datasets/{owner.pk}/{data.pk}")


def test_nothing_is_left_when_the_row_cannot_be_written(zone, owner, monkeypatch):
    def fail(*_args: object, **_kwargs: object) -> None:
        raise RuntimeError("the database went away")

    received = receive_upload(
        organisation=owner,
        name="data.jsonl",
        content=io.BytesIO(completion("a", " b")),
        uploaded_by=None,
        now=NOW,
    )
    monkeypatch.setattr(Dataset, "save", fail)
    assert run_due_work(get_kinds()[READ], clock=lambda: NOW) == 1
    assert Upload.objects.get(pk=received.pk).dataset is None
    assert not default_storage.exists(f"datasets/{owner.pk}") or default_storage.listdir(
        f"datasets/{owner.pk}"
    ) == ([], [])


def test_a_zone_with_another_tokenizer_counts_once_more_and_remembers(zone, owner, tmp_path):
    data = upload(owner, completion("one two", " three") + b"{broken\n")
    other = market.zone(tokenizer_source=tokenizer_file(tmp_path / "b", split=False))
    same = market.zone(tokenizer_source=zone.tokenizer_source)

    def count(where) -> tuple[int, int]:
        found = ensure_dataset_tokens(dataset=data, zone=where)
        return found.tokens, found.longest_row_tokens

    assert count(zone) == (3, 3)
    assert count(same) == (3, 3)
    assert DatasetTokens.objects.count() == 1
    assert count(other) == (2, 2)
    data.file.delete()
    assert count(other) == (2, 2)
    assert DatasetTokens.objects.count() == 2


def test_data_of_a_job_sold_before_counts_were_stored_are_counted_at_the_first_question(
    zone, owner, monkeypatch
):
    data = upload(owner, completion("one two", " three") * 40)
    job = job_builders.job(zone, (1, market.node(zone)), dataset=data)
    totals = load_job_totals(job)
    DatasetTokens.objects.all().delete()
    monkeypatch.setattr(dataset_tokens, "_known", {})
    assert load_job_totals(job) == totals
    assert DatasetTokens.objects.get().tokens == data.tokens == 120


def test_a_models_own_template_and_tokens_are_counted(zone, owner, tmp_path):
    (tmp_path / "chat_template.jinja").write_text(
        "{% for message in messages %}[ {{ message['role'] }} : {{ message['content'] }} ] "
        "{% endfor %}{% if add_generation_prompt %}[ assistant : {% endif %}"
    )
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "[UNK]"}}')
    data = upload(owner, completion("one", " two"))
    # The end of a text is learnt like the text.
    assert data.tokens == 3
    chat = {"messages": [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]}
    data = upload(owner, json.dumps(chat).encode())
    # The template ends an answer with nothing that stops a model, so an end is learnt there too.
    assert data.tokens == 6 + 5 + 1


def test_a_template_that_refuses_or_rewrites_is_told_at_upload(zone, owner, tmp_path):
    chat = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    for number, (template, sentence) in enumerate(
        (
            (
                "{{ raise_exception('No such roles') }}",
                "Line 1: .* refuses a conversation: No such roles",
            ),
            ("{{ messages|length }}", "rewrites earlier messages"),
            ("{{ messages.append(1) }}", "refuses a conversation"),
        )
    ):
        folder = tmp_path / str(number)
        source = tokenizer_file(folder)
        (folder / "chat_template.jinja").write_text(template)
        other = market.zone(tokenizer_source=source)
        with pytest.raises(UserError, match=sentence):
            upload(owner, json.dumps(chat).encode(), zone=other)
    assert_no_trace(owner)


def test_a_zone_whose_template_refuses_one_row_of_a_data_set_does_not_take_it(
    zone, owner, tmp_path
):
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    rows = [turns, [{"role": "system", "content": "c"}, *turns]]
    data = upload(owner, "".join(json.dumps({"messages": row}) + "\n" for row in rows).encode())
    source = tokenizer_file(tmp_path / "strict")
    (tmp_path / "strict" / "chat_template.jinja").write_text(
        "{% if messages and messages[0]['role'] == 'system' %}{{ raise_exception('No system') }}"
        "{% endif %}{% for message in messages %}{{ message['content'] }} {% endfor %}"
    )
    other = market.zone(tokenizer_source=source)
    with pytest.raises(UserError, match=r"Line 2: .* refuses a conversation: No system") as refused:
        ensure_dataset_tokens(dataset=data, zone=other)
    assert refused.value.code == "unfit_dataset"
    assert DatasetTokens.objects.count() == 1


def test_a_conversation_that_the_template_refuses_is_one_faulty_line(tmp_path):
    source = Path(tokenizer_file(tmp_path))
    template = tmp_path / "chat_template.jinja"
    template.write_text(
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('No system') }}{% endif %}"
        "{{ messages | length }} {% for message in messages %}{{ message['content'] }} {% endfor %}"
    )
    turns = [{"role": role, "content": 2 * role} for role in ("user", "assistant") * 2]
    rows = [turns[:2], [{"role": "system", "content": "s"}, *turns], turns]
    reading, runs = read_dataset(
        io.BytesIO("".join(json.dumps({"messages": row}) + "\n" for row in rows).encode()),
        name="a.jsonl",
        encoder=load_text_encoder(TokenizerFiles(source, chat_template=template)),
    )
    assert reading.fatal is None
    assert (reading.faulty, reading.faulty_lines) == (1, [2])
    assert "refuses a conversation: No system" in reading.errors[0]["message"]
    # The template writes the count anew with each turn: two answers are two examples.
    assert (reading.rows, len(runs.stretches)) == (3, 3)


def test_conversations_too_long_to_lay_out_are_refused_before_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr("marketplace.jobs.dataset_reader.RENDERED_MESSAGES_MAX", 3)
    chat = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    reading, runs = read_dataset(
        io.BytesIO(json.dumps(chat).encode()),
        name="a.jsonl",
        encoder=load_text_encoder(TokenizerFiles(Path(tokenizer_file(tmp_path)))),
    )
    assert reading.fatal == "The conversations are too long to be laid out. Split them."
    assert (reading.tokens, len(runs.stretches)) == (0, 0)


def test_an_unreadable_tokenizer_refuses_before_anything_is_stored(owner, tmp_path, settings):
    settings.MEDIA_ROOT = tmp_path / "media"
    broken = tmp_path / "tokenizer.json"
    broken.write_text("{}")
    market.zone(tokenizer_source=str(broken))
    with pytest.raises(UserError) as refused:
        upload(owner, completion("a", " b"))
    assert refused.value.code == "unknown_tokenizer"
    assert_no_trace(owner)
