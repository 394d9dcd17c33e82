"""Work is checked by another provider's node: who is asked, paid, believed, and what follows."""

from __future__ import annotations

import io
from datetime import timedelta

import numpy as np
import pytest
from safetensors.numpy import save

from marketplace.checks import errands, sampling
from marketplace.checks.errands import ANSWER_WITHIN
from marketplace.checks.models import SpotCheck
from marketplace.checks.sampling import choose_checks
from marketplace.common.errors import Conflict, NotFound
from marketplace.fleet.models import Node, NodeStatus, Provider
from marketplace.jobs.errands import find_errand_blob, hand_out_errands, sweep_errands
from marketplace.jobs.executed_work import (
    list_organisations_at_fault,
    list_slices,
    measure_executed_work,
)
from marketplace.jobs.models import ErrandState, Job, JobStatus, Slice, SliceStatus
from marketplace.jobs.services import (
    discard_node_work,
    dispatch_slots,
    record_progress,
    store_checkpoint,
)
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.models import Earning, Entry, EntryKind
from tests import job_builders as build
from tests import market_builders as market
from tests.builders import NOW
from tests.errand_builders import answer_errand, list_errands
from tests.job_builders import at
from workers.protocol.checks import STEPS_MAX, CheckResult, StepLoss, losses_agree
from workers.protocol.errands import CHECK, ErrandSpec
from workers.protocol.weight_sketch import read_checkpoint_weights, sketch_weights

pytestmark = pytest.mark.django_db

#: What the node says of its first eight steps.
CLAIMED = {step: 3.0 - 0.1 * step for step in range(1, STEPS_MAX + 1)}


@pytest.fixture(autouse=True)
def every_step_is_checked(settings):
    settings.SPOT_CHECK_SHARE = 1.0


@pytest.fixture(autouse=True)
def a_node_that_stores_nothing_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(errands, "WEIGHTS_WITHIN", timedelta(0))


@pytest.fixture
def zone():
    return market.zone()


def run_job(zone, node: Node) -> Slice:
    """A job on its way on the node, which reported its first steps."""
    made = build.job(zone, *((slot, node) for slot in range(4)))
    dispatch_slots(now=NOW)
    held = build.lease(made)
    events = [build.event(step, step=step, train_loss=loss) for step, loss in CLAIMED.items()]
    record_progress(node=node, report=build.report(held, *events), now=at(1))
    return held


def asked_of(node: Node) -> ErrandSpec | None:
    """The latest check in the node's newest plan."""
    checks = list_errands(node, CHECK)
    return checks[-1] if checks else None


def tick(seconds: float) -> int:
    choose_checks(now=at(seconds))
    sweep_errands(now=at(seconds))
    return hand_out_errands(now=at(seconds))


def answer(node: Node, check: ErrandSpec, *, by: float = 0.0, seconds: float = 3) -> None:
    losses = tuple(StepLoss(step, loss + by) for step, loss in CLAIMED.items())
    answer_errand(node, check.token, CheckResult(losses), now=at(seconds))


def test_a_node_of_another_provider_is_asked_for_the_reported_steps_and_paid(zone):
    node, checker = market.node(zone), market.node(zone)
    market.node(zone, of=node.provider)
    run_job(zone, node)
    assert tick(2) == 1
    assert tick(2) == 0
    check = asked_of(checker)
    assert check is not None
    assert (check.task.until_step, check.task.resume_from) == (STEPS_MAX, None)
    assert check.task.job.job_id == SpotCheck.objects.get().pk
    blob = find_errand_blob(node=checker, token=check.token, name="dataset", now=at(2))
    assert blob.sha256 == check.task.job.dataset.sha256
    for stranger, name in ((node, "dataset"), (checker, "checkpoint"), (checker, "../x")):
        with pytest.raises(NotFound):
            find_errand_blob(node=stranger, token=check.token, name=name, now=at(2))

    answer(checker, check, by=0.01)
    answer(checker, check, by=9.0)
    row = SpotCheck.objects.get()
    assert (row.state, row.agrees) == (ErrandState.DONE, True)
    assert (row.failed_at, row.node) == (None, checker)
    # 8 of 13 steps of a job of 100 units, at 0.40 dollars for 400 units; once.
    earning = Earning.objects.get()
    assert earning.organisation == checker.provider.organisation
    assert earning.amount_micros == row.paid_micros > 0
    assert Entry.objects.filter(kind=EntryKind.CHECK_PAY).count() == 1
    assert check_ledger().balanced
    assert Node.objects.get(pk=node.pk).status == NodeStatus.ONLINE


