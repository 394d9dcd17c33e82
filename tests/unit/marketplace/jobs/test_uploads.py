"""Checkpoints and adapters from nodes, honest and hostile."""

from __future__ import annotations

import csv
import errno
import io
import json
import struct
import zipfile
from dataclasses import replace

import pytest
from django.core.files import File
from django.core.files.storage import default_storage
from safetensors.numpy import load

from marketplace.common.errors import UserError
from marketplace.fleet.base_models import find_bundled_directory
from marketplace.jobs.executed_work import measure_executed_work
from marketplace.jobs.models import Artifact, Checkpoint, EventKind, Job, MetricPoint, Slice
from marketplace.jobs.selectors import list_job_checkpoints
from marketplace.jobs.services import (
    LeaseLost,
    cancel_job,
    dispatch_slots,
    record_progress,
    store_adapter,
    store_checkpoint,
)
from marketplace.jobs.services.result_checks import compute_least_time
from marketplace.jobs.work import load_work_plan
from tests import job_builders as build
from tests import market_builders as market
from tests.builders import NOW
from tests.job_builders import at
from tests.object_bucket import list_objects
from workers.protocol.adapter_check import list_adapter_tensors
from workers.protocol.job_spec import AdapterSpec

pytestmark = pytest.mark.django_db


@pytest.fixture
def leased(tmp_path, settings):
    settings.MEDIA_ROOT = tmp_path
    zone = market.zone()
    node = market.node(zone)
    job = build.job(zone, (0, node), (1, node))
    dispatch_slots(now=NOW)
    return job, node, build.lease(job)


def store(leased, content: bytes, *, step: int = 1, now=NOW) -> Checkpoint:
    _, node, held = leased
    return store_checkpoint(
        node=node, lease_token=held.lease_token, step=step, content=io.BytesIO(content), now=now
    )


def upload_adapter(leased, content: bytes, *, now=NOW) -> Artifact:
    _, node, held = leased
    return store_adapter(
        node=node, lease_token=held.lease_token, content=io.BytesIO(content), now=now
    )


def stored_files(job: Job) -> list[str]:
    found = []
    for folder in ("checkpoints", "adapters"):
        path = f"jobs/{job.pk}/{folder}"
        if default_storage.exists(path):
            found += default_storage.listdir(path)[1]
    return found


def assert_no_trace(job: Job, *, seq: int) -> None:
    job.refresh_from_db()
    assert not Checkpoint.objects.exists()
    assert not Artifact.objects.exists()
    assert stored_files(job) == []
    assert (job.seq, job.checkpoint_step) == (seq, 0)


def test_of_a_checkpoint_that_a_full_disk_cut_off_nothing_is_kept(leased, monkeypatch):
    job, *_ = leased
    content, seq = build.safetensors(1), Job.objects.get(pk=job.pk).seq

    def write_half(_: File):
        yield content[: len(content) // 2]
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(File, "chunks", write_half)
        with pytest.raises(OSError, match="No space left"):
            store(leased, content)
    assert_no_trace(job, seq=seq)
    assert len(stored_files(store(leased, content).job)) == 1


def test_a_checkpoint_is_stored_whole_and_becomes_where_the_job_goes_on(leased):
    job, node, _ = leased
    content = build.safetensors(7)
    stored = store(leased, content, step=5)
    with stored.file.open("rb") as file:
        assert file.read() == content
    job.refresh_from_db()
    assert (job.checkpoint_step, list_job_checkpoints(job).first()) == (5, stored)
    told = job.events.get(kind=EventKind.CHECKPOINTED)
    assert (told.actor, told.data["step"]) == (node.pk, 5)


def test_the_same_checkpoint_again_is_stored_once(leased):
    job, _, _ = leased
    first = store(leased, build.safetensors(), step=5)
    seq = Job.objects.get(pk=job.pk).seq
    assert store(leased, build.safetensors(), step=5) == first
    assert len(stored_files(job)) == 1
    assert Job.objects.get(pk=job.pk).seq == seq


def test_another_checkpoint_for_the_same_step_takes_its_place(
    leased, django_capture_on_commit_callbacks
):
    job, _, _ = leased
    first = store(leased, build.safetensors(1), step=5)
    with django_capture_on_commit_callbacks(execute=True):
        second = store(leased, build.safetensors(2), step=5)
    assert second.pk == first.pk
    with second.file.open("rb") as file:
        assert file.read() == build.safetensors(2)
    assert len(stored_files(job)) == 1


def test_only_the_last_three_checkpoints_keep_their_files(
    leased, django_capture_on_commit_callbacks
):
    job, _, _ = leased
    with django_capture_on_commit_callbacks(execute=True):
        for step in range(1, 6):
            store(leased, build.safetensors(step), step=step)
    assert [checkpoint.step for checkpoint in list_job_checkpoints(job)] == [5, 4, 3]
    assert len(stored_files(job)) == 3
    assert Checkpoint.objects.filter(job=job).count() == 5


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "file_empty"),
        (b"x", "invalid_checkpoint"),
        (b"\x80\x04\x95" + b"pickle" * 10, "invalid_checkpoint"),
        (build.safetensors()[:-1], "invalid_checkpoint"),
        (build.safetensors() + b"x", "invalid_checkpoint"),
        (struct.pack("<Q", 2**63) + b"{}", "invalid_checkpoint"),
        (struct.pack("<Q", 2) + b"{}", "invalid_checkpoint"),
        (struct.pack("<Q", 2) + b"[]", "invalid_checkpoint"),
        (struct.pack("<Q", 9) + b'{"w": {}}', "invalid_checkpoint"),
        (struct.pack("<Q", 9) + b"not json!", "invalid_checkpoint"),
        (struct.pack("<Q", 90_000) + b"[" * 90_000, "invalid_checkpoint"),
    ],
)
def test_what_is_no_whole_checkpoint_leaves_no_trace(leased, content, code):
    job, _, _ = leased
    seq = Job.objects.get(pk=job.pk).seq
    with pytest.raises(UserError) as refused:
        store(leased, content)
    assert refused.value.code == code
    assert_no_trace(job, seq=seq)


