"""Real node processes: killed, sent away, and without their market for a while."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.workers.node.market_double import TINY, Lease, MarketDouble
from workers.models import DATASETS
from workers.node.credentials import Credentials, StateDir, save_credentials
from workers.node.process import EXIT_OK, EXIT_SENT_AWAY, EXIT_SETTINGS
from workers.protocol.job_spec import CheckpointRef, DataFormat, JobSpec, TrainingSpec
from workers.protocol.messages import SliceSpec, SlotPlan
from workers.protocol.plan_queue import PATH_NEXT_PLAN
from workers.protocol.reports import SliceEnd

pytestmark = pytest.mark.timeout(600)

JOB = "ftjob-1"
#: More than any of these tests lets it train.
LONG = TrainingSpec(epochs=200, learning_rate=1e-3, sequence_length=64, validation_share=0.0)


class NodeProcess:
    def __init__(self, folder: Path, market: MarketDouble) -> None:
        self.state = StateDir(folder / "state")
        self.log = folder / "node.log"
        self._processes: list[subprocess.Popen[bytes]] = []
        save_credentials(
            self.state,
            Credentials(
                market_url=market.url,
                name="box",
                node_id="node_1",
                api_token=market.token,
                heartbeat_every_s=0.5,
                base_models=(TINY,),
            ),
        )

    def start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "workers", "run", "--state-dir", str(self.state.path)],
                stdout=log,
                stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        self._processes.append(process)
        return process

    def kill_all(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def market() -> Iterator[MarketDouble]:
    market = MarketDouble()
    yield market
    market.close()


@pytest.fixture
def node(tmp_path, market) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path, market)
    yield node
    node.kill_all()


def lease(
    market: MarketDouble, token: str, *, resume: tuple[int, bytes] | None = None
) -> SliceSpec:
    market.leases[token] = Lease(expires_at=time.time() + 300)
    data = (DATASETS / "unit_sums.jsonl").read_bytes()
    resume_from = None
    if resume is not None:
        blob = market.blob(resume[1], url=f"/leases/{token}/checkpoint")
        resume_from = CheckpointRef(blob=blob, step=resume[0])
    return SliceSpec(
        lease_token=token,
        lease_expires_at=time.time() + 300,
        job=JobSpec(
            job_id=JOB,
            base_model=TINY,
            data_format=DataFormat.INSTRUCTION,
            dataset=market.blob(data, url=f"/leases/{token}/dataset"),
            training=LONG,
            checkpoint_every_s=1.0,
        ),
        resume_from=resume_from,
    )


def send(market: MarketDouble, slot: int, *slices: SliceSpec) -> None:
    now = time.time()
    market.send(SlotPlan("node_1", slot, now, now + 300, slices))


@pytest.mark.timeout(600)
def test_a_job_outlives_the_killing_of_its_node(market, node):
    process = node.start()
    send(market, 1, lease(market, "first"))
    first = market.leases["first"]
    market.wait_until(lambda: len(first.checkpoints) >= 2, timeout_s=200)
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL
    stored = max(first.checkpoints)
    seen = first.events[-1].step
    assert first.result is None

    # Another node of the market: nothing of the first one's disk is there.
    for path in (node.state.work / JOB).glob("*"):
        path.unlink()
    process = node.start()
    send(market, 2, lease(market, "second", resume=(stored, first.checkpoints[stored])))
    second = market.leases["second"]
    market.wait_until(lambda: second.events and second.events[-1].step > seen, timeout_s=200)
    # A quick node has stepped on before its first report leaves.
    assert second.events[0].step >= stored
    assert f"Continues from step {stored}." in second.events[0].log
    # Training is a function of seed and step: what both trained has the same loss.
    losses = {event.step: event.train_loss for event in first.events}
    again = {event.step: event.train_loss for event in second.events}
    for step in losses.keys() & again.keys() - {stored}:
        assert again[step] == pytest.approx(losses[step], rel=1e-3)

    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == EXIT_OK
    assert second.result is not None
    assert second.result.status is SliceEnd.PAUSED
    assert max(second.checkpoints) == second.result.step
    # It may come back, and its job with it.
    assert list((node.state.work / JOB).glob("step-*")) != []


def test_a_node_goes_on_without_its_market_and_ends_once_its_token_was_taken_back(market, node):
    first = node.start()
    market.wait_until(lambda: market.heartbeats, timeout_s=120)
    assert node.start().wait(60) == EXIT_SETTINGS
    assert "Another process runs this node already" in node.log.read_text()
    assert first.poll() is None
    send(market, 1, lease(market, "first"))
    market.wait_until(lambda: market.leases["first"].events, timeout_s=120)
    refused: list[str] = []

    def refuse(_: str, path: str) -> int | None:
        if path != PATH_NEXT_PLAN:
            return None
        refused.append(path)
        return 503

    market.trouble = refuse
    market.end_waits()
    seen = market.leases["first"].events[-1].step
    market.wait_until(
        lambda: refused and market.leases["first"].events[-1].step > seen, timeout_s=60
    )
    # It takes its plan once the market is back.
    send(market, 2)
    market.trouble = lambda _method, _path: None
    market.wait_until(lambda: market.leases["first"].result, timeout_s=120)
    assert market.leases["first"].result.status is SliceEnd.PAUSED
    assert first.poll() is None
    assert list(node.state.cache.iterdir()) != []
    market.token = "another"
    assert first.wait(60) == EXIT_SENT_AWAY
    assert "The market does not accept this node" in node.log.read_text()
    assert "adapters and checkpoints of owners are deleted" in node.log.read_text()
    assert sorted(path.name for path in node.state.path.iterdir()) == ["heard", "lock", "node.json"]
