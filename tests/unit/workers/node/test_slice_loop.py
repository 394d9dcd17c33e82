"""What a node does with plans and leases, and what it tells the market of its jobs."""

import time
from dataclasses import replace

import pytest

from tests.unit.workers.node.market_double import TINY
from tests.unit.workers.node.runtime_double import TOTAL_STEPS
from tests.unit.workers.node.slice_world import DATA, training_state
from workers.protocol.errands import PROBE, ErrandSpec
from workers.protocol.job_spec import AdapterSpec, BlobRef, DataFormat
from workers.protocol.messages import HeartbeatReply
from workers.protocol.probes import ProbeAdapter, ProbeResult, ProbeTask
from workers.protocol.reports import SliceEnd
from workers.protocol.wire import from_json, to_json
from workers.training.checkpoint import save_checkpoint


class TestPlans:
    def test_a_plan_attaches_its_jobs_with_their_data(self, world):
        world.started(world.slice(), world.slice("job-b", "lease-b"))
        assert world.runtime.attached["job-a"].data == DATA
        assert world.runtime.attached["job-a"].checkpoint is None
        assert set(world.node.leases()) == {"lease-a", "lease-b"}

    def test_a_job_goes_on_from_the_markets_checkpoint(self, world):
        world.started(world.slice(resume=(40, b"state at 40")))
        assert world.runtime.attached["job-a"].checkpoint == b"state at 40"

    def test_a_checkpoint_that_the_market_set_aside_is_not_used_from_this_disk(self, world):
        """The job failed here at step 80; the market goes back to step 60."""
        folder = world.state.work / "job-a"
        folder.mkdir()
        save_checkpoint(training_state(step=80), folder / "step-00000080.safetensors")
        world.started(world.slice(resume=(60, b"state at 60")))
        assert world.runtime.attached["job-a"].checkpoint == b"state at 60"

    def test_the_markets_checkpoint_is_not_fetched_where_this_disk_has_the_same_file(self, world):
        folder = world.state.work / "job-a"
        folder.mkdir()
        (folder / "step-00000060.safetensors").write_bytes(b"state at 60")
        world.started(world.slice(resume=(60, b"state at 60")))
        assert world.runtime.attached["job-a"].checkpoint == b"state at 60"
        assert not [path for _, path, _ in world.market.requests if path.endswith("checkpoint")]
        world.plan(slot=6)
        world.runtime.wait_for("detached job-a with checkpoint")
        (folder / "step-00000060.safetensors").write_bytes(b"State at 60")
        again = world.slice(token="lease-b", resume=(60, b"state at 60"))
        world.plan(again, slot=7)
        world.runtime.wait_for("attached job-a", times=2)
        assert world.runtime.attached["job-a"].checkpoint == b"state at 60"

    def test_the_same_plan_twice_changes_nothing(self, world):
        spec = world.slice()
        world.started(spec)
        world.plan(spec)
        world.plan(spec)
        world.settled()
        assert world.runtime.history == ["attaching job-a", "attached job-a"]

    def test_data_that_two_jobs_share_are_fetched_once(self, world):
        world.started(world.slice(), world.slice("job-b", "lease-b"))
        fetched = [path for method, path, _ in world.market.requests if path.endswith("dataset")]
        assert len(fetched) == 1

    def test_a_job_absent_from_the_next_plan_is_handed_over(self, world):
        world.started(world.slice(), world.slice("job-b", "lease-b"))
        world.runtime.steps("job-a", 7)
        world.plan(world.slice("job-b", "lease-b"), slot=6)
        result = world.result()
        assert result.status is SliceEnd.PAUSED
        assert result.step == 7
        assert result.valid_loss_before == 3.1
        assert world.lease().checkpoints == {7: b"checkpoint of step 7"}
        assert world.lease().events[-1].step == 7
        assert "job-b" in world.runtime.attached
        assert world.lease("lease-b").result is None

    @pytest.mark.parametrize(
        "change",
        [{"ends_in": -1.0}, {"slot": 4}, {"revision": 0}, {"node_id": "node_2"}, {"version": 1}],
        ids=["late", "earlier slot", "earlier revision", "another node", "another version"],
    )
    def test_a_plan_that_does_not_hold_is_ignored(self, world, change):
        world.started(world.slice())
        world.plan(world.slice("job-b", "lease-b"), **change)
        world.settled()
        assert list(world.runtime.attached) == ["job-a"]
        assert world.node.leases() == ("lease-a",)

    def test_a_later_revision_of_the_same_slot_holds(self, world):
        world.started(world.slice())
        world.plan(world.slice(), world.slice("job-b", "lease-b"), revision=2)
        world.runtime.wait_for("attached job-b")
        assert set(world.runtime.attached) == {"job-a", "job-b"}

    def test_a_slice_whose_lease_is_over_already_is_not_begun(self, world):
        world.plan(world.slice(expires_in=-1.0))
        world.settled()
        assert world.node.leases() == ()

    def test_a_job_name_that_leads_out_of_the_folder_is_not_begun(self, world):
        world.plan(world.slice("../../etc"))
        world.settled()
        assert world.node.leases() == ()
        assert world.runtime.history == []

    def test_a_running_job_goes_on_under_a_new_lease(self, world):
        world.started(world.slice())
        world.runtime.steps("job-a", 3)
        world.market.wait_until(lambda: world.lease().last_seq == 1)
        world.plan(world.slice(token="lease-b", resume=(2, b"older")), slot=6)
        world.settled()
        world.runtime.steps("job-a", 1)
        world.market.wait_until(lambda: world.lease("lease-b").events)
        assert [event.seq for event in world.lease("lease-b").events] == [1]
        assert world.lease("lease-b").events[0].step == 4
        assert world.runtime.history == ["attaching job-a", "attached job-a"]
        assert world.node.leases() == ("lease-b",)

    def test_a_job_that_comes_back_while_it_is_handed_over_begins_again(self, world):
        world.started(world.slice())
        world.runtime.steps("job-a", 3)
        world.plan(slot=6)
        world.plan(world.slice(token="lease-b", resume=(1, b"older")), slot=7)
        world.runtime.wait_for("attached job-a", times=2)
        # Its own checkpoint is ahead of the market's, which decides all the same.
        assert world.runtime.attached["job-a"].checkpoint == b"older"
        assert world.result().status is SliceEnd.PAUSED
        assert world.node.leases() == ("lease-b",)


