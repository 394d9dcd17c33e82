"""How slices end on a node, and what it leaves with the market."""

import json
import os

import pytest

from tests.unit.workers.node.runtime_double import ADAPTER_WEIGHTS
from workers.protocol.messages import HeartbeatReply
from workers.protocol.reports import Fault, SliceEnd
from workers.training.faults import SystemFault, UserFault


class TestEnds:
    def test_a_jobs_data_stays_on_disk_for_as_long_as_the_job_is_here(self, world):
        spec = world.slice()
        world.started(spec)
        path = world.state.cache / spec.job.dataset.sha256
        os.utime(path, (1000, 1000))
        world.cache.sweep()
        assert path.exists()
        world.runtime.finish("job-a")
        world.result()
        world.eventually(lambda: not path.exists())
        assert world.node.leases() == ()

    def test_what_a_job_left_goes_once_the_market_has_closed_it(self, world):
        first, second = world.slice(), world.slice("job-b", "lease-b")
        world.started(first, second)
        world.runtime.steps("job-a", 2)
        world.runtime.write_checkpoint("job-a")
        world.plan(second, revision=2)
        world.result()
        shared = world.state.cache / first.job.dataset.sha256
        world.eventually(lambda: world.node.leases() == ("lease-b",))
        assert sorted(world.node.kept.list()) == ["job-a", "job-b"]
        # what runs here goes on, whatever the market says of it
        world.node.heard(HeartbeatReply(closed_jobs=("job-a", "job-b", "../state")))
        world.eventually(lambda: not (world.state.work / "job-a").exists())
        assert world.node.kept.list() == ("job-b",)
        assert shared.exists()
        world.runtime.finish("job-b")
        world.eventually(lambda: list(world.state.cache.iterdir()) == [])
        assert list(world.state.work.iterdir()) == []

    def test_a_finished_job_leaves_its_adapter_and_result(self, world):
        world.started(world.slice())
        world.runtime.steps("job-a", 2)
        world.runtime.write_checkpoint("job-a")
        world.runtime.finish("job-a")
        result = world.result()
        assert result.status is SliceEnd.FINISHED
        assert (result.step, result.valid_loss_after, result.fault) == (100, 2.1, None)
        assert world.lease().adapter == ADAPTER_WEIGHTS
        world.eventually(lambda: not (world.state.work / "job-a").exists())
        assert world.node.leases() == ()
        assert list(world.state.outbox.iterdir()) == []

    def test_a_failure_says_whose_it_was_after_the_last_checkpoint(self, world):
        world.started(world.slice())
        world.runtime.steps("job-a", 2)
        world.runtime.write_checkpoint("job-a")
        world.runtime.fail("job-a", Fault.USER, "The loss is not a number. Lower the rate.")
        result = world.result()
        assert result.status is SliceEnd.FAILED
        assert result.fault is Fault.USER
        assert result.reason == "The loss is not a number. Lower the rate."
        assert world.lease().checkpoints == {2: b"checkpoint of step 2"}

    @pytest.mark.parametrize(
        ("fault", "whose"),
        [(UserFault("Bad rows."), Fault.USER), (SystemFault("No."), Fault.SYSTEM)],
    )
    def test_a_job_that_cannot_start_fails_with_the_reason(self, world, fault, whose):
        world.runtime.fault = fault
        world.plan(world.slice())
        result = world.result()
        assert (result.status, result.fault, result.reason) == (
            SliceEnd.FAILED,
            whose,
            str(fault),
        )

    def test_data_that_arrive_damaged_are_the_houses_fault(self, world):
        spec = world.slice()
        world.market.blobs[spec.job.dataset.url] = b"something else"
        world.plan(spec)
        assert world.result().fault is Fault.SYSTEM

    def test_checkpoints_are_sent_while_the_job_goes_on(self, world):
        world.started(world.slice())
        for step in (1, 2):
            world.runtime.steps("job-a")
            world.runtime.write_checkpoint("job-a")
            world.market.wait_until(lambda step=step: step in world.lease().checkpoints)
        assert world.lease().result is None
        assert "job-a" in world.runtime.attached

    def test_of_checkpoints_that_pile_up_the_newest_is_sent(self, world):
        world.started(world.slice())
        world.market.trouble = lambda method, _path: 503 if method == "PUT" else None
        for _ in range(5):
            world.runtime.steps("job-a")
            world.runtime.write_checkpoint("job-a")
        world.settled()
        world.market.trouble = lambda _method, _path: None
        world.market.wait_until(lambda: 5 in world.lease().checkpoints)
        assert set(world.lease().checkpoints) <= {1, 5}
        world.eventually(lambda: not list(world.state.outbox.iterdir()))

    def test_a_result_waits_for_a_market_that_is_down(self, world):
        world.started(world.slice())
        world.market.trouble = lambda _method, _path: "drop"
        world.runtime.finish("job-a")
        world.settled()
        world.market.trouble = lambda _method, _path: None
        assert world.result().status is SliceEnd.FINISHED
        assert world.lease().adapter is not None

    def test_an_adapter_the_market_refuses_is_a_failure_of_the_house(self, world):
        world.started(world.slice())
        world.market.trouble = lambda _m, path: 400 if path.endswith("/adapter") else None
        world.runtime.finish("job-a")
        result = world.result()
        assert (result.status, result.fault) == (SliceEnd.FAILED, Fault.SYSTEM)
        assert (
            result.reason == "The finished adapter could not be delivered: The market says trouble."
        )

    def test_a_checkpoint_the_market_refuses_does_not_stop_the_job(self, world):
        world.started(world.slice())
        refused = []

        def trouble(method, path):
            if method == "PUT" and path.endswith("/1"):
                refused.append(path)
                return 422
            return None

        world.market.trouble = trouble
        for _ in range(2):
            world.runtime.steps("job-a")
            world.runtime.write_checkpoint("job-a")
            world.market.wait_until(lambda: refused)
        world.market.wait_until(lambda: 2 in world.lease().checkpoints)
        assert "job-a" in world.runtime.attached


