"""Losses of nodes: what the experiment counts, and that its command prints every row."""

from __future__ import annotations

import json

import pytest

from scheduler.experiments.auction import replans_command
from scheduler.experiments.auction.losses import METHODS, Loss, bound_kept, make_losses

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def losses() -> list[Loss]:
    return make_losses(3)


def test_a_loss_hits_promises_and_leaves_others(losses: list[Loss]) -> None:
    for loss in losses:
        hit, unhit = ({job.task_id for job in jobs} for jobs in (loss.hit, loss.unhit))
        assert hit
        assert hit.isdisjoint(unhit)
        assert {job.task_id for job in loss.unstarted} <= unhit
        held = {one.task_id for one in loss.engine.reservations()}
        assert unhit <= held
        assert all(job.compute_demand > 0 for job in loss.hit)


def test_methods_keep_no_more_than_can_be_kept_and_leave_the_zone_as_it_is(
    losses: list[Loss],
) -> None:
    for loss in losses:
        before = loss.engine.snapshot()
        kept = {name: method(loss) for name, method in METHODS.items()}
        assert loss.engine.snapshot() == before
        most = bound_kept(loss, time_limit_s=10.0)
        assert max(kept.values()) <= most <= len(loss.hit)
        assert kept["then exact, every job may move"] >= kept["with swaps, every job may move"]


def test_the_command_prints_a_row_for_each_method_and_kind_of_day(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replans_command, "_SLOTS", 16)
    assert replans_command.main(["--losses", "1", "--days", "1", "--bound-s", "1"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["method"] for row in rows if "method" in row] == list(METHODS)
    assert len([row for row in rows if "waiting_plans" in row]) == 6
    assert all(0 <= row["kept_share"] <= 1 for row in rows if "kept_share" in row)
