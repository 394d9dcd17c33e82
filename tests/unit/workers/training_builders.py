"""Tiny real models, tokenizers and jobs for the training engine's tests."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    RobertaConfig,
)

from workers.protocol.job_spec import (
    AdapterSpec,
    BaseModelRef,
    BlobRef,
    DataFormat,
    JobSpec,
    TrainingSpec,
)
from workers.protocol.reports import Fault, ProgressEvent
from workers.runtime.job_sink import JobSummary
from workers.runtime.node_runtime import NodeRuntime
from workers.training.data import PreparedData, RowCounts
from workers.training.frozen_product import BLAS, FrozenProducts
from workers.training.fused_trainer import FusedTrainer
from workers.training.job import TrainingJob
from workers.training.packed_model import PackedModel
from workers.training.packing import Example, TokenSequence
from workers.training.step_results import StepResult

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
        # large enough that adapters have something to work with
        "initializer_range": 0.15,
    }
    if family == "gpt2":
        return GPT2Config(
            vocab_size=259,
            n_embd=WIDTH,
            n_layer=2,
            n_head=4,
            n_positions=CONTEXT,
            initializer_range=0.15,
            bos_token_id=1,
            eos_token_id=2,
        )
    kinds = {
        "llama": LlamaConfig,
        "mistral": MistralConfig,
        "qwen2": Qwen2Config,
        "qwen3": Qwen3Config,
        "gemma2": Gemma2Config,
    }
    if family in ("qwen3", "gemma2"):
        shared["head_dim"] = 8
    if family == "gemma2":
        shared |= {"attn_logit_softcapping": 5.0, "sliding_window": 16}
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


def attach(
    runtime: NodeRuntime,
    spec: JobSpec,
    data: Path,
    *checkpoints: Path,
    sink: RecordingSink | None = None,
    start: Path | None = None,
    pause_at: int | None = None,
) -> RecordingSink:
    """Start a job, or continue it from a checkpoint; what it tells is in the sink."""
    sink = sink or RecordingSink()
    runtime.attach(
        job=spec,
        data_path=data,
        validation_path=None,
        checkpoint_paths=checkpoints,
        start_path=start,
        sink=sink,
        pause_at=pause_at,
    )
    return sink


def random_examples(
    count: int, *, seed: int, shortest: int = 6, longest: int = 24
) -> tuple[Example, ...]:
    """Sequences of learnable structure: arithmetic steps through the vocabulary."""
    random = np.random.default_rng(seed)
    examples = []
    for line in range(1, count + 1):
        length = int(random.integers(shortest, longest + 1))
        start, stride = random.integers(3, 259), random.integers(1, 4)
        tokens = 3 + (start + stride * np.arange(length)) % 256
        weights = np.ones(length, dtype=np.float32)
        weights[: int(random.integers(1, length // 2))] = 0
        examples.append(Example(line, (TokenSequence(tokens.astype(np.int64), weights),)))
    return tuple(examples)


def prepared(train: tuple[Example, ...], valid: tuple[Example, ...] = ()) -> PreparedData:
    """Examples as if read from a file."""
    report = RowCounts(
        rows=len(train) + len(valid),
        train_rows=len(train),
        valid_rows=len(valid),
        tokens=sum(example.token_count for example in train),
        loss_tokens=sum(example.trained_tokens for example in train),
        longest_tokens=max(example.token_count for example in train),
        truncated_lines=(),
        dropped_lines=(),
        sha256="0" * 64,
    )
    return PreparedData(train, valid, "tokens", report)


def training_job(job_id: str, examples: tuple[Example, ...], **changes: Any) -> TrainingJob:
    """A job over given examples; ``adapter=`` and ``training=`` take dicts."""
    adapter = {"rank": 4, "alpha": 8.0} | changes.pop("adapter", {})
    training = {"batch_size": 4, "learning_rate": 2e-3} | changes.pop("training", {})
    spec = JobSpec(
        job_id=job_id,
        base_model=BaseModelRef(name="tiny", source="tiny"),
        data_format=DataFormat.TEXT,
        dataset=BlobRef(url="", sha256="", bytes=0),
        adapter=AdapterSpec(**adapter),
        training=TrainingSpec(**training),
    )
    return TrainingJob(spec, prepared(examples, changes.pop("valid", ())))


def trainer(
    model: Any,
    *,
    token_budget: int = 4096,
    products: FrozenProducts = BLAS,
    way: type[PackedModel] = PackedModel,
) -> FusedTrainer:
    fused = FusedTrainer(way(model), token_budget=token_budget)
    fused.model.stream.products = products
    return fused


def admit(fused: FusedTrainer, job: TrainingJob) -> None:
    """Let a job in with the adapter its seed gives."""
    fused.add(job, fused.model.draw_initial_values(job.spec.adapter, seed=job.spec.training.seed))


def run_steps(fused: FusedTrainer, steps: int) -> dict[str, list[float]]:
    """Train until every job made so many steps or is done; losses by job."""
    losses: dict[str, list[float]] = {name: [] for name in fused.jobs}
    while any(len(losses[name]) < steps and not job.done for name, job in fused.jobs.items()):
        for result in fused.round():
            assert isinstance(result, StepResult), result
            losses.setdefault(result.job_id, []).append(result.loss)
    return {name: values[:steps] for name, values in losses.items()}


def save_tiny_encoder(directory: Path, family: str = "bert") -> BaseModelRef:
    """A tiny encoder on disk with a word-level tokenizer."""
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        *["good", "bad", "great", "awful", "the", "film", "was", "a", "it"],
    ]
    tokenizer = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    ).save_pretrained(directory)
    kind = {"bert": BertConfig, "roberta": RobertaConfig}[family]
    config = kind(
        vocab_size=len(words),
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=34,
        pad_token_id=0,
        initializer_range=0.15,
    )
    torch.manual_seed(7)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(directory)
    return BaseModelRef(name=f"tiny-{family}", source=str(directory), dtype="float32")
