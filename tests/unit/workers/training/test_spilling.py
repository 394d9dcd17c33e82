"""Packs whose blocks wait in the host's memory, with an MLP that sees its tokens in tiles."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from tests.market_builders import LLAMA_8B
from tests.unit.workers.training_builders import random_examples, training_job
from workers.protocol.job_bytes import JobNeed
from workers.protocol.job_spec import AdapterSpec
from workers.protocol.memory import GB, count_sold_job_bytes, find_longest_example
from workers.protocol.model_shape import BasePart
from workers.protocol.part_memory import size_node
from workers.protocol.pass_bytes import DeviceProfile
from workers.training import recomputing
from workers.training.objective import compute_sequence_nll
from workers.training.packed_model import PackedModel
from workers.training.packing import PackShare, build_pack

SIZES = {
    "vocab_size": 259,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
}
ADAPTERS = (
    {"rank": 8, "dropout": 0.1},
    {"rank": 16, "dora": True},
    {"rank": 8, "target_modules": ("q_proj", "up_proj")},
)


@pytest.mark.parametrize("form", ["segments", "dense", "grouped"])
def test_losses_and_gradients_are_those_of_a_pass_that_is_kept_whole(form, monkeypatch):
    torch.manual_seed(7)
    model = PackedModel(AutoModelForCausalLM.from_config(LlamaConfig(**SIZES)).eval())
    shares = []
    for number, adapter in enumerate(ADAPTERS):
        job = training_job(f"job-{number}", random_examples(5, seed=number), adapter=adapter)
        values = model.draw_initial_values(job.spec.adapter, seed=number)
        drawn = {n: torch.randn_like(v) / 8 if "lora_B" in n else v for n, v in values.items()}
        model.attach(job.job_id, job.spec.adapter, drawn)
        dropout = job.spec.adapter.dropout
        shares.append(PackShare(job.job_id, job.data.train, 0, 0, seed=1, dropout=dropout))
    pack = build_pack(shares, device=model.device, pad_to=16)
    tiles, cut_pack = [], recomputing.cut_pack
    monkeypatch.setitem(recomputing.TILE_TOKENS, "cpu", 24)
    monkeypatch.setattr(recomputing, "cut_pack", lambda *at: tiles.append(at[1:]) or cut_pack(*at))
    found = []
    for spills in (False, True):
        model.checkpoint_layers = model.spills = spills
        with model.streaming(pack, form=form):
            nll_S = compute_sequence_nll(model, pack, model.hidden(pack))
            nll_S.sum().backward()
        grads = [grad for share in shares for _, _, grad in model.tensors(share.job_id)]
        found.append((nll_S.detach(), [grad.clone() for grad in grads]))
        torch._foreach_zero_(grads)
    assert len(set(tiles)) == -(-pack.tokens // 24) > 5
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("host_gb", "least", "most"), [(0.0, 18_000, 22_000), (32.0, 40_000, 80_000)]
)
def test_rows_of_an_8b_base_in_four_bits_that_24_gb_are_sold_for(host_gb, least, most):
    profile, need = DeviceProfile("cuda", 2), JobNeed(AdapterSpec(rank=32))

    def is_sold(length):
        longest = find_longest_example(LLAMA_8B, sequence_length=length)
        parts = [BasePart(LLAMA_8B.layers, 6.2)]
        room = {"parts": parts, "limit_gb": 0.92 * 24, "host_gb": host_gb}
        sized = size_node(LLAMA_8B, profile, longest_tokens=longest, **room)
        job = count_sold_job_bytes(LLAMA_8B, need, dtype="bfloat16", sequence_length=length)
        return sized is not None and job <= GB * sized.jobs_gb

    assert is_sold(least)
    assert not is_sold(most)
