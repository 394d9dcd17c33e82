"""Validation data: what may validate what, and the work that evaluating them is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marketplace.auction.bidding.job_request import JobRequest
from marketplace.auction.bidding.measure import measure_job
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.common.errors import UserError
from marketplace.fleet.selectors import get_work_costs
from marketplace.jobs import held_out as held_out_data
from marketplace.jobs.models import Dataset, HeldOutCheck, Job, NodePlan
from marketplace.jobs.services import check_held_out, dispatch_slots
from marketplace.jobs.work import load_work_plan
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from workers.protocol.messages import SlotPlan
from workers.protocol.wire import from_json
from workers.protocol.work import PARTS, RowLengths, WorkPlan

pytestmark = pytest.mark.django_db


@pytest.fixture
def zone():
    # Evaluating a row is as much work as training on it.
    return market.zone(work_costs={"token": PARTS // 128, "forward": PARTS})


@pytest.fixture
def owner():
    return builders.organisation(usd="20")


def texts(word: str, count: int) -> list[str]:
    return [f"{word} {n}" for n in range(count)]


def find_problem(dataset: Dataset, held_out: Dataset) -> str:
    with pytest.raises(UserError) as caught:
        check_held_out(dataset=dataset, held_out=held_out)
    assert (caught.value.code, caught.value.param) == ("unfit_dataset", "validation_dataset_id")
    return caught.value.message


def test_all_rows_are_trained_on_and_all_validation_rows_are_evaluated(zone, owner):
    market.node(zone)
    data = market.dataset(owner, zone, texts=texts("cat", 40))
    held_out = market.dataset(owner, zone, texts=texts("dog", 5))
    bid = market.bid(owner, zone, data=data, validation=held_out)
    decide_pending_bids(zone=zone, now=NOW)
    job = Job.objects.get(bid_id=bid.pk)
    assert (job.dataset, job.validation_dataset) == (data, held_out)
    plan = load_work_plan(job)
    rows = [[(100, 99)]]
    expected = WorkPlan(
        get_work_costs(zone),
        job.terms.training,
        train=RowLengths.of(rows * 40),
        valid=RowLengths.of(rows * 5),
    )
    assert plan.total_units == expected.total_units == bid.compute_demand
    assert plan.evaluation_units == 5
    assert bid.samples == 40
    dispatch_slots(now=market.slot_at(zone, 101))
    [held] = from_json(SlotPlan, NodePlan.objects.latest("pk").plan).slices
    assert held.job.validation_dataset is not None
    assert held.job.validation_dataset.sha256 == held_out.sha256


def test_rows_that_stand_in_both_are_refused_however_they_are_spelled(zone, owner):
    data = market.dataset(owner, zone, texts=["a", "b", "c", "d", "e", "f", "g"])
    leaky = market.dataset(owner, zone, texts=["z", "g", "f", "e", "d", "c", "b"])
    with leaky.file.open("rb") as file:
        rows = [json.loads(line) for line in file]
    spelled = "\n".join(json.dumps({"note": 1, **row}, indent=None) for row in rows)
    Path(leaky.file.path).write_text(spelled)
    assert find_problem(data, leaky).startswith("6 rows stand both")
    assert "line 2, 3, 4, 5, 6 and more" in find_problem(data, leaky)
    assert "line 1, 2, 3, 4, 5 and more" in find_problem(data, data)


def test_each_pair_is_compared_once(zone, owner, monkeypatch):
    data = market.dataset(owner, zone, texts=["a", "b"])
    fit, leaky = (market.dataset(owner, zone, texts=some) for some in (["c"], ["b"]))
    check_held_out(dataset=data, held_out=fit)
    problem = find_problem(data, leaky)
    monkeypatch.delattr(held_out_data, "_compare_rows")
    check_held_out(dataset=data, held_out=fit)
    assert find_problem(data, leaky) == problem
    assert HeldOutCheck.objects.count() == 2
    leaky.delete()
    assert HeldOutCheck.objects.get().held_out == fit


def test_other_formats_unknown_labels_and_faulty_lines_are_refused(zone, owner):
    data = market.dataset(owner, zone, texts=["a"])
    other = market.dataset(owner, zone, texts=["b"])
    other.format = "completion"
    assert "are completion and the training data chat" in find_problem(data, other)
    faulty = market.dataset(owner, zone, texts=["b"])
    faulty.faulty = 2
    assert find_problem(data, faulty).startswith("2 lines of the validation data are no rows")
    labelled, unknown = (market.dataset(owner, zone, texts=["a"]) for _ in range(2))
    for row, labels in ((labelled, "xy"), (unknown, "xz")):
        row.format = "classification"
        lines = [json.dumps({"text": f"{row.pk} {n}", "label": n}) for n in labels]
        Path(row.file.path).write_text("\n".join(lines))
    assert find_problem(labelled, unknown).startswith(
        "Line 2 of the validation data has the label 'z'"
    )


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"training": {"validation_share": 0.2}}, "training.validation_share"),
        ({"preparation": {}}, "preparation"),
    ],
)
def test_rows_are_held_out_in_one_way_only(zone, owner, changed, param):
    data, held_out = (market.dataset(owner, zone, texts=[word]) for word in "ab")
    with pytest.raises(UserError) as caught:
        market.bid(owner, zone, data=data, validation=held_out, **changed)
    assert (caught.value.code, caught.value.param) == ("invalid_hyperparameter", param)


def test_early_stopping_may_look_at_validation_data(zone, owner):
    data, held_out = (market.dataset(owner, zone, texts=[word]) for word in "ab")
    terms = market.job_terms(early_stopping=2)
    measured = measure_job(JobRequest(owner, zone, data, **terms, validation=held_out), now=NOW)
    assert measured.terms.training.early_stopping == 2


def test_another_organisations_data_validate_nothing(zone, owner):
    data = market.dataset(owner, zone, texts=["a"])
    foreign = market.dataset(builders.organisation(), zone, texts=["b"])
    with pytest.raises(UserError) as caught:
        market.bid(owner, zone, data=data, validation=foreign)
    assert (caught.value.code, caught.value.param) == ("unknown_dataset", "validation_dataset_id")


def test_the_same_key_with_other_validation_data_is_another_request(zone, owner):
    data, first, second = (market.dataset(owner, zone, texts=[word]) for word in "abc")
    market.bid(owner, zone, data=data, validation=first, key="k")
    with pytest.raises(UserError) as caught:
        market.bid(owner, zone, data=data, validation=second, key="k")
    assert caught.value.code == "idempotency_key_reused"