@pytest.mark.parametrize("alike", [0, 1])
def test_a_node_with_the_same_release_of_pytorch_is_asked_first(zone, alike):
    node, *others = market.node(zone), market.node(zone), market.node(zone)
    for one, version in (
        (node, "2.13.0+cu130"),
        (others[alike], "2.13.0"),
        (others[1 - alike], "2.9"),
    ):
        one.facts = {**one.facts, "torch_version": version}
        one.save(update_fields=["facts"])
    run_job(zone, node)
    assert tick(2) == 1
    assert asked_of(others[alike]) is not None


def test_a_stranger_answers_no_check_and_a_late_answer_is_not_taken(zone):
    node, checker = market.node(zone), market.node(zone)
    run_job(zone, node)
    tick(2)
    check = asked_of(checker)
    assert check is not None
    with pytest.raises(NotFound):
        answer(node, check, by=9.0)
    with pytest.raises(Conflict):
        answer(checker, check, by=9.0, seconds=3 + ANSWER_WITHIN.total_seconds())
    row = SpotCheck.objects.get()
    assert (row.state, row.found, row.paid_micros) == (ErrandState.ASKED, [], 0)
    answer_errand(checker, check.token, CheckResult(), now=at(4))
    row = SpotCheck.objects.get()
    assert (row.state, row.agrees) == (ErrandState.WAITING, None)
    assert not Earning.objects.exists()


def test_a_checker_that_falls_silent_is_replaced(zone):
    node, first, second = market.node(zone), market.node(zone), market.node(zone)
    run_job(zone, node)
    tick(2)
    asked = SpotCheck.objects.get().node
    assert asked in (first, second)
    later = 3 + ANSWER_WITHIN.total_seconds()
    Node.objects.update(last_heartbeat_at=at(later))
    assert tick(later) == 1
    row = SpotCheck.objects.get()
    assert (row.attempts, row.node) == (2, second if asked == first else first)


def test_one_opinion_sets_no_node_aside_and_two_do(zone):
    node, first, second = market.node(zone), market.node(zone), market.node(zone)
    market.node(zone, of=first.provider)
    held = run_job(zone, node)
    tick(2)
    opinion = SpotCheck.objects.get()
    checker = first if opinion.node == first else opinion.node
    assert checker is not None
    spec = asked_of(checker)
    assert spec is not None
    answer(checker, spec, by=1.0)
    assert Node.objects.get(pk=node.pk).status == NodeStatus.ONLINE
    tick(4)
    confirmation = SpotCheck.objects.get(confirms=opinion)
    other = confirmation.node
    assert other is not None
    assert other.provider_id not in (node.provider_id, checker.provider_id)
    spec = asked_of(other)
    assert spec is not None
    answer(other, spec, by=1.0, seconds=5)

    suspended = Node.objects.get(pk=node.pk)
    assert (suspended.status, suspended.suspended_at) == (NodeStatus.SUSPENDED, at(5))
    assert SpotCheck.objects.get(confirms=opinion).failed_at == at(5)
    job = Job.objects.get()
    assert (job.step, job.checkpoint_step, job.needs_replan) == (0, 0, True)
    lost = Slice.objects.get(pk=held.pk)
    assert (lost.status, lost.last_step) == (SliceStatus.LOST, 0)
    # What it did counts for nothing.
    assert measure_executed_work(job).by_node == ()
    assert second.pk in {first.pk, second.pk}


