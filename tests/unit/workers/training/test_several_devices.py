"""Tensors of one adapter on several devices, found by a stand-in where there is no GPU.

A backend of PyTorch's own that is registered from Python, under fake tensors: an operation that
mixes its tensors with a CPU's is refused, as CUDA would. It would stay in the tests' process for
good, so it has one of its own.
"""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from workers.training.optimizer import adamw_step, clip_gradients


def register_stand_in() -> None:
    class Guard(torch._C._acc.DeviceGuard):
        def type_(self):
            return torch._C._autograd.DeviceType.PrivateUse1

    class Hooks(torch._C._acc.PrivateUse1Hooks):
        def is_available(self):
            return True

        def has_primary_context(self, index):
            return True

        def is_built(self):
            return True

    torch._C._acc.register_python_privateuseone_device_guard(Guard())
    torch._C._acc.register_python_privateuseone_hook(Hooks())
    torch.utils.rename_privateuse1_backend("stand")
    torch.stand = types.SimpleNamespace(
        device_count=lambda: 1, is_initialized=lambda: True, current_device=lambda: 0
    )


def step_on(*devices: str) -> None:
    with FakeTensorMode():
        params, grads, means, squares = (
            [torch.zeros(3, 2, device=device) for device in devices * 2] for _ in range(4)
        )
        with pytest.raises((RuntimeError, ValueError)):
            torch.add(params[0], params[1])
        assert clip_gradients(grads, 1.0).device == torch.device(devices[0])
        rest = {"step": 0, "rate": 1e-3, "weight_decay": 0.0}
        adamw_step(params=params, grads=grads, means=means, squares=squares, **rest)


def test_an_adapter_is_clipped_and_stepped_device_by_device():
    root = Path(__file__).parents[4]
    done = subprocess.run(
        [sys.executable, __file__], cwd=root, env={"PYTHONPATH": str(root)}, capture_output=True
    )
    assert (done.returncode, done.stdout) == (0, b"both ways round\n"), done.stderr.decode()


def test_the_norm_of_all_gradients_is_clipped():
    torch.manual_seed(1)
    grads = [torch.randn(3, 2), torch.randn(4)]
    before = torch.cat([grad.flatten() for grad in grads])
    assert clip_gradients(grads, 0.5) == pytest.approx(before.norm().item())
    after = torch.cat([grad.flatten() for grad in grads])
    torch.testing.assert_close(after, before * (0.5 / before.norm()), rtol=1e-5, atol=0)


if __name__ == "__main__":
    register_stand_in()
    step_on("stand:0", "cpu")
    step_on("cpu", "stand:0")
    print("both ways round")
