"""``python -m workers.bench memory``: what training was predicted to take, and what it took.

Each case trains in a process of its own on the CPU. The process counts its pages at the peak
(``workers.runtime.peak_memory``), without those of the libraries. Freed tensors go back to the
system at once, so the figure counts tensors and no fragmentation; a device keeps an unused share
for fragmentation. ``--mixed`` does so with random mixes of jobs. The prediction is
``workers.protocol.memory``, by which the market sells and nodes plan; it should be up to 10 % above
the measurement (15 % of mixes) and never below.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from random import Random
from typing import Any

import torch
from transformers import AutoConfig, GPT2Config

from workers.bench.cases import BenchCase
from workers.bench.contestants import Fused
from workers.protocol.job_bytes import JobNeed
from workers.protocol.job_spec import AdapterSpec
from workers.protocol.memory import PackSizing, sum_total_gb
from workers.protocol.pass_bytes import DeviceProfile, count_host_bytes
from workers.runtime.forward_check import choose_model
from workers.runtime.peak_memory import MemoryGrowth, measure_growth

CPU = torch.device("cpu")
MOST_ABOVE = 1.10
#: glibc maps what is larger by itself, and so gives it back when it is freed.
RETURNED = {"MALLOC_MMAP_THRESHOLD_": "65536"}


@dataclass(frozen=True, slots=True)
class MemoryCase:
    name: str
    family: str
    adapters: tuple[AdapterSpec, ...]
    #: Tokens of a pack; each job has sequences of ``length`` for more than that.
    pack_tokens: int
    length: int
    recompute: bool = False
    #: As ``PackSizing.spills``; on CPUs the host's memory is the device's.
    spills: bool = False
    #: How much of the measurement a good prediction may be.
    most_above: float = MOST_ABOVE


_RANK_16 = (AdapterSpec(rank=16),)
CASES = (
    MemoryCase("llama, 1 job", "llama", (AdapterSpec(rank=8),), 1024, 128),
    MemoryCase("llama, 8 jobs", "llama", (AdapterSpec(rank=8),) * 8, 1024, 64),
    MemoryCase("llama, 8 jobs of rank 64", "llama", (AdapterSpec(rank=64),) * 8, 1024, 64),
    MemoryCase("llama, 4 jobs, recomputed", "llama", _RANK_16 * 4, 2048, 256, recompute=True),
    MemoryCase("llama, spilled", "llama", _RANK_16 * 2, 1024, 1024, True, spills=True),
    MemoryCase("qwen3, 4 jobs", "qwen3", _RANK_16 * 4, 1024, 128),
    MemoryCase("gpt2, 4 jobs", "gpt2", _RANK_16 * 4, 1024, 128),
    # packed, with an output layer or experts of their own
    MemoryCase("granite, 4 jobs", "granite", _RANK_16 * 4, 1024, 128),
    MemoryCase("mixtral, 4 jobs", "mixtral", _RANK_16 * 4, 1024, 128),
    # by their own code, one job a pass
    MemoryCase("gemma2, 2 jobs", "gemma2", _RANK_16 * 2, 1024, 512),
    MemoryCase("gemma2, long rows", "gemma2", _RANK_16 * 2, 1024, 1024),
    MemoryCase("gemma2, recomputed", "gemma2", _RANK_16 * 2, 1024, 512, True),
    MemoryCase("gpt_oss, 2 jobs", "gpt_oss", _RANK_16 * 2, 1024, 512),
)


MIXES = 20
MIX_MOST_ABOVE = 1.15


def draw_mix(number: int) -> MemoryCase:
    """Two to eight jobs of any ranks, targets, dropouts and methods."""
    random = Random(number)  # noqa: S311
    targets = (None, ("q_proj", "v_proj"), ("gate_proj", "up_proj", "down_proj"), ("o_proj",))
    adapters = tuple(
        AdapterSpec(
            rank=random.choice((4, 8, 13, 16, 32, 64, 128, 256)),
            target_modules=random.choice(targets),
            dropout=random.choice((0.0, 0.0, 0.05, 0.1)),
            rslora=random.random() < 0.25,
            dora=random.random() < 0.25,
        )
        for _ in range(random.randint(2, 8))
    )
    length, family = random.choice((64, 128, 256)), random.choice(("llama", "qwen3"))
    recompute = random.random() < 0.5
    name = f"mix {number}"
    return MemoryCase(name, family, adapters, 1024, length, recompute, most_above=MIX_MOST_ABOVE)


#: Under which name mixtures of experts say how many there are.
_EXPERTS = {
    "mixtral": "num_local_experts",
    "gpt_oss": "num_local_experts",
    "qwen3_moe": "num_experts",
}


def build_config(family: str, *, scale: int = 1) -> Any:
    """A base of some 40 million weights: enough that what a process takes besides is little.

    Parameters
    ----------
    scale
        How much wider it is, for GPUs.
    """
    sizes = {
        "hidden_size": 512 * scale,
        "intermediate_size": 1408 * scale,
        "num_hidden_layers": 8,
        "num_attention_heads": 8 * scale,
        "num_key_value_heads": 4 * scale,
        "vocab_size": 16384 * scale,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
    }
    if family == "gpt2":
        return GPT2Config(
            n_embd=512,
            n_layer=8,
            n_head=8,
            n_positions=1024,
            vocab_size=16384,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
        )
    more: dict[str, Any] = {"head_dim": 64, "pad_token_id": 0}
    if family in _EXPERTS:
        more |= {_EXPERTS[family]: 8, "num_experts_per_tok": 2, "intermediate_size": 704}
        more |= {"moe_intermediate_size": 704}
    if "llama" in family or family == "stablelm":
        more = {}
    return AutoConfig.for_model(family, **(sizes | more))


def measure_case(case: MemoryCase, device: torch.device = CPU) -> dict[str, Any]:
    """Predicted and measured GB of one case, in this process.

    A GPU is measured by what its allocator gave out, and has the base four times as wide.
    """
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    # What the libraries take once is no case's.
    warm = torch.ones(512, 512, device=device)
    (warm @ warm).sum().item()
    gc.collect()
    is_cuda = device.type == "cuda"
    config = build_config(case.family, scale=4 if is_cuda else 1)
    dtype = torch.bfloat16 if is_cuda else torch.float32
    bench = BenchCase(
        case.name,
        case.family,
        len(case.adapters),
        max(1, 2 * case.pack_tokens // (case.length * len(case.adapters))),
        case.length,
    )
    with measure_peak(device) as growth:
        with device:
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        choose = partial(choose_model, case.family)
        fused = Fused(bench, model, 3, choose=choose, adapters=case.adapters)
        fused.trainer.token_budget = case.pack_tokens
        fused.trainer.model.checkpoint_layers = case.recompute
        fused.trainer.model.spills = case.spills
        fused.step()
    assert growth.peak_bytes is not None, "this system does not count a process's pages"
    shape = fused.trainer.model.shape
    base_gb = sum(p.numel() * p.element_size() for p in fused.base_parameters) / 1e9
    profile, pack = DeviceProfile(device.type, dtype.itemsize), fused.trainer.largest_pack
    predicted = case.spills * count_host_bytes(shape, profile, tokens=pack) / 1e9
    predicted += sum_total_gb(
        shape,
        profile,
        base_gb=base_gb,
        pack=PackSizing(pack, case.recompute, case.spills),
        needs=[JobNeed(adapter) for adapter in case.adapters],
        longest_tokens=case.length,
        # Rows are of one length here; of others the market and nodes count the most there can be.
        padding=1.0,
    )
    measured = growth.peak_bytes / 1e9
    ratio = predicted / measured
    return {
        "bench": "memory",
        **(asdict(case) | {"adapters": [describe_adapter(one) for one in case.adapters]}),
        "ok": 1.0 <= ratio <= case.most_above,
        "predicted_gb": round(predicted, 3),
        "measured_gb": round(measured, 3),
        "ratio": round(ratio, 3),
    }


@contextmanager
def measure_peak(device: torch.device) -> Iterator[MemoryGrowth]:
    """What was taken at most: of a GPU by its allocator, of a CPU as pages of the process."""
    if device.type != "cuda":
        with measure_growth() as growth:
            yield growth
        return
    torch.cuda.empty_cache()
    before, found = torch.cuda.memory_allocated(device), MemoryGrowth()
    torch.cuda.reset_peak_memory_stats(device)
    yield found
    found.peak_bytes = torch.cuda.max_memory_allocated(device) - before


def describe_adapter(adapter: AdapterSpec) -> str:
    targets = ",".join(adapter.target_modules or ("all",))
    dropout = f" dropout {adapter.dropout}" if adapter.dropout else ""
    return f"{'dora' if adapter.dora else 'lora'} r{adapter.rank} {targets}{dropout}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m workers.bench memory", description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument(
        "--mixed", action="store_true", help=f"{MIXES} random mixes of jobs, not the named cases"
    )
    parser.add_argument("--case", type=int, default=None, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    cases = tuple(map(draw_mix, range(MIXES))) if chosen.mixed else CASES
    if chosen.case is not None:
        print(json.dumps(measure_case(cases[chosen.case])), flush=True)
        return 0
    is_good = True
    for number, case in enumerate(cases):
        if chosen.only not in case.name:
            continue
        command = [sys.executable, "-m", "workers.bench", "memory", "--case", str(number)]
        command += ["--mixed"] if chosen.mixed else []
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ | RETURNED
        )
        if done.returncode:
            sys.stderr.write(done.stderr)
            return 1
        row = json.loads(done.stdout.splitlines()[-1])
        is_good = is_good and row["ok"]
        print(json.dumps(row), flush=True)
    return 0 if is_good else 1