def test_a_second_opinion_that_agrees_clears_the_node(zone):
    node, _, _ = market.node(zone), market.node(zone), market.node(zone)
    run_job(zone, node)
    for seconds, by in ((2, 1.0), (4, 0.0)):
        tick(seconds)
        check = SpotCheck.objects.get(state=ErrandState.ASKED)
        assert check.node is not None
        spec = asked_of(check.node)
        assert spec is not None
        answer(check.node, spec, by=by, seconds=seconds + 1)
    opinions = SpotCheck.objects.order_by("created_at").values_list("agrees", flat=True)
    assert list(opinions) == [False, True]
    assert Node.objects.get(pk=node.pk).status == NodeStatus.ONLINE
    assert Job.objects.get().status == JobStatus.RUNNING


def test_a_verified_providers_word_is_enough(zone):
    node, checker = market.node(zone), market.node(zone)
    Provider.objects.filter(pk=checker.provider_id).update(verified_at=NOW)
    run_job(zone, node)
    tick(2)
    spec = asked_of(checker)
    assert spec is not None
    answer(checker, spec, by=1.0)
    assert Node.objects.get(pk=node.pk).status == NodeStatus.SUSPENDED


def test_a_failed_nodes_checkpoints_are_passed_over_and_another_nodes_are_not(zone):
    honest, node, checker = (market.node(zone) for _ in range(3))
    Provider.objects.filter(pk=checker.provider_id).update(verified_at=NOW)
    Node.objects.filter(pk=honest.pk).update(status=NodeStatus.DRAINING)
    made = build.job(zone, (0, honest), *((slot, node) for slot in range(1, 5)))
    dispatch_slots(now=NOW)
    first = build.lease(made)
    record_progress(node=honest, report=build.report(first, build.event(1, step=3)), now=at(1))
    keep(honest, first, step=3)
    Slice.objects.filter(pk=first.pk).update(
        status=SliceStatus.PAUSED, closed_at=at(9), last_step=3
    )
    dispatch_slots(now=at(10))
    held = build.lease(made)
    events = [build.event(s, step=s, train_loss=1.0) for s in range(4, 12)]
    record_progress(node=node, report=build.report(held, *events), now=at(11))
    keep(node, held, step=8)
    choose_checks(now=at(12))
    check = SpotCheck.objects.get(slice=held)
    assert (check.from_step, bool(check.file)) == (8, True)
    hand_out_errands(now=at(12))
    # Three steps are reported of those after it; when the slice ends, they have to do.
    assert asked_of(checker) is None
    Slice.objects.filter(pk=held.pk).update(status=SliceStatus.PAUSED, closed_at=at(13))
    hand_out_errands(now=at(14))
    spec = asked_of(checker)
    assert spec is not None
    assert spec.task.resume_from is not None
    blob = find_errand_blob(node=checker, token=spec.token, name="checkpoint", now=at(14))
    assert blob.sha256 == spec.task.resume_from.blob.sha256
    losses = tuple(StepLoss(step, 2.0) for step in range(9, 12))
    answer_errand(checker, spec.token, CheckResult(losses), now=at(15))
    job = Job.objects.get()
    assert (job.checkpoint_step, job.needs_replan) == (3, True)
    assert list(job.checkpoints.exclude(file="").values_list("step", flat=True)) == [3]


def keep(node: Node, held: Slice, *, step: int) -> None:
    store_checkpoint(
        node=node,
        lease_token=held.lease_token,
        step=step,
        content=io.BytesIO(build.safetensors(step)),
        now=at(1 if step < 4 else 11),
    )


def test_the_draw_is_the_markets_own_and_falls_on_its_share(settings):
    settings.SPOT_CHECK_SHARE = 0.1
    drawn = {name for name in map(str, range(2000)) if sampling.is_drawn(name)}
    assert 140 < len(drawn) < 260
    assert drawn == {name for name in map(str, range(2000)) if sampling.is_drawn(name)}
    settings.SECRET_KEY = "another"
    assert drawn != {name for name in map(str, range(2000)) if sampling.is_drawn(name)}
    settings.SPOT_CHECK_SHARE = 0.0
    assert not any(sampling.is_drawn(name) for name in drawn)