class TestLeaving:
    def test_a_node_that_drains_takes_no_more_and_ends_when_all_is_done(self, world):
        world.started(world.slice())
        world.node.heard(HeartbeatReply(drain=True))
        world.plan(world.slice(), world.slice("job-b", "lease-b"), slot=6)
        world.settled()
        assert world.node.draining
        assert world.node.leases() == ("lease-a",)
        assert not world.node.finished.is_set()
        world.runtime.finish("job-a")
        assert world.result().status is SliceEnd.FINISHED
        assert world.node.finished.wait(30)

    def test_a_node_told_to_stop_hands_everything_over(self, world):
        world.started(world.slice(), world.slice("job-b", "lease-b"))
        world.runtime.steps("job-a", 3)
        world.node.drain()
        assert world.node.finished.wait(30)
        assert world.result().status is SliceEnd.PAUSED
        assert world.result("lease-b").status is SliceEnd.PAUSED
        assert world.lease().checkpoints == {3: b"checkpoint of step 3"}

    def test_a_node_the_market_does_not_know_drops_everything(self, world):
        world.started(world.slice())
        world.market.token = "another"
        world.runtime.steps("job-a")
        assert world.node.finished.wait(30)
        assert world.node.refusal == "The market says unknown_node."
        assert world.runtime.attached == {}

    def test_a_node_that_died_goes_on_from_the_markets_last_checkpoint(self, world):
        world.started(world.slice())
        world.runtime.steps("job-a", 5)
        world.runtime.write_checkpoint("job-a")
        world.market.wait_until(lambda: 5 in world.lease().checkpoints)
        world.runtime.steps("job-a", 3)
        # kill -9: neither a checkpoint nor a word.
        world.node.close()
        world.runtime.attached.clear()
        world.node = world.boot()
        stored = world.lease().checkpoints[5]
        world.started(world.slice(token="lease-b", resume=(5, stored)), slot=6)
        world.runtime.wait_for("attached job-a", times=2)
        assert world.runtime.attached["job-a"].checkpoint == stored


def test_results_are_json_the_protocol_reads(world):
    world.started(world.slice())
    world.runtime.fail("job-a", Fault.SYSTEM, "x" * 5000)
    assert len(world.result().reason) == 1000
    assert json.dumps(world.result().reason)
