"""The loop: every job's next tokens in one pack, one pass, one step each.

``round`` reads as the plot: plan shares -> pack -> forward and backward -> step the
jobs whose batch is complete. A job's numbers depend on its own rows only; which
neighbours it has decides nothing but how its batch is cut into packs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from workers.training.faults import SystemFault, TrainingFault, UserFault
from workers.training.job import Batch, TrainingJob
from workers.training.loss import preference_losses, sequence_sums, token_nll
from workers.training.optimizer import adamw_step, clip_gradients, scheduled_rate
from workers.training.packed_model import PackedModel
from workers.training.packing import Example, Pack, Share, pack_shares


@dataclass(frozen=True, slots=True)
class Stepped:
    """An optimizer step was made."""

    job_id: str
    #: Steps done, this one included.
    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    tokens: int
    samples: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The job is out of the loop; its neighbours are not touched."""

    job_id: str
    fault: TrainingFault


class FusedTrainer:
    """All jobs of one resident base.

    Parameters
    ----------
    token_budget : int
        Tokens of a pack. A job's sequence longer than it gets a pack to itself.
    pad_to : int
        Packs are padded to a multiple of this many tokens.
    """

    def __init__(self, model: PackedModel, *, token_budget: int, pad_to: int = 1) -> None:
        self.model = model
        self.token_budget = token_budget
        self.pad_to = pad_to
        self.jobs: dict[str, TrainingJob] = {}
        #: Jobs that must prove themselves alone before they share a pack again.
        self._suspects: list[str] = []
        #: Whether all suspects of an out-of-memory pack have fitted alone so far.
        self._pack_was_too_big = False
        self._last_served: dict[str, int] = {}
        self._round = 0

    def add(self, job: TrainingJob, values: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Let a job in. ``values`` are its adapter's matrices by layer."""
        adapter = job.spec.adapter
        self.model.attach(
            job.job_id,
            names=tuple(sorted(values)),
            rank=adapter.rank,
            alpha=adapter.alpha,
            values=values,
        )
        for name, tensor, _ in self.model.tensors(job.job_id):
            for moments in (job.means, job.squares):
                kept = moments.get(name)
                moments[name] = torch.zeros_like(tensor) if kept is None else kept.to(tensor.device)
        self.jobs[job.job_id] = job
        self._last_served[job.job_id] = self._round

    def remove(self, job_id: str) -> TrainingJob:
        """Take a job out between two steps; read its values first."""
        self.model.detach(job_id)
        del self._last_served[job_id]
        if job_id in self._suspects:
            self._suspects.remove(job_id)
        return self.jobs.pop(job_id)

    def round(self) -> list[Stepped | Failed]:
        """One pack forward and backward, and the steps that complete with it."""
        shares = self._plan_shares()
        if not shares:
            return []
        self._round += 1
        for share in shares:
            self._last_served[share.job_id] = self._round
        try:
            self._reference(shares)
            pack = pack_shares(shares, device=self.model.device, pad_to=self.pad_to)
            failed = self._forward_backward(pack)
        except torch.OutOfMemoryError:
            return self._out_of_memory(shares)
        if failed:
            return failed
        done = [job for share in shares if _complete(job := self.jobs[share.job_id])]
        return self._step(done)

    @torch.no_grad()
    def evaluate(self, job: TrainingJob) -> float | None:
        """Mean loss over the held-out rows; ``None`` when there are none."""
        examples = job.data.valid
        if not examples:
            return None
        total = 0.0
        limit = min(self.token_budget, job.micro_tokens or self.token_budget)
        start = 0
        while start < len(examples):
            stop = start + _fitting(examples[start:], limit)
            part = examples[start:stop]
            self._reference_rows(job, range(start, stop), held_out=True)
            share = Share(job.job_id, part, 0, 0, virtual_tokens=job.virtual_tokens)
            pack = pack_shares([share], device=self.model.device, pad_to=self.pad_to)
            with self.model.streaming(pack):
                nll_S = self._sequence_nll(pack)
            rows = range(start, stop)
            total += float(self._example_losses(job, nll_S, rows, held_out=True).sum())
            start = stop
        return total / job.loss_weight(list(examples))

    def _plan_shares(self) -> list[Share]:
        """Equal tokens for everyone, what small batches leave free going to the others."""
        waiting = [job for job in self.jobs.values() if not job.done]
        if self._suspects:
            waiting = [self.jobs[self._suspects[0]]]
        waiting.sort(key=lambda job: self._last_served[job.job_id])
        left = self.token_budget
        chosen: list[TrainingJob] = []
        for job in waiting:
            need = self._tokens(job, self._waiting_examples(job)[0])
            if chosen and need > left:
                continue
            left -= need
            chosen.append(job)
        chosen.sort(key=lambda job: sum(self._tokens(job, e) for e in self._waiting_examples(job)))
        left = self.token_budget
        takes: dict[str, int] = {}
        for index, job in enumerate(chosen):
            examples = self._waiting_examples(job)
            # what the others need at least stays theirs
            rest = sum(
                self._tokens(other, self._waiting_examples(other)[0])
                for other in chosen[index + 1 :]
            )
            quota = max(left // (len(chosen) - index), 1)
            quota = min(quota, left - rest, job.micro_tokens or quota)
            takes[job.job_id] = _fitting(examples, quota, extra=job.virtual_tokens)
            left -= sum(self._tokens(job, e) for e in examples[: takes[job.job_id]])
        return [
            self._share(job, takes[job.job_id]) for job in self.jobs.values() if job.job_id in takes
        ]

    def _share(self, job: TrainingJob, count: int) -> Share:
        batch = job.current_batch()
        return Share(
            job_id=job.job_id,
            examples=tuple(self._waiting_examples(job)[:count]),
            first_row=batch.taken,
            step=job.progress.step,
            seed=job.spec.training.seed,
            dropout=job.spec.adapter.dropout,
            virtual_tokens=job.virtual_tokens,
        )

    def _waiting_examples(self, job: TrainingJob) -> list[Example]:
        batch = job.current_batch()
        return [job.data.train[row] for row in batch.rows[batch.taken :]]

    def _tokens(self, job: TrainingJob, example: Example) -> int:
        return example.token_count + job.virtual_tokens * len(example.sequences)

    def _forward_backward(self, pack: Pack) -> list[Stepped | Failed]:
        """Add the pack's gradients; nothing is added when a job's loss is not finite."""
        with self.model.streaming(pack):
            nll_S = self._sequence_nll(pack)
            rows = [self._rows(share) for share in pack.shares]
            parts = []
            start = 0
            for share, share_rows in zip(pack.shares, rows, strict=True):
                end = start + sum(len(example.sequences) for example in share.examples)
                parts.append(
                    self._example_losses(self.jobs[share.job_id], nll_S[start:end], share_rows)
                )
                start = end
            weights = [self.jobs[share.job_id].current_batch().weight for share in pack.shares]
            losses = torch.stack(
                [part.sum() / weight for part, weight in zip(parts, weights, strict=True)]
            )
            values = losses.tolist()
            failed: list[Stepped | Failed] = [
                self._diverged(share.job_id, "loss")
                for share, value in zip(pack.shares, values, strict=True)
                if not math.isfinite(value)
            ]
            if failed:
                return failed
            losses.sum().backward()
        for share, share_rows, part, value in zip(pack.shares, rows, parts, values, strict=True):
            self._note(share, share_rows, part.detach(), value)
        return []

    def _note(self, share: Share, rows: list[int], losses_E: torch.Tensor, value: float) -> None:
        job = self.jobs[share.job_id]
        batch = job.current_batch()
        for row, example, loss in zip(rows, share.examples, losses_E.tolist(), strict=True):
            per_token = job.data.kind == "tokens"
            job.row_losses[row] = loss / example.trained_tokens if per_token else loss
        batch.taken += len(share.examples)
        batch.loss += value
        batch.tokens += sum(self._tokens(job, example) for example in share.examples)

    def _sequence_nll(self, pack: Pack) -> torch.Tensor:
        hidden_TD = self.model.hidden(pack)
        nll_M = token_nll(hidden_TD[pack.predict_M], *self.model.head, pack.targets_M)
        return sequence_sums(nll_M, pack.sequence_M, len(pack.starts) - 1)

    def _example_losses(
        self, job: TrainingJob, nll_S: torch.Tensor, rows: list[int] | range, held_out: bool = False
    ) -> torch.Tensor:
        """``float32[E]``: what each example adds to the sum the job's loss is a mean of."""
        if job.data.kind == "tokens":
            return nll_S
        known = [job.reference_nll[held_out, row] for row in rows]
        reference_S = torch.tensor(known, device=nll_S.device).reshape(-1)
        return preference_losses(nll_S, reference_S, job.spec.training.dpo_beta)

    def _rows(self, share: Share) -> list[int]:
        batch = self.jobs[share.job_id].current_batch()
        return batch.rows[share.first_row : share.first_row + len(share.examples)].tolist()

    def _reference(self, shares: list[Share]) -> None:
        for share in shares:
            self._reference_rows(self.jobs[share.job_id], self._rows(share), held_out=False)

    @torch.no_grad()
    def _reference_rows(self, job: TrainingJob, rows: list[int] | range, *, held_out: bool) -> None:
        """Losses of the bare base on preference rows not seen before."""
        if job.data.kind != "pairs":
            return
        examples = job.data.valid if held_out else job.data.train
        missing = [row for row in rows if (held_out, row) not in job.reference_nll]
        if not missing:
            return
        share = Share(job.job_id, tuple(examples[row] for row in missing), 0, 0)
        pack = pack_shares([share], device=self.model.device, pad_to=self.pad_to)
        with self.model.streaming(pack, adapters=False):
            nll = self._sequence_nll(pack)[: 2 * len(missing)].reshape(-1, 2).tolist()
        for row, (chosen, rejected) in zip(missing, nll, strict=True):
            job.reference_nll[held_out, row] = (chosen, rejected)

    def _step(self, jobs: list[TrainingJob]) -> list[Stepped | Failed]:
        """Clip and step each job; whose gradient is not finite does not step."""
        tensors = [list(zip(*self.model.tensors(job.job_id), strict=True)) for job in jobs]
        norms = [
            clip_gradients(list(grads), job.spec.training.max_grad_norm)
            for job, (_, _, grads) in zip(jobs, tensors, strict=True)
        ]
        norm_values = torch.stack(norms).tolist() if norms else []
        if self.model.stream.form == "dense" and len(jobs) > 1:
            bad = [j.job_id for j, n in zip(jobs, norm_values, strict=True) if not math.isfinite(n)]
            if bad:
                # side by side, one job's NaN gradient may have reached the others': alone,
                # each shows whether it was its own
                self._rewind([job.job_id for job in jobs])
                self._suspects = bad
                return []
        results: list[Stepped | Failed] = []
        for job, (names, params, grads), norm in zip(jobs, tensors, norm_values, strict=True):
            if not math.isfinite(norm):
                results.append(self._diverged(job.job_id, "gradient"))
                continue
            results.append(self._step_one(job, list(names), list(params), list(grads), norm))
        return results

    def _step_one(
        self,
        job: TrainingJob,
        names: list[str],
        params: list[torch.Tensor],
        grads: list[torch.Tensor],
        norm: float,
    ) -> Stepped:
        training, progress = job.spec.training, job.progress
        assert job.batch is not None
        batch: Batch = job.batch
        rate = scheduled_rate(
            schedule=training.schedule,
            base_rate=training.learning_rate,
            step=progress.step,
            total=job.total_steps,
            warmup=job.warmup_steps,
        )
        adamw_step(
            params=params,
            grads=grads,
            means=[job.means[name] for name in names],
            squares=[job.squares[name] for name in names],
            step=progress.step,
            rate=rate,
            weight_decay=training.weight_decay,
        )
        for grad in grads:
            grad.zero_()
        job.batch = None
        progress.step += 1
        progress.samples_done += len(batch.rows)
        progress.trained_tokens += batch.tokens
        progress.last_train_loss = batch.loss
        if progress.first_train_loss is None:
            progress.first_train_loss = batch.loss
        self._cleared(job.job_id)
        return Stepped(
            job_id=job.job_id,
            step=progress.step,
            loss=batch.loss,
            grad_norm=norm,
            learning_rate=rate,
            tokens=batch.tokens,
            samples=len(batch.rows),
        )

    def _diverged(self, job_id: str, what: str) -> Failed:
        step = self.jobs[job_id].progress.step + 1
        return Failed(
            job_id,
            UserFault(
                f"The {what} was no longer a finite number at step {step}: training diverged. "
                "Lower the learning rate or check the data for unusual rows."
            ),
        )

    def _rewind(self, job_ids: list[str]) -> None:
        """Begin the jobs' current batches again; their weights have not changed since."""
        for job_id in job_ids:
            self.jobs[job_id].batch = None
            for _, _, grad in self.model.tensors(job_id):
                grad.zero_()

    def _out_of_memory(self, shares: list[Share]) -> list[Stepped | Failed]:
        """Find out who is too big, alone; halve its micro-batch; spare everybody else."""
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()
        self._rewind([share.job_id for share in shares])
        if len(shares) > 1:
            self._suspects = [share.job_id for share in shares]
            self._pack_was_too_big = True
            return []
        share = shares[0]
        self._pack_was_too_big = False
        job = self.jobs[share.job_id]
        if len(share.examples) == 1:
            tokens = self._tokens(job, share.examples[0])
            return [
                Failed(
                    job.job_id,
                    SystemFault(
                        f"The node ran out of memory on a single row of {tokens} tokens. "
                        "Train on a node with more memory, or lower the sequence length."
                    ),
                )
            ]
        job.micro_tokens = sum(self._tokens(job, e) for e in share.examples) // 2
        return []

    def _cleared(self, job_id: str) -> None:
        if job_id not in self._suspects:
            return
        self._suspects.remove(job_id)
        if not self._suspects and self._pack_was_too_big:
            # everyone fits alone, so it was the sum
            self._pack_was_too_big = False
            self.token_budget = max(1, self.token_budget // 2)


def _complete(job: TrainingJob) -> bool:
    batch = job.current_batch()
    return batch.taken == len(batch.rows)


def _fitting(examples: list[Example] | tuple[Example, ...], tokens: int, extra: int = 0) -> int:
    """How many of the first examples have at most ``tokens`` together; at least one."""
    total = 0
    for count, example in enumerate(examples):
        total += example.token_count + extra * len(example.sequences)
        if total > tokens:
            return max(1, count)
    return len(examples)