class TestProgress:
    def test_what_gathered_between_two_reports_is_told_as_one(self, world):
        world.started(world.slice())
        world.runtime.steps("job-a", 4)
        world.market.wait_until(lambda: world.lease().events)
        (event,) = world.lease().events
        assert (event.seq, event.step) == (1, 4)
        assert event.log == ("step 1", "step 2", "step 3", "step 4")

    def test_reports_come_at_most_twice_a_second(self, world):
        seen = []

        def trouble(_method, path):
            if path.endswith("/progress"):
                seen.append(time.monotonic())

        world.market.trouble = trouble
        began = time.monotonic()
        world.started(world.slice())
        for count in range(1, 6):
            world.runtime.steps("job-a")
            world.market.wait_until(lambda count=count: len(world.lease().events) >= count)
        # However late each of them arrived, no more than one can have left per half second.
        assert 5 <= len(seen) <= 1 + (time.monotonic() - began) / 0.5

    def test_an_idle_jobs_lease_is_kept_alive_by_empty_reports(self, world):
        world.started(world.slice(expires_in=2.0))
        before = world.lease().expires_at
        world.market.wait_until(lambda: world.lease().expires_at > before + 10)
        assert world.lease().events == []

    def test_a_loss_that_is_no_number_is_left_out(self, world):
        world.started(world.slice())
        world.runtime.steps("job-a", loss=float("nan"))
        world.market.wait_until(lambda: world.lease().events)
        assert world.lease().events[0].train_loss is None

    def test_nothing_is_lost_or_doubled_while_the_market_is_down(self, world):
        world.started(world.slice())
        world.market.trouble = lambda _method, _path: 503
        for _ in range(12):
            world.runtime.steps("job-a")
        world.settled()
        world.market.trouble = lambda _method, _path: None
        world.market.wait_until(
            lambda: world.lease().events and world.lease().events[-1].step == 12
        )
        assert [event.seq for event in world.lease().events] == list(
            range(1, len(world.lease().events) + 1)
        )
        lines = [line for event in world.lease().events for line in event.log]
        assert lines == [f"step {step}" for step in range(1, 13)]

    def test_an_answer_that_got_lost_does_not_double_the_report(self, world):
        world.started(world.slice())
        lost = []

        def trouble(_method, path):
            if path.endswith("/progress") and not lost and world.lease().last_seq == 0:
                lost.append(path)
                return "drop"
            return None

        world.market.trouble = trouble
        world.runtime.steps("job-a", 2)
        world.market.wait_until(lambda: world.lease().events)
        assert lost
        assert [event.seq for event in world.lease().events] == [1]

    def test_a_market_that_is_ahead_is_caught_up_with(self, world):
        spec = world.slice()
        world.lease().last_seq = 41
        world.started(spec)
        world.runtime.steps("job-a", 2)
        world.market.wait_until(lambda: world.lease().events)
        assert world.lease().events[0].seq == 42
        assert world.lease().events[0].log == ("step 1", "step 2")


