"""What the training tests share: a tiny base, a node's runtime, one thread.

Tiny matrices gain nothing from threads, and threads wait for each other on a busy machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.unit.workers.training_builders import save_tiny_base
from workers.protocol.job_spec import BaseModelRef
from workers.runtime.node_runtime import NodeRuntime


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseModelRef:
    return save_tiny_base(tmp_path_factory.mktemp("base"))


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[NodeRuntime]:
    device = os.environ.get("FINETENDER_TEST_DEVICE", "cpu")
    runtime = NodeRuntime(device=device, cache_dir=tmp_path / "cache")
    yield runtime
    runtime.close()