@pytest.mark.parametrize(
    ("found", "agrees"),
    [
        ({1: 2.0, 2: 1.9}, True),
        ({1: 2.11, 2: 1.82}, True),
        ({1: 2.5, 2: 2.4}, False),
        ({1: 2.0, 2: 2.4}, True),
        ({3: 2.0}, None),
        ({1: float("nan"), 2: float("nan")}, False),
    ],
)
def test_losses_agree_within_what_devices_differ_by(found, agrees):
    assert losses_agree({1: 2.0, 2: 1.9}, found) is agrees


def test_what_was_built_on_a_failed_nodes_checkpoint_is_taken_back_at_its_fault_alone(zone):
    liar, honest = market.node(zone), market.node(zone)
    made = build.job(zone, (0, liar), *((slot, honest) for slot in range(1, 5)))
    dispatch_slots(now=NOW)
    first = build.lease(made)
    record_progress(node=liar, report=build.report(first, build.event(1, step=3)), now=at(1))
    keep(liar, first, step=3)
    Slice.objects.filter(pk=first.pk).update(
        status=SliceStatus.PAUSED, closed_at=at(9), last_step=3
    )
    dispatch_slots(now=at(10))
    held = build.lease(made)
    record_progress(node=honest, report=build.report(held, build.event(1, step=5)), now=at(11))
    for _ in range(2):
        discard_node_work(node=liar, reason="It reported what it did not do.", now=at(12))
        job = Job.objects.get()
        assert (job.checkpoint_step, job.step, job.needs_replan) == (0, 0, True)
        taken = Slice.objects.get(pk=held.pk)
        assert (taken.status, taken.closed_at) == (SliceStatus.PAUSED, at(12))
    at_fault = list_organisations_at_fault(Job.objects.get(), list_slices(job))
    assert at_fault == [liar.provider.organisation_id]


# -- weights --------------------------------------------------------------------------------------

WIDTH = 64


def weights_at(step: int, *, way: float = 1.0) -> bytes:
    """A checkpoint whose weights go one way with every step."""
    rng = np.random.default_rng(0)
    return save(
        {
            "param/layer.lora_A": rng.normal(size=(4, WIDTH)).astype("f4") + 0.01 * way * step,
            "param/layer.lora_B": np.full((4, WIDTH), 0.1 * way * step, "f4"),
            "mean/layer.lora_A": np.zeros((4, WIDTH), "f4"),
        }
    )


def sketch_of(content: bytes, seed: str) -> tuple[float, ...]:
    weights = read_checkpoint_weights(io.BytesIO(content), size=len(content))
    return tuple(sketch_weights(weights, seed=seed))


def run_with_checkpoints(zone, node: Node, *stored: bytes) -> Slice:
    """A node that reports true losses, and stores these checkpoints after 2, 4, 6 ... steps."""
    held = run_job(zone, node)
    for number, content in enumerate(stored, start=1):
        store_checkpoint(
            node=node,
            lease_token=held.lease_token,
            step=2 * number,
            content=io.BytesIO(content),
            now=at(1),
        )
    return held


def answer_with_weights(check: SpotCheck, *, seconds: float, trained: bytes | None = None) -> None:
    """The checker finds the losses that were reported, and the weights that training leads to."""
    checker = check.node
    assert checker is not None
    [spec] = [one for one in list_errands(checker, CHECK) if one.token == check.token]
    assert spec.task.until_step == check.end_step
    steps = range(check.from_step + 1, spec.task.until_step + 1)
    result = CheckResult(
        tuple(StepLoss(step, CLAIMED[step]) for step in steps),
        sketch=sketch_of(trained or weights_at(spec.task.until_step), spec.task.sketch_seed),
    )
    answer_errand(checker, spec.token, result, now=at(seconds))