def test_a_tensor_whose_place_is_not_in_the_file_is_refused(leased):
    # The last one is where another tensor is.
    for offsets in ([0, 999], [-4, 16], [8, 4], [0, True], "0", None, [0, 16]):
        there = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
        tensors = {"v": there, "w": there | {"data_offsets": offsets}}
        header = json.dumps(tensors).encode()
        content = struct.pack("<Q", len(header)) + header + bytes(16)
        with pytest.raises(UserError, match="is no safetensors file"):
            store(leased, content)


@pytest.mark.parametrize("step", [-1, 13, 2**31])
def test_a_step_no_job_has_is_refused(leased, step):
    with pytest.raises(UserError, match="not one of this job"):
        store(leased, build.safetensors(), step=step)
    assert stored_files(leased[0]) == []


def test_steps_that_take_time_count_once_it_has_passed(leased, settings):
    settings.SPOT_CHECK_SHARE = 0.02
    job, node, held = leased
    seq = Job.objects.get(pk=job.pk).seq
    with pytest.raises(UserError) as refused:
        store(leased, build.safetensors(), step=12)
    assert (refused.value.code, refused.value.status) == ("result_too_soon", 503)
    assert_no_trace(job, seq=seq)
    # What a node says without any proof does not count either, where its owner ends the job, nor
    # does a speed that it was learnt to have from what it said.
    record_progress(node=node, report=build.report(held, build.event(1, step=12)), now=NOW)
    work = load_work_plan(job)
    took = compute_least_time(node, work.count_between(0, 5))
    node.compute_capacity *= 1000
    node.save(update_fields=["compute_capacity"])
    cancel_job(job=job, cancelled_by=None, now=NOW + took)
    [done] = measure_executed_work(Job.objects.get(pk=job.pk)).by_node
    assert (done.steps, done.units) == (5, work.count_between(0, 5))


def test_an_upload_beyond_the_limit_stops_at_the_limit(leased, settings):
    settings.CHECKPOINT_BYTES_MAX = 3 * 1024 * 1024
    job, node, held = leased

    class Endless:
        given = 0

        def read(self, size: int, /) -> bytes:
            self.given += size
            return bytes(size)

    endless = Endless()
    with pytest.raises(UserError) as refused:
        store_checkpoint(node=node, lease_token=held.lease_token, step=1, content=endless, now=NOW)
    assert (refused.value.code, refused.value.status) == ("file_too_large", 413)
    assert endless.given == 4 * 1024 * 1024
    assert stored_files(job) == []


@pytest.mark.parametrize("stage", ["before", "during"])
def test_a_lease_lost_before_or_during_an_upload_keeps_nothing(leased, stage):
    job, node, held = leased

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if stage == "during":
                cancel_job(job=job, cancelled_by=None, now=at(1))
            return super().read(size)

    if stage == "before":
        cancel_job(job=job, cancelled_by=None, now=at(1))
    for call in (
        lambda: store_checkpoint(
            node=node,
            lease_token=held.lease_token,
            step=1,
            content=Slow(build.safetensors()),
            now=at(1),
        ),
        lambda: store_adapter(
            node=node,
            lease_token=held.lease_token,
            content=Slow(build.adapter_file()),
            now=at(1),
        ),
    ):
        with pytest.raises(LeaseLost):
            call()
    assert not Checkpoint.objects.exists()
    assert not Artifact.objects.exists()
    assert stored_files(job) == []


def test_an_adapter_is_stored_once_and_replaced_by_a_newer_one(
    leased, django_capture_on_commit_callbacks
):
    job, _, _ = leased
    first = upload_adapter(leased, build.adapter_file(1))
    assert upload_adapter(leased, build.adapter_file(1)) == first
    with django_capture_on_commit_callbacks(execute=True):
        second = upload_adapter(leased, build.adapter_file(2))
    assert second.pk == first.pk
    with second.file.open("rb") as file, zipfile.ZipFile(file) as archive:
        weights = load(archive.read("adapter_model.safetensors"))
    assert {float(value) for values in weights.values() for value in values.flat} == {2.5}
    assert len(stored_files(job)) == 1