class TestLeases:
    def test_a_lost_lease_stops_the_job_and_sends_nothing(self, world):
        world.started(world.slice())
        world.lease().lost = True
        world.runtime.steps("job-a", 2)
        world.runtime.wait_for("detached job-a without checkpoint")
        world.settled()
        assert world.node.leases() == ()
        assert world.lease().checkpoints == {}
        assert world.lease().result is None

    def test_a_lease_revoked_by_a_heartbeat_is_dropped(self, world):
        world.started(world.slice(), world.slice("job-b", "lease-b"))
        world.node.heard(HeartbeatReply(revoked=("lease-a", "unknown")))
        world.runtime.wait_for("detached job-a without checkpoint")
        world.settled()
        assert world.node.leases() == ("lease-b",)

    def test_a_lease_revoked_while_its_data_are_fetched_is_dropped(self, world):
        world.runtime.gate.clear()
        world.plan(world.slice())
        world.runtime.wait_for("attaching job-a")
        world.node.heard(HeartbeatReply(revoked=("lease-a",)))
        world.settled()
        world.runtime.gate.set()
        world.runtime.wait_for("detached job-a without checkpoint")
        world.settled()
        assert world.lease().result is None
        assert world.runtime.attached == {}

    def test_the_market_can_ask_for_a_checkpoint_and_the_job_off_the_node(self, world):
        world.started(world.slice())
        world.runtime.steps("job-a", 9)
        world.lease().checkpoint_and_stop = True
        result = world.result()
        assert (result.status, result.step) == (SliceEnd.PAUSED, 9)
        assert world.lease().checkpoints == {9: b"checkpoint of step 9"}

    def test_a_lease_that_is_not_renewed_stops_the_job(self, world):
        world.market.trouble = lambda _method, path: 503 if "progress" in path else None
        world.started(world.slice(expires_in=1.0))
        world.runtime.steps("job-a", 2)
        world.runtime.wait_for("detached job-a with checkpoint")
        assert world.runtime.attached == {}

    def test_a_job_that_has_done_its_last_step_ends_though_the_next_plan_is_without_it(self, world):
        world.started(world.slice(), world.slice("job-b", "lease-b"))
        world.runtime.steps("job-a", TOTAL_STEPS)
        world.plan(world.slice("job-b", "lease-b"), slot=6)
        world.runtime.wait_for("left job-a to end")
        world.runtime.finish("job-a")
        result = world.result()
        assert (result.status, result.step) == (SliceEnd.FINISHED, TOTAL_STEPS)
        assert "detached job-a with checkpoint" not in world.runtime.history

    def test_one_that_takes_too_long_for_it_is_handed_over_before_its_lease_is_over(
        self, world, monkeypatch
    ):
        monkeypatch.setattr("workers.node.slice_loop.ENDING_SHARE", 0.02)
        spec = world.slice(expires_in=20.0)
        world.started(spec)
        world.runtime.steps("job-a", TOTAL_STEPS)
        world.plan(slot=6)
        world.runtime.wait_for("left job-a to end")
        world.runtime.wait_for("detached job-a with checkpoint")
        assert time.time() < spec.lease_expires_at
        assert world.result().status is SliceEnd.PAUSED

    def test_a_lost_lease_stops_a_job_that_was_left_to_end(self, world):
        world.started(world.slice())
        world.runtime.steps("job-a", TOTAL_STEPS)
        world.plan(slot=6)
        world.runtime.wait_for("left job-a to end")
        world.node.heard(HeartbeatReply(revoked=("lease-a",)))
        world.runtime.wait_for("detached job-a without checkpoint")
        world.eventually(lambda: world.node.leases() == ())

    def test_an_upload_under_a_lost_lease_closes_the_slice(self, world):
        world.started(world.slice())
        world.market.trouble = lambda _method, path: 503 if "progress" in path else None
        world.runtime.steps("job-a", 2)
        world.lease().lost = True
        world.runtime.write_checkpoint("job-a")
        world.runtime.wait_for("detached job-a without checkpoint")
        assert world.lease().checkpoints == {}

    def test_data_that_the_market_no_longer_gives_end_the_slice_quietly(self, world):
        spec = world.slice()
        world.market.trouble = lambda method, _path: 410 if method == "GET" else None
        world.plan(spec)
        world.market.wait_until(lambda: any(m == "GET" for m, _, _ in world.market.requests))
        world.eventually(lambda: world.node.leases() == ())
        assert world.lease().result is None
        assert world.runtime.history == []


