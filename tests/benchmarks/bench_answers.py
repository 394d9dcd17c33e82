"""Where the time of an answer goes on the node, beside ``transformers.generate``, in one process.

Engine against engine: no HTTP and no market. Rounds of both take turns, so that other load on the
machine meets both. ``python -m tests.benchmarks.bench_answers`` prints a JSON line a case.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from workers.protocol.generation import ChatTurn, Question, Written
from workers.protocol.job_spec import AdapterSpec, BaseModelRef, BlobRef
from workers.protocol.probes import ProbeAdapter
from workers.runtime.node_runtime import NodeRuntime
from workers.runtime.resident import ResidentBase
from workers.training.start_values import load_start_values
from workers.training.writing import Writer

SOURCE = "bundled:finetender-tiny"
PROMPT = "Say something about the sea."
#: Adapters that answer at the same time.
TOGETHER = 8
SPEC = AdapterSpec(rank=8, alpha=16.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="*", default=[10, 128])
    parser.add_argument("--threads", type=int, nargs="*", default=[1, torch.get_num_threads()])
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runtime = NodeRuntime(device="cpu", cache_dir=Path(folder) / "cache")
        try:
            base = runtime.resident(BaseModelRef(name=SOURCE, source=SOURCE, dtype="float32"))
            stock, archive = build_stock(base, Path(folder))
            for threads in chosen.threads:
                torch.set_num_threads(threads)
                for tokens in chosen.tokens:
                    found = compare(base, stock, archive, tokens=tokens, rounds=chosen.rounds)
                    load = round(os.getloadavg()[0], 1)
                    print(json.dumps({"threads": threads, "load": load} | found), flush=True)
        finally:
            runtime.close()


def build_stock(base: ResidentBase, folder: Path) -> tuple[PeftModel, Path]:
    """A model with an adapter of random values, and the adapter's zip as a node gets it."""
    torch.manual_seed(0)
    path = base.model.model.config.name_or_path
    config = LoraConfig(
        r=SPEC.rank,
        lora_alpha=SPEC.alpha,
        init_lora_weights=False,
        target_modules=[part.name for part in base.model.find_adapted(SPEC)],
    )
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(path), config)
    # Small, so that the answers are those of a model and not noise.
    for name, values in model.named_parameters():
        if "lora_B" in name:
            values.data.mul_(0.01)
    model.save_pretrained(str(folder / "adapter"))
    return model.eval(), Path(shutil.make_archive(str(folder / "zip"), "zip", folder / "adapter"))


def compare(
    base: ResidentBase, stock: PeftModel, archive: Path, *, tokens: int, rounds: int
) -> dict[str, Any]:
    """Milliseconds of each part, and tokens a second of both engines, medians of all rounds."""
    seen: dict[str, list[float]] = {}
    written: list[int] = []
    for _ in range(rounds + 1):
        for together in (1, TOGETHER):
            for name, value in write_ours(base, archive, together, tokens).items():
                seen.setdefault(f"{name}_{together}", []).append(value)
        began = time.perf_counter()
        written.append(write_stock(base, stock, tokens))
        seen.setdefault("stock_tokens_per_s", []).append(
            written[-1] / (time.perf_counter() - began)
        )
    # The first round warms up.
    found = {name: round(statistics.median(each[1:]), 3) for name, each in seen.items()}
    return {"tokens": tokens, "stock_tokens": written[-1]} | found


def write_ours(base: ResidentBase, archive: Path, together: int, tokens: int) -> dict[str, float]:
    """Answers of so many adapters at once: what each part took, in milliseconds."""
    writer = Writer(base.model, base.tokenizer, base.adapters, lambda: None)
    # Both engines write as many tokens as they are asked for.
    writer._stop_tokens = frozenset()
    ended: list[Written] = []
    loading_s, beginning_s = 0.0, 0.0
    began = time.perf_counter()
    for number in range(together):
        at = time.perf_counter()
        shapes = base.model.list_shapes(SPEC)
        values = load_start_values(archive, shapes=shapes, scale=SPEC.scale)
        loading_s += time.perf_counter() - at
        at = time.perf_counter()
        blob = BlobRef(url="", sha256="", bytes=0)
        adapter = ProbeAdapter(f"adapter {number}", blob, SPEC)
        question = Question(
            token=str(number),
            expires_at=time.time() + 600,
            base_model=base.ref,
            adapter=adapter,
            turns=(ChatTurn("user", PROMPT),),
            max_tokens=tokens,
        )
        writer.begin(question, lambda values=values: values, _keep_ends(ended))
        beginning_s += time.perf_counter() - at
    steps = 0
    at = time.perf_counter()
    while writer.is_busy:
        writer.write_token()
        steps += 1
    now = time.perf_counter()
    return {
        "load_adapter_ms": 1000 * loading_s / together,
        "begin_ms": 1000 * beginning_s / together,
        "step_ms": 1000 * (now - at) / max(steps, 1),
        "tokens_per_s": sum(item.answer_tokens for item in ended) / (now - began),
    }


def _keep_ends(ended: list[Written]) -> Callable[[Written], None]:
    return lambda item: ended.append(item) if item.finish else None


def write_stock(base: ResidentBase, stock: PeftModel, tokens: int) -> int:
    """How many tokens ``generate`` wrote."""
    inputs = base.tokenizer.apply_chat_template(
        [{"role": "user", "content": PROMPT}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    made = stock.generate(**inputs, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
    return int(made.shape[1] - inputs["input_ids"].shape[1])


if __name__ == "__main__":
    main()
