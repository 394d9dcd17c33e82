"""A checkpoint reads as it was written, also by a later release."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from workers.training.checkpoint import TrainingState, load_checkpoint, save_checkpoint
from workers.training.job import TrainingProgress


def test_figures_of_an_earlier_release_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_checkpoint(
        TrainingState(
            job_id="job_1",
            fingerprint="f",
            progress=TrainingProgress(step=7, samples_done=3),
            params={"w": torch.ones(2)},
            means={},
            squares={},
            row_losses=np.zeros(1, dtype=np.float32),
            metrics=np.zeros((1, 2), dtype=np.float32),
            best={},
        ),
        path,
    )
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    progress = json.loads(metadata["progress"]) | {"train_s": 12.5}
    save_file(tensors, path, metadata | {"progress": json.dumps(progress)})
    found = load_checkpoint(path)
    assert found.progress == TrainingProgress(step=7, samples_done=3)
    assert found.params["w"].tolist() == [1.0, 1.0]