def test_true_losses_with_an_adapter_that_was_not_trained_set_a_node_aside_unpaid(zone):
    node, checker = market.node(zone), market.node(zone)
    Provider.objects.filter(pk=checker.provider_id).update(verified_at=NOW)
    run_with_checkpoints(zone, node, weights_at(0))
    tick(2)
    check = SpotCheck.objects.get(from_step=0)
    assert (check.state, check.end_step) == (ErrandState.ASKED, 2)
    answer_with_weights(check, seconds=3)
    check.refresh_from_db()
    assert (check.agrees, check.weights_agree) == (False, False)
    assert Node.objects.get(pk=node.pk).status == NodeStatus.SUSPENDED
    job = Job.objects.get()
    assert (job.step, job.checkpoint_step, job.needs_replan) == (0, 0, True)
    assert measure_executed_work(job).by_node == ()
    # The checker is paid, and nobody else.
    earning = Earning.objects.get()
    assert earning.organisation == checker.provider.organisation
    told = job.events.order_by("-seq").values_list("message", flat=True)
    assert any("stored weights that another node did not find" in text for text in told)


@pytest.mark.parametrize("wrong", [0.0, -1.0, 3.0, 0.4])
def test_weights_that_went_another_way_from_a_checkpoint_are_found(zone, wrong):
    node, checker = market.node(zone), market.node(zone)
    Provider.objects.filter(pk=checker.provider_id).update(verified_at=NOW)
    first, second = weights_at(2), weights_at(2 + 2 * wrong)
    run_with_checkpoints(zone, node, first, second)
    tick(2)
    check = SpotCheck.objects.get(from_step=2)
    assert (check.state, check.end_step) == (ErrandState.ASKED, 4)
    answer_with_weights(check, seconds=3)
    check.refresh_from_db()
    assert (check.weights_agree, check.failed_at) == (False, at(3))


def test_honest_weights_agree_though_devices_differ(zone):
    node, checker = market.node(zone), market.node(zone)
    Provider.objects.filter(pk=checker.provider_id).update(verified_at=NOW)
    run_with_checkpoints(zone, node, weights_at(2))
    tick(2)
    check = SpotCheck.objects.get(from_step=0)
    answer_with_weights(check, seconds=3, trained=weights_at(2, way=1.15))
    check.refresh_from_db()
    assert (check.agrees, check.weights_agree) == (True, True)
    assert Node.objects.get(pk=node.pk).status == NodeStatus.ONLINE


def test_a_checkpoint_without_weights_does_not_pass(zone):
    node, checker = market.node(zone), market.node(zone)
    Provider.objects.filter(pk=checker.provider_id).update(verified_at=NOW)
    nan = save({"param/layer.lora_B": np.full((4, WIDTH), np.nan, "f4")})
    run_with_checkpoints(zone, node, nan)
    tick(2)
    check = SpotCheck.objects.get(from_step=0)
    answer_with_weights(check, seconds=3)
    assert Node.objects.get(pk=node.pk).status == NodeStatus.SUSPENDED


def test_a_checker_of_an_earlier_release_tells_losses_alone(zone):
    node, checker = market.node(zone), market.node(zone)
    run_with_checkpoints(zone, node, weights_at(0))
    tick(2)
    check = SpotCheck.objects.get(from_step=0)
    spec = asked_of(checker)
    assert spec is not None
    answer(checker, spec)
    check.refresh_from_db()
    assert (check.agrees, check.weights_agree) == (True, None)


def test_the_data_of_a_job_for_verified_providers_is_checked_by_those_alone(zone):
    node, stranger = market.node(zone), market.node(zone)
    Provider.objects.filter(pk=node.provider_id).update(verified_at=NOW)
    run_job(zone, node)
    Job.objects.update(verified_only=True)
    tick(2)
    assert asked_of(stranger) is None
    known = market.node(zone)
    Provider.objects.filter(pk=known.provider_id).update(verified_at=NOW)
    assert tick(3) == 1
    assert SpotCheck.objects.get().node == known
