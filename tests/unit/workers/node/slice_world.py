"""A node between a market on a socket and a runtime that the test steps."""

import threading
import time

import numpy as np
import torch

from tests.unit.workers.node.market_double import TINY, Lease, MarketDouble
from tests.unit.workers.node.runtime_double import RuntimeDouble
from workers.node.blob_cache import BlobCache
from workers.node.credentials import StateDir
from workers.node.market_client import MarketClient, Patience
from workers.node.slice_loop import SliceLoop
from workers.protocol.job_spec import CheckpointRef, DataFormat, JobSpec
from workers.protocol.messages import SliceSpec, SlotPlan
from workers.training.checkpoint import TrainingState
from workers.training.job import TrainingProgress

DATA = b'{"text": "a"}\n' * 10


def training_state(*, step: int) -> TrainingState:
    """A whole checkpoint of a tiny adapter."""
    return TrainingState(
        job_id="job-a",
        fingerprint="00000000",
        progress=TrainingProgress(step=step),
        params={"layer.lora_A": torch.ones(2, 3)},
        means={"layer.lora_A": torch.zeros(2, 3)},
        squares={"layer.lora_A": torch.zeros(2, 3)},
        row_losses=np.zeros(1, dtype=np.float32),
        metrics=np.zeros((0, 8)),
    )


class World:
    """A node between a market on a socket and a runtime that the test steps."""

    def __init__(self, market: MarketDouble, folder) -> None:
        self.market = market
        self.state = StateDir(folder / "state")
        self.state.prepare()
        self.runtime = RuntimeDouble(self.state.work)
        self.nodes: list[tuple[SliceLoop, MarketClient, threading.Event]] = []
        self.node = self.boot()

    def boot(self) -> SliceLoop:
        stopping = threading.Event()
        client = MarketClient(
            self.market.url,
            token=self.market.token,
            patience=Patience(total_s=2.0, first_pause_s=0.01, longest_pause_s=0.05),
            stopping=stopping,
        )
        self.cache = BlobCache(self.state.cache, client)
        node = SliceLoop(
            node_id="node_1",
            client=client,
            runtime=self.runtime,
            cache=self.cache,
            work=self.state.work,
            outbox=self.state.outbox,
            keepalive_s=0.2,
        )
        node.start()
        self.nodes.append((node, client, stopping))
        return node

    def close(self) -> None:
        self.runtime.gate.set()
        for node, client, stopping in self.nodes:
            stopping.set()
            node.close()
            client.close()

    def slice(self, job_id="job-a", token="lease-a", *, expires_in=60.0, resume=None) -> SliceSpec:
        expires_at = time.time() + expires_in
        self.market.leases.setdefault(token, Lease(expires_at=expires_at))
        dataset = self.market.blob(DATA, url=f"/leases/{token}/dataset")
        resume_from = None
        if resume is not None:
            step, content = resume
            blob = self.market.blob(content, url=f"/leases/{token}/checkpoint")
            resume_from = CheckpointRef(blob=blob, step=step)
        return SliceSpec(
            lease_token=token,
            lease_expires_at=expires_at,
            job=JobSpec(
                job_id=job_id, base_model=TINY, data_format=DataFormat.TEXT, dataset=dataset
            ),
            resume_from=resume_from,
        )

    def plan(self, *slices: SliceSpec, slot=5, revision=1, ends_in=60.0, **changes) -> None:
        now = time.time()
        plan = SlotPlan(
            node_id=changes.pop("node_id", "node_1"),
            slot=slot,
            starts_at=now,
            ends_at=now + ends_in,
            slices=slices,
            revision=revision,
            **changes,
        )
        self.node.offer(plan)

    def started(self, *slices: SliceSpec, **plan) -> None:
        self.plan(*slices, **plan)
        for spec in slices:
            self.runtime.wait_for(f"attached {spec.job.job_id}")

    def lease(self, token="lease-a") -> Lease:
        return self.market.leases[token]

    def result(self, token="lease-a"):
        self.market.wait_until(lambda: self.lease(token).result)
        return self.lease(token).result

    def eventually(self, condition) -> None:
        """Wait until what the node's thread did makes it true."""
        ends_at = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < ends_at, "it never came true"
            self.settled()
            time.sleep(0.005)

    def settled(self) -> None:
        """Everything offered so far was taken in by the node's thread."""
        done = threading.Event()
        self.node._inbox.put(done.set)
        assert done.wait(30)