def adapter_tensors(*, value: float) -> bytes:
    return build.adapter_tensors(AdapterSpec(rank=8), value=value)


def _annotated() -> bytes:
    """Good weights under a header that says more than the format asks for."""
    content = build.adapter_file()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    turned = dict(reversed(header.items())) | {"__metadata__": {"note": "<script>evil</script>"}}
    text = json.dumps(turned, indent=1).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def test_nothing_that_a_node_wrote_reaches_the_owner_but_numbers(leased):
    job, _, _ = leased
    stored = upload_adapter(leased, _annotated())
    with stored.file.open("rb") as file, zipfile.ZipFile(file) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    assert files.keys() == {
        *("adapter_config.json", "adapter_model.safetensors", "README.md", "metrics.csv"),
        *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
    }
    base = find_bundled_directory("bundled:finetender-tiny")
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert files[name] == (base / name).read_bytes()
    config = json.loads(files["adapter_config.json"])
    assert (config["base_model_name_or_path"], config["r"]) == ("nowhere", 8)
    assert not [name for name, content in files.items() if b"evil" in content]
    # Two nodes that found the same numbers give the same file.
    assert upload_adapter(leased, build.adapter_file()) == stored
    tensors = load(files["adapter_model.safetensors"])
    assert {name: values.shape for name, values in tensors.items()} == list_adapter_tensors(
        market.SHAPE, job.terms.adapter
    )
    assert {float(value) for values in tensors.values() for value in values.flat} == {0.5}


def test_each_step_is_one_line_of_the_metrics_also_where_it_was_done_again(leased):
    job, _, held = leased
    lost = Slice.objects.create(
        job=job,
        node=held.node,
        first_slot=0,
        last_slot=0,
        lease_token="lost",
        lease_expires_at=NOW,
        status="lost",
        opened_at=NOW,
        closed_at=NOW,
    )
    figures = {"epoch": 0.5, "at": NOW, "job": job}
    for of, seq, step, train, valid in (
        (lost, 1, 1, 4.0, None),
        (lost, 2, 2, 9.0, None),
        (held, 1, 2, 3.0, None),
        (held, 2, 2, None, 2.5),
        (held, 3, 3, 2.0, None),
    ):
        MetricPoint.objects.create(
            slice=of, seq=seq, step=step, train_loss=train, valid_loss=valid, **figures
        )
    stored = upload_adapter(leased, build.adapter_file())
    with stored.file.open("rb") as file, zipfile.ZipFile(file) as archive:
        rows = list(csv.DictReader(io.StringIO(archive.read("metrics.csv").decode())))
    found = [(row["step"], row["train_loss"], row["valid_loss"]) for row in rows]
    assert found == [("1", "4.0", ""), ("2", "3.0", "2.5"), ("3", "2.0", "")]


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: b"\x80\x04pickle", "no safetensors file"),
        (lambda: build.adapter_file()[:-30], "as if cut off"),
        # Four bytes in one tensor counted as a finished adapter once.
        (lambda: build.safetensors(numbers=1), "it lacks base_model.model.model.layers.0"),
        (lambda: build.adapter_file(adapter=AdapterSpec(rank=4)), "the job's is"),
        (lambda: adapter_tensors(value=float("nan")), "not finite numbers"),
        (lambda: adapter_tensors(value=0.0), "was not trained"),
    ],
)
def test_a_hostile_adapter_leaves_no_trace(leased, make, word):
    job, _, _ = leased
    seq = Job.objects.get(pk=job.pk).seq
    with pytest.raises(UserError) as refused:
        upload_adapter(leased, make())
    assert refused.value.code == "invalid_adapter"
    assert word in refused.value.message
    assert_no_trace(job, seq=seq)


@pytest.mark.parametrize(("training", "is_refused"), [({"epochs": 2}, True), ({}, False)])
def test_weights_of_a_job_with_other_settings_are_no_result(leased, training, is_refused):
    job, node, _ = leased
    upload_adapter(leased, build.adapter_file(seed=3))
    asked = replace(job.terms.training, **training)
    other = build.job(job.zone, (0, node), dataset=job.dataset, training=asked)
    dispatch_slots(now=NOW)
    theirs = (other, node, build.lease(other))
    copied = build.adapter_file(seed=3)
    if not is_refused:
        upload_adapter(theirs, copied)
        return
    with pytest.raises(UserError, match="another job's result has its weights") as refused:
        upload_adapter(theirs, copied)
    assert refused.value.code == "invalid_adapter"
    assert not Artifact.objects.filter(job=other).exists()


def test_checkpoints_and_adapters_lie_in_a_bucket_where_there_is_one(bucket, leased):
    job, _, _ = leased
    content = build.safetensors(7)
    stored = store(leased, content, step=5)
    with pytest.raises(UserError):
        upload_adapter(leased, b"no adapter")
    [name] = [one for one in list_objects(bucket) if one.startswith(f"market/jobs/{job.pk}/")]
    assert name.startswith(f"market/jobs/{job.pk}/checkpoints/")
    with Checkpoint.objects.get(pk=stored.pk).file.open("rb") as file:
        assert file.read() == content
