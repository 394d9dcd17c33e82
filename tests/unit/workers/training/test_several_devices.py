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
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.unit.workers.training_builders import (
    WIDTH,
    random_examples,
    tiny_model,
    training_job,
)
from workers.protocol.adapter_layout import _ROWS_STEP
from workers.protocol.job_spec import AdapterKind
from workers.protocol.pass_bytes import LOSS_CHUNK_TOKENS, TILE_TOKENS
from workers.training.objective import compute_sequence_nll
from workers.training.optimizer import adamw_step, clip_gradients
from workers.training.packed_model import PackedModel
from workers.training.packing import PackShare, build_pack
from workers.training.part_pass import PartPass, _place_ending

#: A rank that drops out, one with learnt lengths, one on a few projections, and a soft prompt.
ADAPTERS = (
    {"rank": 8, "dropout": 0.1},
    {"rank": 16, "dora": True},
    {"rank": 4, "target_modules": ("q_proj", "up_proj")},
    {"kind": AdapterKind.SOFT_PROMPT, "virtual_tokens": 4},
)


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
        device_count=lambda: 1,
        is_available=lambda: True,
        is_initialized=lambda: True,
        current_device=lambda: 0,
        get_amp_supported_dtype=lambda: [torch.bfloat16],
    )
    LOSS_CHUNK_TOKENS["stand"] = TILE_TOKENS["stand"] = 16
    _ROWS_STEP["stand"] = 1


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


def put(module: nn.Module, device: str) -> None:
    """Its weights without values, on a device."""
    for part in module.modules():
        for name, value in list(part._parameters.items()):
            if value is not None:
                made = torch.empty(value.shape, dtype=value.dtype, device=device)
                part._parameters[name] = nn.Parameter(made, requires_grad=False)
        for name, value in list(part._buffers.items()):
            if value is not None:
                part._buffers[name] = torch.empty(value.shape, dtype=value.dtype, device=device)


def pass_on(*devices: str) -> None:
    """A pass in parts and a whole one, with all kinds of adapters, a block on each device."""
    ways = [("segments", False), ("segments", True), ("dense", False), ("dense", True)]
    for form, recompute in ways:
        base = tiny_model().to(torch.bfloat16)
        with FakeTensorMode(allow_non_fake_inputs=True):
            put(base, devices[0])
            for block, device in zip(base.model.layers, devices, strict=True):
                put(block, device)
            model = PackedModel(base, checkpoint_layers=recompute)
            model.parts = (range(1), range(1, 2))
            _place_ending(model, model.blocks[-1].device)
            shares = []
            for number, adapter in enumerate(ADAPTERS):
                job = training_job(str(number), random_examples(3, seed=number), adapter=adapter)
                spec = job.spec.adapter
                shapes = model.list_shapes(spec)
                values = {name: torch.zeros(shape) for name, shape in shapes.items()}
                model.attach(job.job_id, spec, values)
                changes = {"dropout": spec.dropout, "virtual_tokens": job.virtual_tokens}
                shares.append(PackShare(job.job_id, job.data.train, 0, 0, seed=1, **changes))
            pack = build_pack(shares, device=model.device, pad_to=16)

            def compute_loss(model=model, pack=pack) -> torch.Tensor:
                there = model.stream.move(pack, model.ending_device)
                return compute_sequence_nll(model, there, model.hidden(there)).sum()

            way = PartPass(model, pack, form=form, compute_loss=compute_loss)
            while not way.is_through:
                way.run_next()
            tables = {}
            with model.streaming(pack, form=form, tables=tables):
                compute_sequence_nll(model, pack, model.hidden(pack)).sum().backward()
            moved = [kept[0] for kept in tables.values() if isinstance(kept, tuple)]
            assert moved
            # hidden states go on from block to block, and no copy of them is kept
            hidden = (1, pack.tokens, WIDTH)
            assert not any(isinstance(one, torch.Tensor) and one.shape == hidden for one in moved)
            of = {tensor.device for _, tensor, _ in model.tensors("0")}
            assert of == {torch.device(device) for device in devices}


def test_passes_and_steps_move_what_they_need_from_device_to_device():
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
    for devices in (("stand:0", "cpu"), ("cpu", "stand:0")):
        step_on(*devices)
        pass_on(*devices)
    print("both ways round")
