"""Fine-tuning with OpenAI's own client: bids, jobs, events, checkpoints, models."""

from __future__ import annotations

import openai
import pytest

from marketplace.api.models import FineTuningRequest, IdempotencyRecord
from marketplace.api.openai.names import name_file
from marketplace.auction.models import Bid, BidStatus
from marketplace.auction.settlement import settle_finished
from marketplace.common import clock
from marketplace.fleet.models import Provider
from marketplace.jobs.models import Job, MetricPoint
from marketplace.jobs.services import dispatch_slots
from marketplace.payments.selectors import get_wallet
from marketplace.tracking.models import TrackedRun, TrackingService
from marketplace.tracking.services import set_tracking_key
from tests import builders
from tests import market_builders as market
from workers.protocol.reports import SliceEnd

pytestmark = pytest.mark.django_db(transaction=True)

BID = {"bid": {"max_price": "5.00", "deadline": "5m"}}


@pytest.fixture
def data(owner, zone):
    return market.dataset(owner, zone)


@pytest.fixture
def create(client, zone, data, lane):
    def bid(**changed):
        terms = {"model": zone.name, "training_file": name_file(data.pk), "extra_body": BID}
        return client.fine_tuning.jobs.create(**(terms | changed))

    return bid


def finish(job_id):
    """The job on its node, up to its end."""
    job = Job.objects.select_related("zone").get(pk=job_id)
    starts_at = market.slot_at(job.zone, job.cells[0][0])
    job.zone.nodes.update(last_heartbeat_at=starts_at)
    dispatch_slots(now=starts_at)
    held = market.open_slice(job)
    MetricPoint.objects.create(
        job=job, slice=held, seq=1, at=clock.now(), step=1, epoch=0.5, train_loss=2.5
    )
    market.end_slice(job, status=SliceEnd.FINISHED, now=clock.now())
    return Job.objects.get(pk=job_id)


def test_a_job_is_bid_for_and_followed_to_its_model(client, create, zone, data, owner):
    made = create(
        suffix="tone",
        seed=7,
        metadata={"team": "a"},
        method={
            "type": "supervised",
            "supervised": {"hyperparameters": {"n_epochs": 2, "batch_size": 8}},
        },
    )
    bid = Bid.objects.get()
    assert bid.terms.metadata == {"team": "a"}
    training = bid.terms.training
    assert (training.epochs, training.batch_size, training.seed) == (2, 8, 7)
    assert bid.price_micros == 5_000_000
    assert made.id.startswith("ftjob-")
    assert (made.status, made.model, made.seed) == ("queued", zone.name, 7)
    assert (made.training_file, made.metadata) == (name_file(data.pk), {"team": "a"})
    assert (made.hyperparameters.n_epochs, made.hyperparameters.batch_size) == (2, 8)
    assert made.hyperparameters.learning_rate_multiplier == "auto"
    assert made.fine_tuned_model is None
    assert made.trained_tokens is None
    assert made.bid["payment"] == f"{bid.payment_micros / 1e6:.6f}"
    finish(made.id)
    done = client.fine_tuning.jobs.retrieve(made.id)
    assert done.status == "succeeded"
    assert done.fine_tuned_model == f"ft:{zone.name}:{owner.slug}:tone:{made.id[-26:]}"
    results, adapter = done.result_files
    assert client.files.content(adapter).read() == b"zip"
    assert client.files.retrieve(adapter).filename == f"{made.id}-adapter.zip"
    assert client.files.content(results).text.splitlines()[:2] == [
        "step,epoch,train_loss,valid_loss,learning_rate",
        "1,0.5,2.5,,",
    ]
    assert client.files.retrieve(results).purpose == "fine-tune-results"
    models = {model.id: model for model in client.models.list()}
    assert set(models) == {zone.name, done.fine_tuned_model}
    assert client.models.retrieve(done.fine_tuned_model) == models[done.fine_tuned_model]
    assert client.models.retrieve(zone.name).owned_by == "finetender"
    with pytest.raises(openai.BadRequestError) as refused:
        client.models.delete(zone.name)
    assert refused.value.code == "unsupported_operation"
    assert client.models.delete(done.fine_tuned_model).deleted
    assert [model.id for model in client.models.list()] == [zone.name]
    assert client.fine_tuning.jobs.retrieve(made.id).status == "succeeded"


def test_a_job_continues_from_an_adapter(client, create):
    first = create()
    finish(first.id)
    name = client.fine_tuning.jobs.retrieve(first.id).fine_tuned_model
    second = create(model=name)
    assert second.continued_from == first.id
    assert Job.objects.get(pk=second.id).terms.start.job_id == first.id