def probe_of(world, *, token="probe", for_s=60.0):
    """A probe of three adapters; of the last the market has no file any more."""
    good, cut = (world.market.blob(text) for text in (b"1.5", b"2.5"))
    task = ProbeTask(
        base_model=TINY,
        data_format=DataFormat.TEXT,
        rows=('{"text": "a"}',),
        sequence_length=64,
        adapters=tuple(
            ProbeAdapter(name, blob, AdapterSpec())
            for name, blob in (
                ("good", good),
                ("changed", replace(cut, sha256="0" * 64)),
                ("gone", BlobRef(url="/blobs/gone", sha256="1" * 64, bytes=3)),
            )
        ),
    )
    return to_json(ErrandSpec(PROBE, token, time.time() + for_s, to_json(task)))


def test_a_probe_beside_slices_is_answered_once_with_what_could_be_had(world):
    probe = probe_of(world)
    late = probe_of(world, token="late", for_s=-1.0)
    strange = probe | {"kind": "dance", "token": "strange"}
    odd = probe | {"token": "odd", "task": {"rows": 3}}
    world.started(world.slice(), errands=(strange, odd, probe, late))
    world.market.wait_until(lambda: world.market.errand_results)
    # The same plan again, as a broker may deliver it.
    world.plan(world.slice(), errands=(probe, late))
    other = probe_of(world, token="other")
    world.plan(world.slice(), revision=2, errands=(probe, other))
    world.market.wait_until(lambda: len(world.market.errand_results) == 2)
    assert list(world.market.errand_results) == ["probe", "other"]
    posted = [path for _, path, _ in world.market.requests if path.endswith("/result")]
    assert len([path for path in posted if "/errands/" in path]) == 2
    found = from_json(ProbeResult, world.market.errand_results["probe"].found)
    assert (found.base_loss, [one.loss for one in found.losses]) == (3.0, [1.5, None, None])
    assert "job-a" in world.runtime.attached


def test_a_market_that_takes_no_answer_costs_the_node_nothing(world):
    world.market.trouble = lambda _, path: 404 if "/errands/" in path else None
    world.started(world.slice(), errands=(probe_of(world),))
    world.market.wait_until(
        lambda: any("/errands/" in path for _, path, _ in world.market.requests)
    )
    assert "job-a" in world.runtime.attached
    assert world.market.errand_results == {}
