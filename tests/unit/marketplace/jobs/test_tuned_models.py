"""Checkpoints as models: found by name, written as adapters once, and gone when they are."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.numpy import load as load_arrays
from safetensors.torch import load

from marketplace.api.market.asked_bids import (
    AskedBid,
    FilesNotReadError,
    find_new_bids,
    read_files_of_all,
)
from marketplace.api.openai.names import name_tuned_model
from marketplace.auction.bidding.measure import MeasuredJob, measure_job
from marketplace.auction.bidding.place import NewBid, draft_bid, ensure_beginning
from marketplace.auction.bidding.start_from import find_beginning
from marketplace.auction.models import Bid
from marketplace.common.errors import UserError
from marketplace.jobs import adapter_files, tuned_models
from marketplace.jobs.downloads import get_checkpoint
from marketplace.jobs.models import Artifact, Checkpoint, Job
from marketplace.jobs.selectors import find_job_blob
from marketplace.jobs.services import (
    delete_adapter,
    delete_checkpoint_models,
    dispatch_slots,
    store_checkpoint,
)
from marketplace.jobs.services.deletion import CHECKPOINT_MODELS_KEPT_FOR
from marketplace.jobs.tuned_models import TunedModel, find_tuned_model
from marketplace.jobs.upload_checks import check_adapter
from marketplace.payments.models import Entry, Hold
from tests import builders
from tests import job_builders as build
from tests import market_builders as market
from tests.builders import NOW
from workers.protocol.adapter_names import list_peft_names
from workers.protocol.reports import SliceEnd
from workers.protocol.starts import Start, StartKind
from workers.protocol.weight_sketch import lay_out_peft, lay_out_weights
from workers.training.adapter_export import to_peft_layout

pytestmark = pytest.mark.django_db


@pytest.fixture
def owner():
    return builders.organisation(usd="20")


@pytest.fixture
def job(owner):
    """A job that runs."""
    zone = market.zone()
    node, _ = build.joined(zone)
    made = build.job(zone, (0, node), organisation=owner)
    dispatch_slots(now=NOW)
    made.refresh_from_db()
    return made


def find(owner, job, step) -> TunedModel:
    model = find_tuned_model(f"{job.pk}:ckpt-step-{step}", organisation=owner)
    assert model is not None
    return model


def read_files(artifact) -> dict[str, bytes]:
    with artifact.file.open("rb") as file, zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def build_other(job: Job, **terms) -> Job:
    node = job.slices.get().node
    other = build.job(job.zone, (0, node), **terms)
    dispatch_slots(now=NOW)
    return other


def test_a_checkpoint_is_an_adapter_as_peft_reads_it(owner, job):
    checkpoint = market.checkpoint(job, step=4)
    market.checkpoint(job, step=6, second=0.25)
    artifact = find(owner, job, 4).take_artifact(now=NOW)
    assert (artifact.checkpoint_id, artifact.job_id) == (checkpoint.pk, job.pk)
    files = read_files(artifact)
    assert json.loads(files["adapter_config.json"])["r"] == 8
    assert "| Optimizer steps | 4 |" in files["README.md"].decode()
    with checkpoint.file.open("rb") as file:
        stored = {
            name.removeprefix("param/"): values
            for name, values in load(file.read()).items()
            if name.startswith("param/")
        }
    names = list_peft_names((name, values.ndim) for name, values in stored.items())
    found = load(files["adapter_model.safetensors"])
    assert found.keys() == set(names.values())
    for name, values in stored.items():
        assert torch.equal(found[names[name]], to_peft_layout(name, values))
    # It is written once, and the finished adapter is another.
    assert find(owner, job, 4).take_artifact(now=NOW + timedelta(hours=1)) == artifact
    assert not Artifact.objects.exists()


def test_experts_of_a_checkpoint_stand_side_by_side_as_the_engine_exports_them():
    tensors = {
        "model.layers.0.mlp.experts.down_proj.lora_A": torch.randn(3, 2, 5),
        "model.layers.0.mlp.experts.down_proj.lora_B": torch.randn(3, 2, 7),
        "model.layers.0.self_attn.q_proj.lora_magnitude": torch.randn(4),
    }
    shapes = {name: tuple(values.shape) for name, values in tensors.items()}
    names = list_peft_names((name, len(shape)) for name, shape in shapes.items())
    arrays = ((name, values.numpy()) for name, values in tensors.items())
    found = dict(lay_out_peft(lay_out_weights(arrays, shapes=shapes)))
    for name, values in tensors.items():
        assert torch.equal(
            torch.from_numpy(found[names[name]].copy()), to_peft_layout(name, values)
        )


def test_a_job_without_an_adapter_has_the_models_of_its_checkpoints_alone(owner, job):
    market.checkpoint(job, step=4)
    assert find_tuned_model(job.pk, organisation=owner) is None
    assert find(owner, job, 4).name == f"{job.pk}:ckpt-step-4"
    for name in (
        f"{job.pk}:ckpt-step-5",
        f"{job.pk}:ckpt-step-",
        f"{job.pk}:ckpt-step-4 ",
        "\0",
        "",
    ):
        assert find_tuned_model(name, organisation=owner) is None
    other = builders.organisation()
    assert find_tuned_model(f"{job.pk}:ckpt-step-4", organisation=other) is None


def test_a_checkpoint_that_a_newer_one_replaced_has_no_model(owner, job):
    checkpoint = market.checkpoint(job, step=4)
    model = find(owner, job, 4)
    Checkpoint.objects.filter(pk=checkpoint.pk).update(file="")
    with pytest.raises(UserError) as caught:
        model.take_artifact(now=NOW)
    assert caught.value.code == "unknown_checkpoint"
    assert not Artifact.everything.exists()
    assert find_tuned_model(f"{job.pk}:ckpt-step-4", organisation=owner) is None


def test_a_checkpoint_that_is_sent_anew_is_written_anew(owner, job):
    held = job.slices.get()
    contents = []
    for second in (0.5, 0.25):
        made = market.checkpoint(job, step=4, second=second)
        with made.file.open("rb") as file:
            contents.append(file.read())
        made.delete()
    weights = []
    for content in contents:
        sent = {"node": held.node, "lease_token": held.lease_token, "step": 4}
        # What is sent later may have begun to be sent earlier.
        store_checkpoint(content=io.BytesIO(content), now=NOW, **sent)
        artifact = find(owner, job, 4).take_artifact(now=NOW + timedelta(minutes=1))
        weights.append(load_arrays(read_files(artifact)["adapter_model.safetensors"]))
    name = next(name for name in weights[0] if name.endswith("lora_B.weight"))
    assert (weights[0][name] == 2 * weights[1][name]).all()
    assert weights[0][name].any()


@pytest.mark.parametrize(
    "tensors",
    [
        {"second": 0.0},
        {"second": float("nan")},
        {"more": {"param/other.lora_A": np.zeros((8, 4), "f4")}},
        {"more": {"param/model.layers.0.mlp.up_proj.lora_A": np.zeros((3, 0, 0), "f4")}},
    ],
)
def test_a_checkpoint_that_holds_no_adapter_leaves_no_trace(owner, job, tensors, monkeypatch):
    market.checkpoint(job, step=4, **tensors)
    if "more" in tensors:
        # Names and shapes are compared before a value is read.
        monkeypatch.setattr(adapter_files, "read_checkpoint_weights", None)
    with pytest.raises(UserError, match="does not hold the job's trained adapter") as caught:
        find(owner, job, 4).take_artifact(now=NOW)
    assert caught.value.code == "unusable_checkpoint"
    assert not Artifact.everything.exists()


def test_a_node_that_hands_the_checkpoints_weights_back_is_found_out(owner, job):
    market.checkpoint(job, step=4)
    artifact = find(owner, job, 4).take_artifact(now=NOW)
    weights = read_files(artifact)["adapter_model.safetensors"]
    start = Start(StartKind.CONTINUED, artifact.pk, job.pk)
    for begun in (build_other(job), build_other(job, start=start)):
        if begun.start is None:
            # One that comes to them by itself trained for as long.
            check_adapter(io.BytesIO(weights), size=len(weights), job=begun)
            continue
        with pytest.raises(UserError, match="another job's result has its weights"):
            check_adapter(io.BytesIO(weights), size=len(weights), job=begun)


def test_a_job_keeps_so_many_checkpoints_as_models_and_no_more(owner, job, monkeypatch):
    monkeypatch.setattr(tuned_models, "MODELS_KEPT", 1)
    for step in (4, 6):
        market.checkpoint(job, step=step)
    kept = find(owner, job, 4).take_artifact(now=NOW)
    with pytest.raises(UserError) as caught:
        find(owner, job, 6).take_artifact(now=NOW)
    assert caught.value.code == "too_many_checkpoint_models"
    assert find(owner, job, 4).take_artifact(now=NOW) == kept
    assert list(Artifact.everything.all()) == [kept]


def test_the_model_of_a_checkpoint_that_is_gone_counts_until_it_is_deleted(
    owner, job, monkeypatch, settings, tmp_path, django_capture_on_commit_callbacks
):
    settings.MEDIA_ROOT = tmp_path
    monkeypatch.setattr(tuned_models, "MODELS_KEPT", 1)
    for step in (4, 6):
        market.checkpoint(job, step=step)
    first = find(owner, job, 4).take_artifact(now=NOW)
    file = tmp_path / first.file.name
    assert file.is_file()
    Checkpoint.objects.filter(step=4).update(file="")
    # However often checkpoints come and go, a job keeps no more files than that.
    with pytest.raises(UserError) as caught:
        find(owner, job, 6).take_artifact(now=NOW)
    assert caught.value.code == "too_many_checkpoint_models"
    day = CHECKPOINT_MODELS_KEPT_FOR
    assert delete_checkpoint_models(now=NOW + day) == 0
    with django_capture_on_commit_callbacks(execute=True):
        assert delete_checkpoint_models(now=NOW + day + timedelta(seconds=1)) == 1
    first.refresh_from_db()
    assert (first.file.name, first.deleted_at) == ("", NOW + day + timedelta(seconds=1))
    assert not file.exists()
    assert delete_checkpoint_models(now=NOW + 2 * day) == 0
    written = find(owner, job, 6).take_artifact(now=NOW + 2 * day).checkpoint
    assert written is not None
    assert written.step == 6


def test_a_checkpoints_model_stays_while_it_is_current_used_needed_or_served(owner, job):
    market.checkpoint(job, step=4)
    artifact = find(owner, job, 4).take_artifact(now=NOW)
    late = NOW + timedelta(days=30)
    assert delete_checkpoint_models(now=late) == 0
    Checkpoint.objects.filter(step=4).update(file="")
    rows = Artifact.everything.filter(pk=artifact.pk)
    for field in ("used_at", "served_at"):
        rows.update(**{field: late - timedelta(hours=23)})
        assert delete_checkpoint_models(now=late) == 0
        rows.update(**{field: None})
    start = Start(StartKind.CONTINUED, artifact.pk, job.pk)
    begun = build_other(job, start=start)
    assert delete_checkpoint_models(now=late) == 0
    # One that is paused may be resumed, on a node that has fetched nothing yet.
    Job.objects.filter(pk=begun.pk).update(status="paused", finished_at=late, settled_at=late)
    assert delete_checkpoint_models(now=late) == 0
    Job.objects.filter(pk=begun.pk).update(status="cancelled")
    assert delete_checkpoint_models(now=late) == 1
    # The finished adapter is another matter.
    market.end_slice(job, status=SliceEnd.FINISHED, now=NOW)
    assert Artifact.objects.filter(job=job).exclude(file="").exists()
    assert delete_checkpoint_models(now=late) == 0


def test_a_checkpoints_model_stays_while_a_bid_for_it_waits(owner, job):
    market.checkpoint(job, step=4)
    artifact = find(owner, job, 4).take_artifact(now=NOW)
    late = NOW + timedelta(days=30)
    asked = replace(ask_bid(owner, job), deadline_at=late + timedelta(minutes=5))
    assert start_of(draft_bid(asked, now=late)).artifact_id == artifact.pk
    Checkpoint.objects.filter(step=4).update(file="")
    assert delete_checkpoint_models(now=late + timedelta(hours=1)) == 0
    assert delete_checkpoint_models(now=late + timedelta(days=2)) == 1


def test_bids_that_share_a_batch_wait_for_no_checkpoint_to_be_read(owner, job):
    market.checkpoint(job, step=4)
    caller = SimpleNamespace(organisation=owner, user=builders.owner_of(owner), key_id=None)
    dataset = market.dataset(owner, job.zone)
    body = {"zone": job.zone.name, "dataset_id": dataset.pk, "model": f"ft:{job.pk}:ckpt-step-4"}
    body |= {
        "name": "",
        "price": 1_000_000,
        "deadline": timedelta(minutes=5),
        "adapter": {},
        "training": {},
    }
    asked = AskedBid(body, cast(Any, caller), None)
    [unread] = find_new_bids([asked])
    assert isinstance(unread, FilesNotReadError)
    read_files_of_all([asked])
    assert Artifact.everything.get().checkpoint is not None
    [new_bid] = find_new_bids([asked])
    assert isinstance(new_bid, NewBid)


def test_two_requests_at_once_write_one_adapter(owner, job, monkeypatch):
    market.checkpoint(job, step=4)
    model, compose = find(owner, job, 4), tuned_models.compose_adapter
    first: list[Artifact] = []

    def compose_after_another(*args, **more):
        monkeypatch.setattr(tuned_models, "compose_adapter", compose)
        first.append(model.take_artifact(now=NOW))
        return compose(*args, **more)

    monkeypatch.setattr(tuned_models, "compose_adapter", compose_after_another)
    assert [model.take_artifact(now=NOW)] == first
    assert list(Artifact.everything.all()) == first


def test_checkpoints_models_go_with_the_jobs_adapter(owner, job):
    market.checkpoint(job, step=4)
    artifact = find(owner, job, 4).take_artifact(now=NOW)
    market.end_slice(job, status=SliceEnd.FINISHED, now=NOW)
    delete_adapter(job=job, asked_by=builders.owner_of(owner), now=NOW)
    artifact.refresh_from_db()
    assert artifact.deleted_at == NOW
    assert find_tuned_model(f"{job.pk}:ckpt-step-4", organisation=owner) is None
    assert find_tuned_model(job.pk, organisation=owner) is None


def test_nodes_get_the_checkpoints_adapter_that_a_job_begins_with(owner, job):
    market.checkpoint(job, step=4)
    auto = {"rank": "auto"}
    bid = market.bid(owner, job.zone, model=f"ft:{job.pk}:ckpt-step-4", adapter=auto)
    bid.refresh_from_db()
    assert bid.terms.adapter.rank == 8
    artifact = Artifact.everything.get(checkpoint__step=4)
    assert bid.terms.start.artifact_id == artifact.pk
    begun = build.job(job.zone, (0, job.slices.get().node), start=bid.terms.start)
    blob = find_job_blob(begun, "start")
    assert blob is not None
    assert blob.sha256 == artifact.sha256


def ask_bid(owner, job, *, price=1_000_000) -> NewBid:
    return NewBid(
        organisation=owner,
        placed_by=builders.owner_of(owner),
        zone=job.zone,
        dataset=market.dataset(owner, job.zone),
        model=f"ft:{job.pk}:ckpt-step-4",
        name="goes on",
        price_micros=price,
        deadline_at=NOW + timedelta(minutes=5),
        idempotency_key=None,
        adapter={},
        training={"epochs": 1},
    )


def start_of(asked: Bid | MeasuredJob) -> Start:
    assert asked.start is not None
    return asked.start


def test_a_quote_writes_no_adapter_and_a_bid_that_can_be_paid_does(owner, job):
    checkpoint = market.checkpoint(job, step=4)
    start = start_of(measure_job(ask_bid(owner, job), now=NOW))
    assert (start.job_id, start.artifact_id) == (job.pk, "")
    assert not Artifact.everything.exists()
    bid = draft_bid(ask_bid(owner, job), now=NOW)
    artifact = Artifact.everything.get(checkpoint=checkpoint)
    assert start_of(bid).artifact_id == artifact.pk
    # Once it is written, a quote names it.
    assert start_of(measure_job(ask_bid(owner, job), now=NOW)).artifact_id == artifact.pk
    assert not Hold.objects.filter(organisation=owner, reference__startswith="check").exists()


def test_a_bid_that_cannot_be_paid_writes_no_adapter(owner, job):
    market.checkpoint(job, step=4)
    holds, entries = Hold.objects.count(), Entry.objects.count()
    dear = ask_bid(owner, job, price=999_000_000)
    for attempt in (draft_bid, ensure_beginning):
        with pytest.raises(UserError) as caught:
            attempt(dear, now=NOW)
        assert caught.value.code == "insufficient_funds"
    assert not Artifact.everything.exists()
    assert (Hold.objects.count(), Entry.objects.count()) == (holds, entries)


def test_of_a_replaced_checkpoint_it_is_said_what_became_of_it(owner, job):
    replaced = market.checkpoint(job, step=4)
    Checkpoint.objects.filter(pk=replaced.pk).update(file="")
    with pytest.raises(UserError) as caught:
        get_checkpoint(job, replaced.pk)
    assert (caught.value.code, caught.value.status) == ("checkpoint_replaced", 409)
    assert "step 4" in caught.value.message
    assert f"/api/jobs/{job.pk}/checkpoints" in caught.value.message
    with pytest.raises(UserError) as caught:
        get_checkpoint(job, "ckpt_unknown")
    assert caught.value.code == "unknown_checkpoint"


def test_a_bid_may_name_what_it_continues_as_openais_clients_do(owner, job):
    checkpoint = market.checkpoint(job, step=4)
    long_name = name_tuned_model(job, suffix="a b", checkpoint=checkpoint)
    assert long_name.count(":") > 3
    asked = replace(ask_bid(owner, job), model=long_name)
    assert start_of(measure_job(asked, now=NOW)).job_id == job.pk
    other = builders.organisation(usd="5")
    for name in (f"{long_name}0", f"ft:{job.zone.name}:x:{'0' * 26}", "ft:none"):
        with pytest.raises(UserError) as caught:
            measure_job(replace(asked, model=name), now=NOW)
        assert caught.value.code == "unknown_model"
    with pytest.raises(UserError) as caught:
        find_beginning(long_name, organisation=other, zone=job.zone, dataset=asked.dataset, now=NOW)
    assert caught.value.code == "unknown_model"