def test_a_refused_bid_is_402_with_what_would_win_and_is_not_sent_again(create, owner):
    with pytest.raises(openai.APIStatusError) as refused:
        create(extra_body={"bid": {"max_price": "0.01", "deadline": "5m"}})
    assert refused.value.status_code == 402
    assert refused.value.code == "bid_below_price"
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert float(refused.value.body["posted_price"]) > 0.01
    assert refused.value.body["bid"]["status"] == "refused"
    assert Bid.objects.get().status == BidStatus.REFUSED
    assert not Job.objects.exists()
    assert get_wallet(organisation=owner).held_micros == 0


def test_without_money_there_is_no_bid(connect, zone, lane):
    poor = builders.organisation()
    file = name_file(market.dataset(poor, zone).pk)
    with pytest.raises(openai.APIStatusError) as refused:
        connect(poor).fine_tuning.jobs.create(model=zone.name, training_file=file, extra_body=BID)
    assert (refused.value.status_code, refused.value.code) == (402, "insufficient_funds")
    assert not Bid.objects.exists()
    assert not FineTuningRequest.objects.exists()


def test_the_bid_may_stand_in_the_metadata_or_with_the_key(connect, create, client, owner, zone):
    with pytest.raises(openai.BadRequestError) as refused:
        create(extra_body=None)
    assert refused.value.code == "bid_required"
    metadata = {"bid_max_price": "2.50", "bid_deadline": "4m"}
    assert create(extra_body=None, metadata=metadata).bid["max_price"] == "2.500000"
    by_key = connect(owner, bid_price_micros=3_000_000, bid_deadline_s=200)
    before = clock.now()
    file = name_file(market.dataset(owner, zone).pk)
    made = by_key.fine_tuning.jobs.create(model=zone.name, training_file=file)
    bid = Bid.objects.get(pk=made.bid["id"])
    assert bid.price_micros == 3_000_000
    assert 200 <= (bid.deadline_at - before).total_seconds() < 230


def test_a_retry_of_the_client_is_the_same_job_and_a_second_request_another(create):
    first = create()
    again = create(extra_headers={"x-stainless-retry-count": "1"})
    assert again == first
    assert create().id != first.id
    keyed = create(extra_headers={"Idempotency-Key": "k1"})
    assert create(extra_headers={"Idempotency-Key": "k1"}) == keyed
    assert Bid.objects.count() == 3


def test_a_bid_whose_answer_was_lost_with_its_process_is_found_again(create):
    first = create(extra_headers={"Idempotency-Key": "k1"})
    IdempotencyRecord.objects.all().delete()
    assert create(extra_headers={"Idempotency-Key": "k1"}) == first
    assert Bid.objects.count() == 1


def test_lists_turn_pages_and_filter_by_metadata(client, create):
    made = [create(metadata={"n": str(n)}).id for n in range(3)]
    made.append(create().id)
    assert [job.id for job in client.fine_tuning.jobs.list(limit=2)] == made[::-1]
    named = client.fine_tuning.jobs.list(extra_query={"metadata[n]": "1"})
    assert [job.id for job in named] == [made[1]]
    bare = client.fine_tuning.jobs.list(extra_query={"metadata": "null"})
    assert [job.id for job in bare] == [made[3]]


def test_events_and_measurements_are_one_list_that_turns_pages(client, create):
    job_id = create().id
    finish(job_id)
    whole = client.fine_tuning.jobs.list_events(job_id, limit=100).data
    kinds = [(event.type, event.data.get("kind")) for event in whole]
    assert kinds[-1] == ("message", "opened")
    assert ("message", "succeeded") in kinds
    [point] = [event for event in whole if event.type == "metrics"]
    assert (point.data["step"], point.data["train_loss"]) == (1, 2.5)
    assert "training loss=2.5000" in point.message
    turned = list(client.fine_tuning.jobs.list_events(job_id, limit=1))
    assert [event.id for event in turned] == [event.id for event in whole]
    with pytest.raises(openai.BadRequestError):
        client.fine_tuning.jobs.list_events(job_id, after="ftevent-zz")


