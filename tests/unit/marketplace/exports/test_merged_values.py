"""A node's export is the base with the adapter in it, to the last place of each value's type."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save, save_file

from marketplace.exports import merged_values
from marketplace.exports.merged_values import MergedRows, compare_rows
from marketplace.fleet.base_weights import StoredTensor, list_stored_tensors
from workers.exporting.merging import MergedWeights
from workers.protocol.export_check import ExportFileError, FoundTensor
from workers.protocol.job_spec import AdapterSpec

NAME, PREFIX = "layers.0.up.weight", "base_model.model.layers.0.up"
ROWS, COLUMNS, RANK, ALPHA = 96, 64, 4, 8.0


@dataclass
class World:
    """One matrix of a base, an adapter of it, and who merges and who compares."""

    rows: MergedRows
    merged: MergedWeights
    stored: torch.Tensor

    def compare(self, values: torch.Tensor, form: str) -> None:
        """Compare what a node wrote of a matrix with what the market computes."""
        content = write(values, form)
        tensor = FoundTensor(NAME, form, (ROWS, COLUMNS), 0, len(content))
        found, names = {NAME: tensor}, {NAME: NAME}
        compare_rows(io.BytesIO(content), found, rows=self.rows, names=names, gguf_config=None)


def write(values: torch.Tensor, form: str) -> bytes:
    """A matrix as a node writes it: ``values`` have the type that merging gives."""
    if form == "BF16":
        return values.view(torch.uint8).numpy().tobytes()
    kind = gguf.GGMLQuantizationType[form]
    return gguf.quants.quantize(values.float().numpy(), kind).tobytes()


def build(folder: Any, *, size: float, named: str, dora: bool = False, turned: bool = False):
    """A base in BF16 whose adapter changes its weights by about ``size`` of what they are."""
    torch.manual_seed(5)
    shape = (ROWS, COLUMNS)
    stored = (0.05 * torch.randn(shape)).bfloat16()
    outputs, inputs = shape[::-1] if turned else shape
    tensors = {
        f"{PREFIX}.lora_A.weight": torch.randn(RANK, inputs) / 2,
        f"{PREFIX}.lora_B.weight": 0.05 * size * torch.randn(outputs, RANK) / 2,
    }
    if dora:
        lengths = stored.float().norm(dim=0 if turned else 1)
        tensors[f"{PREFIX}.lora_magnitude_vector"] = lengths * (1 + size)
    save_file({NAME: stored}, folder / "base")
    merged = MergedWeights(
        {NAME: safe_open(folder / "base", framework="pt")},
        {"r": RANK, "lora_alpha": ALPHA, "fan_in_fan_out": turned},
        tensors,
        dtype=getattr(torch, named),
    )
    rows = MergedRows(
        list_stored_tensors(io.BytesIO(save({NAME: stored}))),
        list_stored_tensors(io.BytesIO(save(tensors))),
        AdapterSpec(rank=RANK, alpha=ALPHA, dora=dora),
        turned,
        {"dtype": named},
    )
    return World(rows, merged, stored)


#: Types of a file, what its base computes in, and a change that is small in it.
FORMS = [
    ("BF16", "bfloat16", 1e-3),
    ("F32", "float32", 1e-4),
    ("F16", "float32", 3e-4),
    ("F16", "bfloat16", 1e-3),
    ("Q8_0", "float32", 1e-3),
    ("Q8_0", "bfloat16", 2e-3),
]


@pytest.mark.parametrize(("form", "named", "size"), FORMS)
@pytest.mark.parametrize("kind", ["lora", "dora", "turned", "turned dora"])
def test_a_lightly_trained_adapter_is_told_from_its_base(tmp_path, form, named, size, kind):
    turned = kind.startswith("turned")
    world = build(tmp_path, size=size, named=named, dora=kind.endswith("dora"), turned=turned)
    dtype = getattr(torch, named)
    honest = world.merged.read(NAME)
    for _ in range(20):
        world.compare(honest, form)
    base = world.stored.to(dtype)
    half = ((honest.float() + base.float()) / 2).to(dtype)
    for wrong in (base, half):
        assert write(wrong, form) != write(honest, form)
        with pytest.raises(ExportFileError, match="is not the base's with the adapter in it"):
            world.compare(wrong, form)


def test_one_value_that_is_a_step_off_in_a_changed_row_is_found(tmp_path):
    world = build(tmp_path, size=0.1, named="bfloat16")
    honest = world.merged.read(NAME)
    most = (honest.float() - world.stored.float()).norm(dim=1).argmax()
    honest.view(torch.int16)[most, 7] ^= 1
    with pytest.raises(ExportFileError):
        world.compare(honest, "BF16")


@pytest.mark.parametrize("form", ["BF16", "Q8_0"])
def test_a_change_that_rounding_leaves_nothing_of_is_no_other_file(tmp_path, form):
    world = build(tmp_path, size=1e-7, named="bfloat16")
    honest = world.merged.read(NAME)
    assert write(honest, form) == write(world.stored, form)
    world.compare(world.stored, form)


def test_rows_of_zeros_are_compared_too(tmp_path):
    world = build(tmp_path, size=0.0, named="float32")
    blank = torch.zeros(ROWS, COLUMNS)
    blank_rows = MergedRows(
        list_stored_tensors(io.BytesIO(save({NAME: blank.bfloat16()}))),
        *(world.rows.adapter, world.rows.spec, False, world.rows.config),
    )
    blank_world = World(blank_rows, world.merged, blank)
    blank_world.compare(blank, "Q8_0")
    with pytest.raises(ExportFileError):
        blank_world.compare(blank + np.float32(1e-3), "Q8_0")


@pytest.mark.parametrize("form", ["BF16", "Q8_0"])
def test_one_value_of_a_tensor_that_the_adapter_does_not_change_is_found(tmp_path, form):
    world = build(tmp_path, size=0.1, named="bfloat16")
    untouched = World(replace(world.rows, adapter={}), world.merged, world.stored)
    untouched.compare(world.stored, form)
    for row in (0, 50, ROWS - 1):
        wrong = world.stored.clone()
        wrong[row, 7] += 1.0
        with pytest.raises(ExportFileError):
            untouched.compare(wrong, form)


def test_blocks_of_a_base_on_the_hub_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(StoredTensor, "is_far", True)
    monkeypatch.setattr(merged_values, "BLOCK_BYTES", 2 * 2 * COLUMNS)
    monkeypatch.setattr(merged_values, "_FAR_BLOCKS", 40)
    world = build(tmp_path, size=0.1, named="bfloat16")
    world.compare(world.merged.read(NAME), "BF16")
    untouched = World(replace(world.rows, adapter={}), world.merged, world.stored)
    untouched.compare(world.stored, "BF16")
    wrong = world.stored.clone()
    # Blocks of two rows miss a third of the rows 41 times once in 10^19 times.
    wrong[::3, 7] += 1.0
    with pytest.raises(ExportFileError):
        untouched.compare(wrong, "BF16")
