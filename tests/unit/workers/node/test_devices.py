"""A GPU that cannot be used is said so with its reason; a machine without one is a CPU node."""

import pytest
import torch

from workers.node import devices
from workers.node.credentials import NodeSettingsError
from workers.node.devices import choose_device, explain_unusable_gpu, read_driver_version

GPU = ["/dev/nvidia0"]


@pytest.mark.parametrize(
    ("driver", "files", "cuda", "said"),
    [
        (550, GPU, "13.0", "its driver 550 is too old: PyTorch with CUDA 13.0 needs 580 or newer"),
        (470, GPU, "12.8", "its driver 470 is too old: PyTorch with CUDA 12.8 needs 525 or newer"),
        (580, GPU, None, "the installed PyTorch is built without CUDA"),
        (None, GPU, "13.0", "its driver is not loaded"),
        (580, [], "13.0", "start it with --gpus all"),
        (580, GPU, "13.0", "CUDA_VISIBLE_DEVICES"),
        (0, GPU, "13.0", "nvidia-smi"),
    ],
)
def test_each_reason_is_named(driver, files, cuda, said):
    assert said in explain_unusable_gpu(driver=driver, devices=files, cuda=cuda)


@pytest.mark.parametrize("cuda", [None, "13.0"])
def test_a_machine_without_a_gpu_has_nothing_to_explain(cuda):
    assert explain_unusable_gpu(driver=None, devices=[], cuda=cuda) is None


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\n", 550),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release\n", 580),
        ("something else", 0),
    ],
)
def test_the_drivers_version_is_read_as_it_says_it(tmp_path, text, version):
    file = tmp_path / "version"
    file.write_text(text)
    assert read_driver_version(file) == version
    assert read_driver_version(tmp_path / "missing") is None


@pytest.fixture
def no_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_a_gpu_that_cannot_be_used_is_never_listed_as_a_cpu(monkeypatch, no_cuda):
    monkeypatch.setattr(devices, "read_driver_version", lambda: 470)
    with pytest.raises(NodeSettingsError, match="To list the CPU of this machine instead"):
        choose_device(None)
    assert choose_device("cpu") == "cpu"


def test_a_machine_without_a_gpu_is_a_cpu_unless_a_gpu_was_asked_for(monkeypatch, no_cuda):
    monkeypatch.setattr(devices, "read_driver_version", lambda: None)
    assert choose_device(None) == "cpu"
    with pytest.raises(NodeSettingsError, match="no NVIDIA GPU that can be seen"):
        choose_device("cuda:1")
