"""Tiny real models, tokenizers and jobs for the training engine's tests."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from workers.protocol.messages import (
    AdapterSpec,
    BaseModelRef,
    BlobRef,
    DataFormat,
    Fault,
    JobSpec,
    ProgressEvent,
    TrainingSpec,
)
from workers.runtime.sink import JobSummary

WIDTH = 32
CONTEXT = 96


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A token per byte, and three special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<pad>": 0, "<s>": 1, "</s>": 2}
    vocab |= {letter: index + 3 for index, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def tiny_config(family: str) -> Any:
    shared = {
        "vocab_size": 259,
        "hidden_size": WIDTH,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    if family == "gpt2":
        return GPT2Config(
            vocab_size=259,
            n_embd=WIDTH,
            n_layer=2,
            n_head=4,
            n_positions=CONTEXT,
            bos_token_id=1,
            eos_token_id=2,
        )
    kinds = {
        "llama": LlamaConfig,
        "mistral": MistralConfig,
        "qwen2": Qwen2Config,
        "qwen3": Qwen3Config,
    }
    if family == "qwen3":
        shared["head_dim"] = 8
    return kinds[family](**shared)


def tiny_model(family: str = "llama", *, seed: int = 7) -> Any:
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(tiny_config(family)).eval()


def save_tiny_base(directory: Path, family: str = "llama") -> BaseModelRef:
    """A tiny base on disk, as a node would find it."""
    tiny_model(family).save_pretrained(directory)
    byte_tokenizer().save_pretrained(directory)
    return BaseModelRef(name=f"tiny-{family}", source=str(directory), dtype="float32")


def completion_rows(count: int, *, word: str = "blue") -> list[dict[str, str]]:
    return [
        {"prompt": f"Q{index}: what colour is {word[: 1 + index % 4]}?", "completion": f" {word}"}
        for index in range(count)
    ]


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def job_spec(job_id: str, base: BaseModelRef, data: Path, **changes: Any) -> JobSpec:
    """A job with small defaults; ``adapter=`` and ``training=`` take dicts."""
    content = data.read_bytes()
    blob = BlobRef(url="/x", sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
    adapter = {"rank": 4, "alpha": 8.0} | changes.pop("adapter", {})
    training = {"epochs": 2, "batch_size": 4, "learning_rate": 5e-3} | changes.pop("training", {})
    return JobSpec(
        job_id=job_id,
        base_model=base,
        data_format=changes.pop("data_format", DataFormat.COMPLETION),
        dataset=blob,
        adapter=AdapterSpec(**adapter),
        training=TrainingSpec(**training),
        **changes,
    )


@dataclass
class RecordingSink:
    """Keeps what a job tells; ``ended`` is set by the last word."""

    events: list[ProgressEvent] = field(default_factory=list)
    checkpoints: list[tuple[Path, int]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    outcome: str | None = None
    summary: JobSummary | None = None
    adapter_dir: Path | None = None
    fault: Fault | None = None
    reason: str = ""
    on_checkpoint: threading.Event = field(default_factory=threading.Event)

    def progress(self, event: ProgressEvent) -> None:
        self.events.append(event)

    def checkpointed(self, path: Path, step: int) -> None:
        self.checkpoints.append((path, step))
        self.on_checkpoint.set()

    def paused(self, summary: JobSummary) -> None:
        self._end("paused", summary)

    def finished(self, adapter_dir: Path, summary: JobSummary) -> None:
        self.adapter_dir = adapter_dir
        self._end("finished", summary)

    def failed(self, fault: Fault, reason: str, summary: JobSummary) -> None:
        self.fault, self.reason = fault, reason
        self._end("failed", summary)

    def wait(self) -> JobSummary:
        assert self.ended.wait(60), "the job did not end within a minute"
        assert self.summary is not None
        return self.summary

    def _end(self, outcome: str, summary: JobSummary) -> None:
        assert self.outcome is None, f"{self.outcome}, then {outcome}"
        self.outcome, self.summary = outcome, summary
        self.ended.set()