def test_a_job_says_what_becomes_of_its_integration(client, create, owner):
    wandb = {"type": "wandb", "wandb": {"project": "tone", "tags": ["a"]}}
    made = create(integrations=[wandb])
    assert made.integrations[0].wandb.project == "tone"
    [opened] = client.fine_tuning.jobs.list_events(made.id)
    assert opened.message.endswith(
        "Nothing is sent to Weights & Biases: your organisation had no key for it. Set one under "
        "/settings/tracking."
    )
    [plain] = client.fine_tuning.jobs.list_events(create(suffix="plain").id)
    assert "Weights" not in plain.message

    user = builders.user()
    set_tracking_key(
        organisation=owner,
        service=TrackingService.WANDB,
        key="k" * 40,
        set_by=user,
        now=clock.now(),
    )
    made = create(suffix="tracked", integrations=[wandb])
    run = TrackedRun.objects.get()
    assert (run.project, run.tags, run.bid_id) == (
        "tone",
        ["a"],
        Job.objects.get(pk=made.id).bid_id,
    )
    [opened] = client.fine_tuning.jobs.list_events(made.id)
    assert opened.message.endswith("Measurements go to Weights & Biases, project tone.")
    TrackedRun.objects.update(reason="invalid key.", ended_at=clock.now())
    [opened] = client.fine_tuning.jobs.list_events(made.id)
    assert opened.message.endswith(
        "Not all is at Weights & Biases: invalid key. Nothing more is sent."
    )

    both = [wandb, {"type": "mlflow", "mlflow": {"experiment": "tone", "tags": ["a"]}}]
    [opened] = client.fine_tuning.jobs.list_events(create(suffix="both", integrations=both).id)
    assert "Nothing is sent to MLflow: your organisation had no key" in opened.message
    assert opened.message.endswith("Measurements go to Weights & Biases, project tone.")
    for wrong in ({"type": "neptune"}, {"type": "mlflow", "wandb": {"project": "tone"}}, "mlflow"):
        with pytest.raises(openai.BadRequestError):
            create(suffix="wrong", integrations=[wrong])


def test_a_paused_job_is_resumed_as_another_once(client, create):
    first = create(suffix="tone", metadata={"team": "a"})
    with pytest.raises(openai.ConflictError) as refused:
        client.fine_tuning.jobs.resume(first.id)
    assert refused.value.code == "not_resumable"
    assert client.fine_tuning.jobs.pause(first.id).status == "paused"
    assert client.fine_tuning.jobs.pause(first.id).status == "paused"
    with pytest.raises(openai.ConflictError) as refused:
        client.fine_tuning.jobs.resume(first.id)
    assert refused.value.code == "not_settled"
    settle_finished(now=clock.now())
    kept = Bid.objects.get().paid_micros
    low = {"bid": {"max_price": "0.000001"}}
    with pytest.raises(openai.APIStatusError) as lost:
        client.fine_tuning.jobs.resume(first.id, extra_body=low)
    assert (lost.value.status_code, lost.value.code) == (402, "bid_below_price")
    second = client.fine_tuning.jobs.resume(first.id)
    assert client.fine_tuning.jobs.resume(first.id).id == second.id
    assert (second.resumed_from, second.status) == (first.id, "queued")
    assert second.metadata == {"team": "a"}
    assert second.bid["max_price"] == f"{(5_000_000 - kept) / 1e6:.6f}"
    assert second.bid["deadline"] == first.bid["deadline"]
    assert first.resumed_from is None
    assert client.fine_tuning.jobs.retrieve(first.id).status == "paused"
    assert Job.objects.count() == 2


def test_a_job_is_cancelled_once(client, create):
    job_id = create().id
    assert client.fine_tuning.jobs.cancel(job_id).status == "cancelled"
    assert client.fine_tuning.jobs.cancel(job_id).status == "cancelled"
    assert client.fine_tuning.jobs.checkpoints.list(job_id).data == []


def test_a_multiplier_multiplies_the_rate_that_auto_would_choose(create):
    rates = []
    for multiplier in ("auto", 0.5):
        made = create(hyperparameters={"learning_rate_multiplier": multiplier, "n_epochs": 1})
        assert made.hyperparameters.learning_rate_multiplier == multiplier
        rates.append(Job.objects.get(pk=made.id).terms.training.learning_rate)
    assert rates[1] == 0.5 * rates[0]


def test_a_validation_file_is_held_out_and_nothing_of_the_training_file(
    client, create, zone, owner
):
    trained, held_out = (
        market.dataset(owner, zone, texts=[f"{word} {n}" for n in range(4)])
        for word in ("cats", "dogs")
    )
    made = create(
        training_file=name_file(trained.pk), validation_file=name_file(held_out.pk), suffix="tone"
    )
    assert made.validation_file == name_file(held_out.pk)
    assert client.fine_tuning.jobs.retrieve(made.id).validation_file == name_file(held_out.pk)
    bid, job = Bid.objects.get(), Job.objects.get(pk=made.id)
    assert (bid.validation_dataset_id, job.validation_dataset_id) == (held_out.pk, held_out.pk)
    assert job.terms.training.validation_share == 0.0


def test_a_validation_file_with_rows_of_the_training_file_is_refused(create, zone, owner):
    trained = market.dataset(owner, zone, texts=["a", "b", "c"])
    leaky = market.dataset(owner, zone, texts=["x", "b", "c"])
    with pytest.raises(openai.BadRequestError, match="line 2, 3 of the validation") as refused:
        create(training_file=name_file(trained.pk), validation_file=name_file(leaky.pk))
    assert (refused.value.code, refused.value.param) == ("unfit_dataset", "validation_file")
    assert not Bid.objects.exists()


