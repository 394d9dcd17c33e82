"""The loop: every job's next tokens in one pack, one pass, one step each.

``round`` reads as the plot: plan shares -> pack -> forward and backward -> step the
jobs whose batch is complete. A job's numbers depend on its own rows only; which
neighbours it has decides nothing but how its batch is cut into packs.
"""

from __future__ import annotations

import logging
import math
from itertools import chain

import torch

from workers.training.evaluation import EvaluationRun
from workers.training.faults import (
    SystemFault,
    TrainingFault,
    is_device_lost,
    is_out_of_memory,
    refuse_row_too_big,
)
from workers.training.gang import Gang, GangLost, GangPart, PartGradient, divide_shares
from workers.training.job import TrainingJob
from workers.training.job_step import fail_diverged, step_job
from workers.training.objective import cache_reference_losses, compute_example_losses
from workers.training.optimizer import clip_gradients, make_moment
from workers.training.pack_plan import PackRequest, plan_pack
from workers.training.pack_shares import is_batch_complete, list_left, note_losses, take_share
from workers.training.packed_model import PackedModel
from workers.training.packing import Pack, PackShare, build_pack
from workers.training.saved_bytes import SavedBytes
from workers.training.step_results import EvaluationResult, StepFailure, StepResult

log = logging.getLogger(__name__)


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
        #: Evaluations under way, in the order in which they get their next pack; their jobs do
        #: not step meanwhile.
        self._evaluations: dict[str, EvaluationRun] = {}
        self._round = 0
        #: Bytes autograd kept per token, measured in the first pack after a job came.
        self.saved_per_token: float | None = None
        self._measure = False
        #: Tokens of the largest pack so far, and of the last one.
        self.largest_pack = 0
        self.last_pack = 0
        #: Devices that share the batches of soft prompts, where there are several.
        self.gang: Gang | None = None

    def add(self, job: TrainingJob, values: dict[str, torch.Tensor]) -> None:
        """Let a job in. ``values`` are its adapter's tensors by name.

        Raises
        ------
        SystemFault
            There is no memory for it; all is as before.
        """
        means, squares = dict(job.means), dict(job.squares)
        with self.model.all_or_nothing(job.job_id, values):
            self.model.attach(job.job_id, job.spec.adapter, values)
            for name, tensor, _ in self.model.tensors(job.job_id):
                for moments in (means, squares):
                    kept = moments.get(name)
                    moments[name] = make_moment(tensor) if kept is None else kept.to(tensor.device)
        job.means, job.squares = means, squares
        self.jobs[job.job_id] = job
        self._measure = True
        self._last_served[job.job_id] = self._round

    def remove(self, job_id: str) -> TrainingJob:
        """Take a job out between two steps; read its values first."""
        self.model.detach(job_id)
        del self._last_served[job_id]
        self._evaluations.pop(job_id, None)
        if job_id in self._suspects:
            self._suspects.remove(job_id)
        return self.jobs.pop(job_id)

    def round(self) -> list[StepResult | StepFailure]:
        """One pack forward and backward, and the steps that complete with it."""
        shares = self._plan_shares()
        if not shares:
            return []
        self._round += 1
        for share in shares:
            self._last_served[share.job_id] = self._round
        try:
            failed = self._forward_backward_together(shares)
        except GangLost as lost:
            log.warning("a device of the gang is lost, the others go on: %s", lost)
            self._rewind([share.job_id for share in shares])
            return []
        except Exception as error:
            if is_out_of_memory(error):
                return self._out_of_memory(shares)
            if is_device_lost(error):
                raise
            return self._failed_pack(shares, error)
        if failed:
            return failed
        done = [job for share in shares if is_batch_complete(job := self.jobs[share.job_id])]
        return self._step(done)

    @property
    def measures_next(self) -> bool:
        """Whether the next pack counts what autograd keeps."""
        return self._measure

    def start_evaluation(self, job_id: str) -> None:
        """Have a job's held-out rows evaluated, pack by pack, before its next step.

        There must be such rows.
        """
        self._evaluations[job_id] = EvaluationRun(self.jobs[job_id], token_budget=self.token_budget)

    def evaluate_next(self) -> EvaluationResult | StepFailure | None:
        """Run the next pack of one evaluation; what came of it once it is over.

        Several evaluations take turns.
        """
        if not self._evaluations:
            return None
        job_id, run = next(iter(self._evaluations.items()))
        del self._evaluations[job_id]
        try:
            found = run.run_pack(self.model, pad_to=self.pad_to)
        except TrainingFault as fault:
            return StepFailure(job_id, fault)
        # A bug or an exhausted device in one job's evaluation is that job's end only.
        except Exception as error:
            if is_device_lost(error):
                raise
            log.exception("the evaluation of %s failed", job_id)
            return StepFailure(job_id, SystemFault(f"The node failed on this job: {error}."))
        if found is not None:
            return EvaluationResult(job_id, found)
        self._evaluations[job_id] = run
        return None

    def _plan_shares(self) -> list[PackShare]:
        waiting = [
            job
            for job in self.jobs.values()
            if not job.done and job.job_id not in self._evaluations
        ]
        if self._suspects:
            waiting = [self.jobs[self._suspects[0]]]
        elif waiting and not self.model.is_packed:
            waiting = [min(waiting, key=lambda job: self._last_served[job.job_id])]
        takes = plan_pack(
            [
                PackRequest(
                    job.job_id,
                    tuple(job.tokens_of(example) for example in list_left(job)),
                    self._last_served[job.job_id],
                    job.micro_tokens,
                )
                for job in waiting
            ],
            token_budget=self.token_budget,
        )
        # in the order of arrival, which is that of the adapters
        return [take_share(job, takes[name]) for name, job in self.jobs.items() if name in takes]

    def _pack(self, shares: list[PackShare]) -> Pack:
        return build_pack(shares, device=self.model.device, pad_to=self.pad_to)

    def _forward_backward_together(self, shares: list[PackShare]) -> list[StepResult | StepFailure]:
        """The same with a gang: its members compute parts of the batches meanwhile."""
        gang = self.gang
        if gang is None or not gang.members or self._suspects or self._measure:
            return self._forward_backward(shares)
        own, theirs = divide_shares(
            shares, self.jobs, members=gang.members, token_budget=self.token_budget
        )
        gang.begin([[self._part(share) for share in of] for of in theirs])
        try:
            failed = self._forward_backward(own)
        finally:
            # Also after a failure: the next parts must not find these in their way.
            found = gang.collect()
        return failed or self._add_parts(theirs, found)

    def _part(self, share: PackShare) -> GangPart:
        [(_, values, _)] = self.model.tensors(share.job_id)
        weight = self.jobs[share.job_id].current_batch().weight
        return GangPart(share, values.float().cpu().numpy(), weight)

    def _add_parts(
        self, theirs: list[list[PackShare]], found: list[list[PartGradient]]
    ) -> list[StepResult | StepFailure]:
        """Add what members computed to the jobs' gradients, in the order of the batches."""
        for share, part in zip(chain(*theirs), chain(*found), strict=True):
            job = self.jobs[share.job_id]
            batch = job.current_batch()
            value = sum(part.per_row) / batch.weight
            failed = self._not_finite([job], [value])
            if failed:
                self._rewind([job.job_id])
                return failed
            [(_, _, grad)] = self.model.tensors(share.job_id)
            grad += torch.from_numpy(part.gradient_VD).to(grad)
            rows = batch.rows[batch.taken : batch.taken + len(share.examples)].tolist()
            note_losses([job], [share], [rows], [value], part.per_row)
        return []

    def _forward_backward(self, shares: list[PackShare]) -> list[StepResult | StepFailure]:
        """Add the pack's gradients; nothing is added when a job's loss is not finite."""
        jobs = [self.jobs[share.job_id] for share in shares]
        batches = [job.current_batch() for job in jobs]
        rows = [
            batch.rows[batch.taken : batch.taken + len(share.examples)].tolist()
            for batch, share in zip(batches, shares, strict=True)
        ]
        for job, job_rows in zip(jobs, rows, strict=True):
            cache_reference_losses(self.model, job, job_rows, pad_to=self.pad_to)
        pack = self._pack(shares)
        self._note_pack(pack)
        form = "segments" if self._suspects else None
        with self.model.streaming(pack, form=form):
            if self._measure:
                with SavedBytes(self.model.model) as saved:
                    parts = compute_example_losses(self.model, pack, jobs, rows)
                self.saved_per_token = saved.total / pack.tokens
                self._measure = False
            else:
                parts = compute_example_losses(self.model, pack, jobs, rows)
            losses = torch.stack(
                [part.sum() / batch.weight for part, batch in zip(parts, batches, strict=True)]
            )
            # everything the loop reads of a pack, in one transfer
            values, per_row = losses.tolist(), torch.cat(parts).tolist()
            failed = self._not_finite(jobs, values)
            if failed:
                return failed
            losses.sum().backward()
        note_losses(jobs, shares, rows, values, per_row)
        return []

    def _note_pack(self, pack: Pack) -> None:
        self.last_pack = pack.tokens
        self.largest_pack = max(self.largest_pack, pack.tokens)

    def _not_finite(
        self, jobs: list[TrainingJob], values: list[float]
    ) -> list[StepResult | StepFailure]:
        return [
            fail_diverged(job, "loss")
            for job, value in zip(jobs, values, strict=True)
            if not math.isfinite(value)
        ]

    def _step(self, jobs: list[TrainingJob]) -> list[StepResult | StepFailure]:
        """Clip and step each job; whose gradient is not finite does not step."""
        tensors = [list(zip(*self.model.tensors(job.job_id), strict=True)) for job in jobs]
        norms = [
            clip_gradients(list(grads), job.spec.training.max_grad_norm)
            for job, (_, _, grads) in zip(jobs, tensors, strict=True)
        ]
        norm_values = torch.stack(norms).tolist() if norms else []
        if self.model.stream.form == "dense" and len(self.jobs) > 1:
            bad = [j.job_id for j, n in zip(jobs, norm_values, strict=True) if not math.isfinite(n)]
            if bad:
                # side by side, one job's NaN gradient may have reached all: alone,
                # and in the form that keeps rows apart, each shows whether it was its own
                self._rewind(list(self.jobs))
                self._suspects = bad
                return []
        results: list[StepResult | StepFailure] = []
        for job, (names, params, grads), norm in zip(jobs, tensors, norm_values, strict=True):
            if not math.isfinite(norm):
                results.append(fail_diverged(job, "gradient"))
                continue
            results.append(step_job(job, list(names), list(params), list(grads), norm=norm))
            self._cleared(job.job_id)
        return results

    def _rewind(self, job_ids: list[str]) -> None:
        """Begin the jobs' current batches again; their weights have not changed since."""
        for job_id in job_ids:
            self.jobs[job_id].batch = None
            for _, _, grad in self.model.tensors(job_id):
                grad.zero_()

    def _out_of_memory(self, shares: list[PackShare]) -> list[StepResult | StepFailure]:
        """Find out who is too big, alone; halve its micro-batch; leave the others as they are."""
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
            fault = refuse_row_too_big(job.tokens_of(share.examples[0]))
            return [StepFailure(job.job_id, fault)]
        job.micro_tokens = sum(job.tokens_of(e) for e in share.examples) // 2
        return []

    def _failed_pack(
        self, shares: list[PackShare], error: Exception
    ) -> list[StepResult | StepFailure]:
        """Run the pack's jobs alone, so that only one that fails alone ends."""
        # what it added before it failed may be in anyone's gradients
        self._rewind(list(self.jobs))
        if len(shares) > 1:
            log.warning("a pack failed, its jobs run alone now: %r", error)
            self._suspects = [share.job_id for share in shares]
            return []
        log.error("job %s failed in a step of its own", shares[0].job_id, exc_info=error)
        fault = SystemFault(f"The node's training step failed on this job: {error}.")
        return [StepFailure(shares[0].job_id, fault)]

    def _cleared(self, job_id: str) -> None:
        if job_id not in self._suspects:
            return
        self._suspects.remove(job_id)
        if not self._suspects and self._pack_was_too_big:
            # everyone fits alone, so it was the sum
            self._pack_was_too_big = False
            self.token_budget = max(1, self.token_budget // 2)
