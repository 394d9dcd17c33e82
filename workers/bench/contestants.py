"""The two ways of training the same tokens: this engine, and stock PEFT."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from workers.bench.cases import BenchCase, build_base_config
from workers.protocol.job_spec import (
    AdapterSpec,
    BaseModelRef,
    BlobRef,
    DataFormat,
    JobSpec,
    TrainingSpec,
)
from workers.training.data import PreparedData, RowCounts
from workers.training.job import TrainingJob
from workers.training.packed_model import PackedModel
from workers.training.packing import Example, TokenSequence
from workers.training.step_results import StepResult
from workers.training.tuning import build_tuned_trainer

LEARNING_RATE = 1e-4


def build_random_base(name: str, device: torch.device, dtype: torch.dtype) -> Any:
    """A model with random weights, made on the device."""
    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(build_base_config(name), dtype=dtype)


def draw_job_examples(case: BenchCase, job: int, rows: int, vocabulary: int) -> tuple[Example, ...]:
    random = np.random.default_rng([job, case.length])
    examples = []
    for line in range(rows):
        low = case.length // 2 if case.ragged else case.length
        tokens = random.integers(3, vocabulary, size=int(random.integers(low, case.length + 1)))
        weights = np.ones(len(tokens), dtype=np.float32)
        weights[0] = 0
        examples.append(Example(line + 1, (TokenSequence(tokens.astype(np.int64), weights),)))
    return tuple(examples)


class Fused:
    """All jobs in one step of the engine.

    Parameters
    ----------
    choose
        How the base is computed: packed, unless something else is said.
    adapters
        Of the jobs; by default all are of the case's rank.
    """

    def __init__(
        self,
        case: BenchCase,
        model: Any,
        steps: int,
        *,
        choose: Callable[[Any], PackedModel] = PackedModel,
        adapters: Sequence[AdapterSpec] = (),
    ) -> None:
        self.base_parameters = list(model.parameters())
        self.trainer = build_tuned_trainer(choose(model))
        self._case, self._steps, self._vocabulary = case, steps, model.config.vocab_size
        for index in range(case.jobs):
            self.trainer.add(*self.draw(index, adapters[index] if adapters else None))

    def draw(
        self, index: int, adapter: AdapterSpec | None
    ) -> tuple[TrainingJob, dict[str, torch.Tensor]]:
        """A job of the case, which is not there yet, and its initial values."""
        job = _job(self._case, index, self._steps, self._vocabulary, adapter)
        return job, self.trainer.model.draw_initial_values(job.spec.adapter, seed=index)

    def step(self) -> int:
        """One optimizer step of every job; tokens trained."""
        done: set[str] = set()
        tokens = 0
        while len(done) < len(self.trainer.jobs):
            for result in self.trainer.round():
                assert isinstance(result, StepResult), result
                done.add(result.job_id)
                tokens += result.tokens
        return tokens


class SequentialPeft:
    """The same jobs one after the other with PEFT's own adapter and torch's fused AdamW.

    One run's model serves them all in turn, which spares the loading each real run pays. In 16 bits
    it runs under autocast, as trainers do: PEFT's own weights are in 32.

    Parameters
    ----------
    packed : bool
        Lay a batch's rows in one, separated by their positions, in the place of padding.
    """

    def __init__(self, case: BenchCase, model: Any, steps: int, *, packed: bool = False) -> None:
        # only here: the engine's own figures need no peft
        from peft import LoraConfig, get_peft_model

        self.case = case
        fan_in = model.config.model_type == "gpt2"
        targets = list(PackedModel(copy.copy(model)).name_targets(AdapterSpec()))
        model.set_attn_implementation("sdpa")
        config = LoraConfig(
            r=case.rank,
            lora_alpha=2 * case.rank,
            lora_dropout=0.0,
            target_modules=targets,
            fan_in_fan_out=fan_in,
            task_type="CAUSAL_LM",
        )
        self.model = get_peft_model(model, config)
        self.model.train()
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            parameters, lr=LEARNING_RATE, weight_decay=0.0, fused=True
        )
        self.autocasts = model.dtype == torch.bfloat16
        lay_out = _packed if packed else _padded
        self.parameters = parameters
        self.batches = []
        for index in range(case.jobs):
            job = _job(case, index, steps, model.config.vocab_size)
            rows = [job.batch_rows(step) for step in range(steps)]
            self.batches.append(
                [lay_out([job.data.train[row] for row in batch], model.device) for batch in rows]
            )
        self.at = 0

    def step(self) -> int:
        """One optimizer step of every job; tokens trained (padding not counted)."""
        tokens = 0
        for job in range(self.case.jobs):
            inputs, trained = self.batches[job][self.at % len(self.batches[job])]
            kind = inputs["input_ids"].device.type
            with torch.autocast(kind, dtype=torch.bfloat16, enabled=self.autocasts):
                loss = self.model(**inputs, use_cache=False).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            loss.item()
            tokens += trained
        self.at += 1
        return tokens


def _job(
    case: BenchCase, index: int, steps: int, vocabulary: int, adapter: AdapterSpec | None = None
) -> TrainingJob:
    name = f"job-{index}"
    spec = JobSpec(
        job_id=name,
        base_model=BaseModelRef(name=case.base, source=case.base),
        data_format=DataFormat.TEXT,
        dataset=BlobRef(url="", sha256="", bytes=0),
        adapter=adapter or AdapterSpec(rank=case.rank, alpha=2.0 * case.rank),
        training=TrainingSpec(
            epochs=1,
            batch_size=case.batch,
            learning_rate=LEARNING_RATE,
            schedule="constant",
            seed=index,
        ),
    )
    examples = draw_job_examples(case, index, steps * case.batch, vocabulary)
    report = RowCounts(
        rows=len(examples),
        train_rows=len(examples),
        valid_rows=0,
        tokens=sum(e.token_count for e in examples),
        loss_tokens=sum(e.trained_tokens for e in examples),
        longest_tokens=case.length,
        truncated_lines=(),
        dropped_lines=(),
        sha256="",
    )
    return TrainingJob(spec, PreparedData(examples, (), "tokens", report))


#: What the stock model is called with, and how many tokens of it are real.
_Batch = tuple[dict[str, torch.Tensor], int]


def _packed(examples: list[Example], device: torch.device) -> _Batch:
    """What a stock collator without padding makes: rows in one, positions from 0 in each."""
    sequences = [example.sequences[0] for example in examples]
    labels = [np.where(one.weights > 0, one.tokens, -100) for one in sequences]
    parts = {
        "input_ids": np.concatenate([one.tokens for one in sequences]),
        "position_ids": np.concatenate([np.arange(len(one)) for one in sequences]),
        "labels": np.concatenate(labels),
    }
    inputs = {name: torch.from_numpy(part)[None].to(device) for name, part in parts.items()}
    return inputs, sum(len(one) for one in sequences)


def _padded(examples: list[Example], device: torch.device) -> _Batch:
    """What a stock collator makes: rows padded to the longest."""
    sequences = [example.sequences[0] for example in examples]
    longest = max(len(sequence) for sequence in sequences)
    ids = np.zeros((len(sequences), longest), dtype=np.int64)
    mask = np.zeros_like(ids)
    labels = np.full_like(ids, -100)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence.tokens
        mask[row, : len(sequence)] = 1
        labels[row, : len(sequence)] = sequence.tokens
    parts = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    inputs = {name: torch.from_numpy(part).to(device) for name, part in parts.items()}
    return inputs, int(mask.sum())
