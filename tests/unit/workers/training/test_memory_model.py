"""The memory that the market sells is what the engine keeps: sums against counted tensors."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
    RobertaConfig,
)

from tests.benchmarks.bench_groups import count_jobs
from workers.protocol.job_bytes import JobNeed, count_inner_bytes
from workers.protocol.job_spec import AdapterSpec
from workers.protocol.memory import BESIDES_BYTES, GB, PackSizing, count_job_bytes
from workers.protocol.model_shape import BasePart
from workers.protocol.part_memory import size_node
from workers.protocol.pass_bytes import DeviceProfile, count_inner_token_bytes, count_kept_bytes
from workers.training.architectures import build_on_meta, find_loader, read_shape
from workers.training.packed_model import PackedModel
from workers.training.rehearsal import rehearsal
from workers.training.saved_bytes import SavedBytes

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 512,
}
GROUPED = SIZES | {"num_key_value_heads": 2}
CONFIGS = {
    "llama": LlamaConfig(**GROUPED),
    "mistral": MistralConfig(**GROUPED),
    "qwen2": Qwen2Config(**GROUPED),
    "qwen3": Qwen3Config(**GROUPED, head_dim=16),
    "gpt2": GPT2Config(
        n_embd=64,
        n_layer=3,
        n_head=4,
        n_positions=512,
        vocab_size=512,
        bos_token_id=0,
        eos_token_id=0,
    ),
    "bert": BertConfig(**SIZES),
    "roberta": RobertaConfig(**SIZES),
}
TOKENS = 96
RANK = 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", CONFIGS)
def test_what_a_token_keeps_is_what_autograd_keeps(family, dtype):
    config = CONFIGS[family]
    model = PackedModel(find_loader(config).from_config(config, dtype=dtype))
    shape = model.shape
    profile = DeviceProfile("cpu", dtype.itemsize)
    with rehearsal(model, tokens=TOKENS) as pack:
        with model.streaming(pack), SavedBytes(model.model) as saved:
            model.hidden(pack)
        counted = saved.total / pack.tokens
    predicted = count_kept_bytes(shape, profile, recompute=False)
    predicted += count_inner_token_bytes(shape, profile, rank=RANK, recompute=False)
    # Rotary angles, which all layers share, are not in the sum.
    assert predicted == pytest.approx(counted, rel=0.01)


def test_recomputed_blocks_keep_their_inputs_alone():
    profile = DeviceProfile("cpu", 4)
    model = PackedModel(AutoModelForCausalLM.from_config(CONFIGS["llama"], dtype=torch.float32))
    shape = model.shape
    model.checkpoint_layers = True
    with rehearsal(model, tokens=TOKENS) as pack:
        with model.streaming(pack), SavedBytes(model.model) as saved:
            model.hidden(pack)
        counted = saved.total / pack.tokens
    inputs = count_kept_bytes(shape, profile, recompute=True)
    assert inputs == shape.layers * 64 * 4
    # Beside them: rotary angles, the last norm and what it noted.
    assert counted - inputs == 4 * (2 * 16 + 32 + 1)


class TestSharing:
    def test_ordinary_jobs_on_models_of_eight_billion_share_an_a100_of_40_gb(self):
        assert count_jobs("Llama-3.1-8B", card="A100-40") == 15
        assert count_jobs("Qwen3-8B", card="A100-40") == 14

    def test_a_base_that_leaves_no_room_for_a_pack_is_on_no_node(self):
        assert count_jobs("Llama-3.1-70B", card="A100-40", four_bit=True) == 0

    @pytest.mark.parametrize("device", ["cpu", "cuda"])
    def test_more_rank_more_targets_and_longer_packs_never_take_less(self, device):
        shape, profile = read_shape(build_on_meta(CONFIGS["llama"])), DeviceProfile(device, 2)

        def size(rank: int = 8, targets=None, tokens: int = 1024) -> float:
            pack = PackSizing(tokens, recompute=True)
            need = JobNeed(AdapterSpec(rank=rank, target_modules=targets))
            return count_job_bytes(shape, profile, need, pack=pack)

        assert size(targets=("q_proj",)) < size() < size(rank=9)
        assert size() <= size(tokens=2048)

    def test_a_token_has_three_inner_values_of_a_stack_on_a_gpu(self):
        shape, profile = read_shape(build_on_meta(CONFIGS["llama"])), DeviceProfile("cuda", 2)
        need = JobNeed(AdapterSpec(rank=16))
        # seven projections of 16 rows, 2 bytes each; all three blocks, or the one that is run again
        assert count_inner_bytes(shape, profile, need, recompute=True) == 3 * 16 * 7 * 2
        assert count_inner_bytes(shape, profile, need, recompute=False) == 3 * 16 * 7 * 2 * 3

    def test_a_tight_node_keeps_half_of_what_the_base_leaves_for_jobs(self):
        shape, profile = read_shape(build_on_meta(CONFIGS["llama"])), DeviceProfile("cuda", 2)
        base_gb, limit_gb = 0.001, 0.1
        parts = [BasePart(shape.layers, base_gb)]
        sized = size_node(shape, profile, parts=parts, limit_gb=limit_gb, longest_tokens=64)
        assert sized is not None
        assert 64 < sized.pack.token_budget < profile.pack_tokens
        assert sized.jobs_gb == pytest.approx(
            (limit_gb - base_gb - BESIDES_BYTES / GB) / 2, rel=0.01
        )
