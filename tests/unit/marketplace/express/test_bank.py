"""The prompt bank: consent, what stays out, candidates of lookups, hits and withdrawal."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
from django.test import TestCase

from marketplace.common.errors import NotFound
from marketplace.express import bank
from marketplace.express.bank import (
    CANDIDATES_MAX,
    give_consent,
    prepare_lookups,
    record_finished_jobs,
    withdraw_prompt,
)
from marketplace.express.models import BankPrompt, LookupRecord, Sharing
from marketplace.express.prompt_files import (
    PromptValues,
    UnsoundPrompt,
    build_prompts_file,
    check_prompt,
    read_adapter_prompt,
)
from marketplace.express.task_features import WIDTH
from marketplace.jobs.models import CandidatePrompts, Job
from marketplace.jobs.selectors import find_lease_blob
from marketplace.jobs.services import dispatch_slots, finish_slice, store_adapter
from tests import builders
from tests import job_builders as build
from tests import market_builders as market
from tests.builders import NOW
from tests.job_builders import at
from workers.protocol.adapter_files import write_adapter_zip
from workers.protocol.job_spec import AdapterKind, AdapterSpec
from workers.protocol.reports import LookupFigures
from workers.protocol.reports import SliceEnd as Ended
from workers.protocol.safetensors_header import read_header

pytestmark = pytest.mark.django_db

SOFT = AdapterSpec(kind=AdapterKind.SOFT_PROMPT, virtual_tokens=4)
LOOKS_UP = AdapterSpec(kind=AdapterKind.SOFT_PROMPT, virtual_tokens=4, looks_up=True)


@pytest.fixture
def node():
    return market.node(market.zone())


def tune(node, owner, *, seed=0, adapter=SOFT, dataset=None, **figures):
    """A soft-prompt job that ran to its end, and was recorded."""
    job = build.job(node.zone, (0, node), organisation=owner, dataset=dataset, adapter=adapter)
    dispatch_slots(now=NOW)
    held = build.lease(job)
    content = build.adapter_file(seed, adapter=adapter)
    store_adapter(node=node, lease_token=held.lease_token, content=io.BytesIO(content), now=at(2))
    figures = {"copied_tokens": 0, "valid_loss_before": 3.0, "valid_loss_after": 2.0} | figures
    finish_slice(node=node, result=build.result(held, Ended.FINISHED, **figures), now=at(3))
    assert record_finished_jobs(now=at(4)) == 1
    return job


def consenting(sharing=Sharing.EVERYBODY):
    owner = builders.organisation()
    give_consent(organisation=owner, sharing=sharing, given_by=None, now=NOW)
    return owner


def left_out(job):
    return LookupRecord.objects.get(pk=job.pk).left_out


def test_nothing_enters_the_bank_without_consent(node):
    job = tune(node, builders.organisation())
    assert not BankPrompt.objects.exists()
    assert left_out(job) == "Its owner did not consent."


def test_a_consented_prompt_enters_as_numbers_alone_and_once(node):
    owner = consenting()
    job = tune(node, owner)
    [prompt] = BankPrompt.objects.all()
    assert (prompt.job_id, prompt.is_shared, prompt.virtual_tokens, prompt.width) == (
        *(job.pk, True, 4),
        market.SHAPE.hidden_size,
    )
    values = PromptValues.from_bytes(bytes(prompt.values), tokens=4).values
    assert (values == 0.5).all()
    assert len(bytes(prompt.features)) == 4 * WIDTH
    assert record_finished_jobs(now=at(9)) == 0
    # A second job with the same rows, and so with the same values, adds nothing.
    assert left_out(tune(node, owner, dataset=job.dataset)) == "The bank has the same prompt."
    assert BankPrompt.objects.count() == 1


@pytest.mark.parametrize(
    ("figures", "reason"),
    [
        ({"copied_tokens": 4}, "It spells out words of its owner's rows."),
        ({"copied_tokens": None}, "It spells out words of its owner's rows."),
        ({"valid_loss_after": 3.1}, "It has no lower loss on held-out rows than before."),
    ],
)
def test_a_prompt_that_gives_rows_away_or_has_learnt_nothing_stays_out(node, figures, reason):
    job = tune(node, consenting(), **figures)
    assert left_out(job) == reason
    assert not BankPrompt.objects.exists()


@pytest.mark.parametrize(
    ("value", "words"),
    [(math.nan, "finite"), (math.inf, "finite"), (1e6, "far larger"), (0.0, "empty")],
)
def test_a_poisoned_prompt_is_refused(value, words):
    values = np.ones((4, 8), dtype=np.float32)
    values[2] = value
    with pytest.raises(UnsoundPrompt, match=words):
        check_prompt(PromptValues(values))


def test_a_lora_is_no_prompt():
    zipped = io.BytesIO()
    write_adapter_zip(zipped, texts={}, weights=[build.adapter_file()])
    with pytest.raises(UnsoundPrompt):
        read_adapter_prompt(zipped)
    with pytest.raises(UnsoundPrompt):
        read_adapter_prompt(io.BytesIO(b"nothing"))


def test_a_node_gets_the_candidates_of_a_job_that_looks_up_its_start(node):
    shared, private = consenting(), consenting(Sharing.PRIVATE)
    theirs = tune(node, shared, seed=1)
    tune(node, private, seed=2)
    other = builders.organisation()
    job = build.job(node.zone, (0, node), organisation=other, adapter=LOOKS_UP)
    own = build.job(node.zone, (0, node), organisation=private, adapter=LOOKS_UP)

    assert prepare_lookups(now=NOW) == 2
    assert prepare_lookups(now=NOW) == 0

    dispatch_slots(now=NOW)
    names = {}
    for one in (job, own):
        held = build.lease(one)
        blob = find_lease_blob(node=node, lease_token=held.lease_token, name="prompts", now=at(1))
        with blob.file.open("rb") as file:
            entries = read_header(file, size=blob.bytes)
        assert {entry.shape for entry in entries} == {(4, market.SHAPE.hidden_size)}
        names[one.pk] = {entry.name for entry in entries}
    public = BankPrompt.objects.get(job_id=theirs.pk).pk
    assert names[job.pk] == {public}
    assert len(names[own.pk]) == 2
    assert BankPrompt.objects.get(pk=public).offered == 2
    # A fifth of the 1,000 s left, and no more than a minute.
    assert CandidatePrompts.objects.get(job=job).budget_s == 60.0


def test_the_plan_of_a_node_names_the_candidates(node):
    tune(node, consenting(), seed=1)
    job = build.job(node.zone, (0, node), adapter=LOOKS_UP)
    prepare_lookups(now=NOW)
    dispatch_slots(now=NOW)
    [sent] = node.plans.order_by("-revision")[:1]
    [planned] = sent.plan["slices"]
    candidates = CandidatePrompts.objects.get(job=job)
    assert planned["job"]["lookup"]["prompts"]["sha256"] == candidates.sha256
    assert planned["job"]["lookup"]["budget_s"] == candidates.budget_s


def test_a_bank_of_ten_thousand_offers_the_most_similar_few(node):
    owner = consenting()
    features = np.zeros((10_000, WIDTH), dtype=np.float32)
    features[:, 1] = 1.0
    BankPrompt.objects.bulk_create(
        BankPrompt(
            organisation=owner,
            job_id=f"job {i}",
            base_model=f"{node.zone.base_model_source}@",
            is_shared=True,
            virtual_tokens=4,
            width=market.SHAPE.hidden_size,
            values=np.full((4, market.SHAPE.hidden_size), i, dtype="<f4").tobytes(),
            sha256=f"{i:064x}",
            features=features[i].tobytes(),
            created_at=NOW,
        )
        for i in range(10_000)
    )
    job = build.job(node.zone, (0, node), adapter=LOOKS_UP)
    assert prepare_lookups(now=NOW) == 1
    assert BankPrompt.objects.filter(offered=1).count() == CANDIDATES_MAX
    bytes_each = 4 * 4 * market.SHAPE.hidden_size
    assert CandidatePrompts.objects.get(job=job).bytes < CANDIDATES_MAX * (bytes_each + 120)


def test_hits_and_gains_are_counted_once_and_only_for_what_was_offered(node):
    tune(node, consenting(), seed=1)
    [prompt] = BankPrompt.objects.all()

    def found(prompt_id):
        return LookupFigures(prompt_id, 2.0, 2.5, candidates=2, losses=32, seconds=0.5)

    hit = tune(node, builders.organisation(), seed=3, lookup=found(prompt.pk))
    tune(node, builders.organisation(), seed=4, lookup=found("prompt_invented"))
    tune(node, builders.organisation(), seed=5, lookup=found(""))
    prompt.refresh_from_db()
    assert (prompt.hits, prompt.gain) == (1, 0.5)
    # A node that lies about the gain counts for no more than any loss can be.
    lie = LookupFigures(prompt.pk, 2.0, 1e9, candidates=2, losses=32, seconds=0.5)
    tune(node, builders.organisation(), seed=6, lookup=lie)
    prompt.refresh_from_db()
    assert (prompt.hits, prompt.gain) == (2, 20.5)
    assert LookupRecord.objects.get(pk=hit.pk).started_from_id == prompt.pk


def test_a_withdrawn_prompt_is_gone_for_good(node):
    owner = consenting()
    tune(node, owner, seed=1)
    [prompt] = BankPrompt.objects.all()
    with pytest.raises(NotFound):
        withdraw_prompt(organisation=builders.organisation(), prompt_id=prompt.pk, now=NOW)
    for _ in range(2):
        withdraw_prompt(organisation=owner, prompt_id=prompt.pk, now=at(5))
    prompt.refresh_from_db()
    assert (prompt.withdrawn_at, bytes(prompt.values)) == (at(5), b"")
    build.job(node.zone, (0, node), adapter=LOOKS_UP)
    assert prepare_lookups(now=at(6)) == 0


def test_withdrawal_takes_a_prompt_from_lookups_that_have_not_begun(node):
    owner, other = consenting(), consenting()
    tune(node, owner, seed=1)
    tune(node, other, seed=2)
    job = build.job(node.zone, (0, node), adapter=LOOKS_UP)
    assert prepare_lookups(now=NOW) == 1
    file = CandidatePrompts.objects.get(job=job).file
    with TestCase.captureOnCommitCallbacks(execute=True):
        give_consent(organisation=owner, sharing=Sharing.NOBODY, given_by=None, now=at(1))
    assert not CandidatePrompts.objects.exists()
    assert not file.storage.exists(file.name)
    # Others are chosen where there are any.
    assert prepare_lookups(now=at(5)) == 1
    kept = CandidatePrompts.objects.get(job=job)
    with kept.file.open("rb") as content:
        [entry] = read_header(content, size=kept.bytes)
    assert entry.name == BankPrompt.objects.get(organisation=other).pk


def test_a_prompt_that_is_withdrawn_while_its_file_is_written_is_not_handed_out(node, monkeypatch):
    owner = consenting()
    tune(node, owner, seed=1)
    build.job(node.zone, (0, node), adapter=LOOKS_UP)
    choose = bank.choose_candidates

    def withdraw_after(**terms):
        found = choose(**terms)
        give_consent(organisation=owner, sharing=Sharing.NOBODY, given_by=None, now=at(1))
        return found

    monkeypatch.setattr(bank, "choose_candidates", withdraw_after)
    assert prepare_lookups(now=NOW) == 0
    assert not CandidatePrompts.objects.exists()
    assert BankPrompt.objects.get().offered == 0


def test_candidates_are_deleted_once_their_job_has_made_a_step(node):
    tune(node, consenting(), seed=1)
    job = build.job(node.zone, (0, node), adapter=LOOKS_UP)
    prepare_lookups(now=NOW)
    assert bank.drop_used_candidates() == 0
    Job.objects.filter(pk=job.pk).update(step=1)
    assert (bank.drop_used_candidates(), bank.drop_used_candidates()) == (1, 0)


def test_who_takes_consent_back_takes_all_prompts_back(node):
    owner = consenting()
    tune(node, owner, seed=1)
    give_consent(organisation=owner, sharing=Sharing.PRIVATE, given_by=None, now=at(5))
    assert not BankPrompt.objects.get().is_shared
    give_consent(organisation=owner, sharing=Sharing.NOBODY, given_by=None, now=at(6))
    assert bytes(BankPrompt.objects.get().values) == b""


def test_the_file_of_candidates_is_whole():
    content = build_prompts_file({"a": b"\0" * 16, "b": b"\1" * 16}, shape=(2, 2))
    entries = read_header(io.BytesIO(content), size=len(content))
    assert [(entry.name, entry.shape) for entry in entries] == [("a", (2, 2)), ("b", (2, 2))]


def test_a_lookup_is_counted_by_the_prompts_that_there_are(node):
    assert [bank.count_losses(candidates) for candidates in (1, 14, 60)] == [32, 240, 349]
    owner, other = consenting(Sharing.PRIVATE), builders.organisation()
    tune(node, owner, seed=1)

    def count(of, tokens=4):
        return bank.count_candidates(organisation_id=of.pk, zone=node.zone, tokens=tokens)

    assert (count(owner), count(other), count(owner, tokens=5)) == (1, 0, 0)


def test_a_lookup_takes_no_longer_than_was_certified(node):
    tune(node, consenting(), seed=1)
    job = build.job(node.zone, (0, node), adapter=LOOKS_UP)
    task = bank.describe_dataset(job.dataset)
    assert bank.prepare_lookup(job=job, task=task, now=NOW, most_s=1.5)
    assert CandidatePrompts.objects.get(job=job).budget_s == 1.5
