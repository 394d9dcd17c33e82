"""Several processes stand for several devices: a node's gang tunes a prompt and loses a member."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.unit.workers.training_builders import attach, completion_rows, job_spec, write_jsonl
from tests.waiting import until
from workers.protocol.job_spec import AdapterKind, BaseModelRef
from workers.runtime.gang_processes import ProcessGang
from workers.runtime.node_runtime import NodeRuntime

SOFT = {"kind": AdapterKind.SOFT_PROMPT, "virtual_tokens": 4}
TRAINING = {"epochs": 3, "batch_size": 8, "sequence_length": 64, "learning_rate": 1e-2}


def tune(runtime: NodeRuntime, base: BaseModelRef, data: Path, job_id: str) -> torch.Tensor:
    spec = job_spec(job_id, base, data, adapter=SOFT, training=TRAINING)
    sink = attach(runtime, spec, data)
    sink.wait()
    [path] = (runtime.cache_dir / job_id).rglob("adapter_model.safetensors")
    [values] = load_file(path).values()
    return values


@pytest.mark.timeout(180)
def test_a_gang_of_processes_tunes_the_same_prompt_and_goes_on_without_a_killed_member(
    base: BaseModelRef, tmp_path: Path
) -> None:
    data = write_jsonl(tmp_path / "rows.jsonl", completion_rows(40))
    runtime = NodeRuntime(
        device="cpu", cache_dir=tmp_path / "work", gang_devices=["cpu"], reproducible=True
    )
    try:
        gang = runtime.resident(base).trainer.gang
        assert isinstance(gang, ProcessGang)
        # The member is loading: the node trains alone.
        alone = tune(runtime, base, data, "alone")
        until(lambda: gang.members == 1, what="the member has the base", within_s=120)
        together = tune(runtime, base, data, "together")
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
        assert gang.members == 1
        [process] = gang._processes
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        torch.testing.assert_close(
            tune(runtime, base, data, "without"), alone, rtol=1e-4, atol=1e-5
        )
        assert gang.members == 0
    finally:
        runtime.close()
