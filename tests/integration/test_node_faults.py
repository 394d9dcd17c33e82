"""Real node processes: killed, stopped, sent away, and their broker restarted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery

from marketplace.embedded.servers import prepare_redis, wait_for_redis
from tests.unit.workers.node.market_double import TINY, Lease, MarketDouble
from tests.unit.workers.training_builders import save_tiny_base
from workers.models import DATASETS
from workers.node.credentials import Credentials, StateDir, save_credentials
from workers.node.process import EXIT_OK, EXIT_SENT_AWAY, EXIT_SETTINGS, EXIT_UNUSABLE
from workers.protocol import (
    TASK_RUN_SLOT,
    BaseModelRef,
    CheckpointRef,
    DataFormat,
    JobSpec,
    SliceSpec,
    SliceStatus,
    SlotPlan,
    TrainingSpec,
)
from workers.protocol.wire import to_json

pytestmark = pytest.mark.timeout(600)

JOB = "ftjob-1"
#: More than any of these tests lets it train.
LONG = TrainingSpec(epochs=200, learning_rate=1e-3, sequence_length=64, validation_share=0.0)


class Broker:
    """A Redis of this test's own, to stop and start."""

    def __init__(self, folder: Path) -> None:
        self._server = prepare_redis(data_dir=folder)
        self._process: subprocess.Popen[bytes] | None = None
        self.url = self._server.url
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._server.program.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_for_redis(self._server)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class NodeProcess:
    def __init__(
        self,
        folder: Path,
        market: MarketDouble,
        broker: Broker,
        *,
        base: BaseModelRef = TINY,
    ) -> None:
        self.state = StateDir(folder / "state")
        self.broker = broker
        self.log = folder / "node.log"
        self._processes: list[subprocess.Popen[bytes]] = []
        save_credentials(
            self.state,
            Credentials(
                market_url=market.url,
                name="box",
                node_id="node_1",
                api_token=market.token,
                broker_url=broker.url,
                queue="node.node_1",
                heartbeat_every_s=0.5,
                base_models=(base,),
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
def broker(tmp_path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    yield broker
    broker.stop()


@pytest.fixture
def node(tmp_path, market, broker) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path, market, broker)
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


def send(broker: Broker, slot: int, *slices: SliceSpec) -> None:
    now = time.time()
    plan = SlotPlan("node_1", slot, now, now + 300, slices)
    with Celery("market", broker=broker.url, set_as_current=False) as app:
        app.send_task(TASK_RUN_SLOT, kwargs={"plan": to_json(plan)}, queue="node.node_1")


def test_a_job_outlives_the_killing_of_its_node(market, broker, node):
    process = node.start()
    send(broker, 1, lease(market, "first"))
    first = market.leases["first"]
    market.wait_until(lambda: len(first.checkpoints) >= 2, timeout_s=120)
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL
    stored = max(first.checkpoints)
    seen = first.events[-1].step
    assert first.result is None

    # Another node of the market: nothing of the first one's disk is there.
    for path in (node.state.work / JOB).glob("*"):
        path.unlink()
    process = node.start()
    send(broker, 2, lease(market, "second", resume=(stored, first.checkpoints[stored])))
    second = market.leases["second"]
    market.wait_until(lambda: second.events and second.events[-1].step > seen, timeout_s=120)
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
    assert second.result.status is SliceStatus.PAUSED
    assert max(second.checkpoints) == second.result.step


def test_plans_arrive_after_the_broker_was_away(market, broker, node):
    process = node.start()
    send(broker, 1, lease(market, "first"))
    market.wait_until(lambda: market.leases["first"].events, timeout_s=120)
    broker.stop()
    seen = market.leases["first"].events[-1].step
    market.wait_until(lambda: market.leases["first"].events[-1].step > seen, timeout_s=60)
    broker.start()
    send(broker, 2)
    market.wait_until(lambda: market.leases["first"].result, timeout_s=120)
    assert market.leases["first"].result.status is SliceStatus.PAUSED
    assert process.poll() is None


def test_a_node_whose_token_was_taken_back_ends(market, broker, node):
    process = node.start()
    market.wait_until(lambda: market.heartbeats, timeout_s=120)
    market.token = "another"
    assert process.wait(60) == EXIT_SENT_AWAY
    assert "The market does not accept this node" in node.log.read_text()


def test_a_second_process_on_the_same_state_is_refused(market, broker, node):
    first = node.start()
    market.wait_until(lambda: market.heartbeats, timeout_s=120)
    assert node.start().wait(60) == EXIT_SETTINGS
    assert "Another process runs this node already" in node.log.read_text()
    assert first.poll() is None


def test_a_damaged_base_model_ends_the_node_with_a_sentence(tmp_path, market, broker):
    ref = save_tiny_base(tmp_path / "base")
    weights = tmp_path / "base" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:2000])
    node = NodeProcess(tmp_path, market, broker, base=ref)
    try:
        assert node.start().wait(120) == EXIT_UNUSABLE
    finally:
        node.kill_all()
    text = node.log.read_text()
    assert "The base model 'tiny-llama' cannot be loaded" in text
    assert "Traceback" not in text