@pytest.mark.parametrize(
    ("changed", "status", "code", "param"),
    [
        ({"model": "gpt-4o"}, 404, "model_not_found", "model"),
        ({"training_file": "file-abc"}, 404, "unknown_file", "training_file"),
        ({"validation_file": "file-abc"}, 404, "unknown_file", "validation_file"),
        ({"method": {"type": "reinforcement"}}, 400, "unsupported_method", "method.type"),
        ({"method": {"type": "dpo"}}, 400, "unfit_dataset", "method.type"),
        ({"suffix": "x" * 65}, 400, "invalid_request", "suffix"),
        ({"seed": -1}, 400, "invalid_request", "seed"),
        ({"hyperparameters": {"n_epochs": 51}}, 400, "invalid_request", "hyperparameters.n_epochs"),
        ({"metadata": {"k": "\0"}}, 400, "invalid_request", "metadata.k"),
        ({"extra_body": {"bid": {"max_prise": "1"}}}, 400, "invalid_request", "bid.max_prise"),
        (
            {"extra_body": {"bid": {"max_price": "1", "deadline": "soon"}}},
            400,
            "invalid_deadline",
            "bid.deadline",
        ),
    ],
)
def test_a_wrong_request_is_refused_and_leaves_no_trace(
    create, owner, changed, status, code, param
):
    with pytest.raises(openai.APIStatusError) as refused:
        create(**changed)
    error = refused.value
    assert (error.status_code, error.code, error.param) == (status, code, param), error.body
    assert not Bid.objects.exists()
    assert get_wallet(organisation=owner).held_micros == 0


def test_what_belongs_to_another_organisation_is_not_there(connect, client, create, zone):
    made = create()
    finish(made.id)
    done = client.fine_tuning.jobs.retrieve(made.id)
    other = connect(builders.organisation(usd="10"))
    calls = [
        lambda: other.fine_tuning.jobs.retrieve(made.id),
        lambda: other.fine_tuning.jobs.cancel(made.id),
        lambda: other.fine_tuning.jobs.pause(made.id),
        lambda: other.fine_tuning.jobs.list_events(made.id),
        lambda: other.fine_tuning.jobs.checkpoints.list(made.id),
        lambda: other.files.retrieve(made.training_file),
        lambda: other.files.content(made.training_file),
        lambda: other.files.delete(made.training_file),
        lambda: other.files.content(done.result_files[0]),
        lambda: other.models.retrieve(done.fine_tuned_model),
    ]
    for call in calls:
        with pytest.raises(openai.NotFoundError):
            call()
    assert list(other.fine_tuning.jobs.list()) == []
    assert list(other.files.list()) == []
    assert [model.id for model in other.models.list()] == [zone.name]


def test_errors_are_those_of_the_client(connect, client, web, owner):
    with pytest.raises(openai.AuthenticationError) as refused:
        openai.OpenAI(base_url=f"{web}/v1", api_key="ft_wrong", max_retries=0).models.list()
    assert refused.value.code == "invalid_api_key"
    assert refused.value.request_id.startswith("req_")
    with pytest.raises(openai.PermissionDeniedError) as refused:
        connect(owner, scopes=["bids:read"]).models.list()
    assert refused.value.code == "missing_scope"
    with pytest.raises(openai.NotFoundError) as refused:
        client.get("/nothing", cast_to=object)
    assert refused.value.code == "unknown_url"


def test_a_job_may_ask_for_verified_providers_only(create, connect, data, owner, zone):
    own = {"bid": {**BID["bid"], "verified_only": True}}
    told = {"bid_max_price": "5.00", "bid_verified_only": "true"}
    for terms in ({"extra_body": own}, {"extra_body": None, "metadata": told}):
        with pytest.raises(openai.APIStatusError) as refused:
            create(**terms)
        assert (refused.value.status_code, refused.value.code) == (402, "no_verified_node")
    with pytest.raises(openai.BadRequestError) as wrong:
        create(extra_body=None, metadata=told | {"bid_verified_only": "yes"})
    assert wrong.value.code == "invalid_verified_only"
    Provider.objects.update(verified_at=clock.now())
    assert create(extra_body=own).bid["verified_only"] is True
    assert create(seed=3).bid["verified_only"] is False
    owner.verified_only = True
    owner.save()
    # A key that was used lately may be known for a second as it was.
    jobs = connect(owner).fine_tuning.jobs
    terms = {"model": zone.name, "training_file": name_file(data.pk)}
    assert jobs.create(**terms, extra_body=BID).bid["verified_only"] is True
    off = {"bid": {**BID["bid"], "verified_only": False}}
    assert jobs.create(**terms, seed=5, extra_body=off).bid["verified_only"] is False
