"""The loop: every job's next tokens in a pack, one pass, one step each.

``round`` reads as the plot: plan shares -> pack -> forward and backward -> step the
jobs whose batch is complete. A job's numbers depend on its own rows only; which
neighbours it has decides nothing but how its batch is cut into packs.

Where a base lies on several devices, packs of different jobs are in flight at a time, and a round
ends when one of them is through. On one device a single pack is.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain

import torch

from workers.protocol.part_memory import count_head_blocks
from workers.training.evaluation import EvaluationRun
from workers.training.faults import (
    SystemFault,
    TrainingFault,
    is_device_lost,
    is_out_of_memory,
    refuse_row_too_big,
)
from workers.training.flight import Flight, begin_flight, list_company
from workers.training.gang import Gang, GangLost, GangPart, PartGradient, divide_shares
from workers.training.job import TrainingJob
from workers.training.job_step import fail_diverged, step_job
from workers.training.optimizer import clip_gradients, make_moment
from workers.training.pack_plan import PackRequest, choose_turn, plan_pack
from workers.training.pack_shares import count_taken, is_batch_complete, list_left, take_share
from workers.training.packed_model import PackedModel
from workers.training.packing import PackShare
from workers.training.part_clock import PartClock
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
        #: Packs under way through the parts of the model, and when each part does what.
        self._flights: list[Flight] = []
        self.clock = PartClock(
            [len(part) for part in model.parts], head=count_head_blocks(model.shape)
        )
        #: When the last pack was through, by that clock.
        self._landed_at = 0.0
        #: What came of packs that landed between two rounds.
        self._results: list[StepResult | StepFailure] = []
        #: How the device was lost meanwhile; the next round raises it.
        self._lost: Exception | None = None

    def add(self, job: TrainingJob, values: dict[str, torch.Tensor]) -> None:
        """Let a job in. ``values`` are its adapter's tensors by name.

        Raises
        ------
        SystemFault
            There is no memory for it; all is as before.
        """
        self.land()
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
        self.land()
        self._results = [result for result in self._results if result.job_id != job_id]
        del self._last_served[job_id]
        self._evaluations.pop(job_id, None)
        if job_id in self._suspects:
            self._suspects.remove(job_id)
        self._pack_was_too_big = self._pack_was_too_big and bool(self._suspects)
        job = self.jobs.pop(job_id)
        # the last of all: a lost device does not do it
        self.model.detach(job_id)
        return job

    def round(self) -> list[StepResult | StepFailure]:
        """Go on until a pack is through, and make the steps that complete with it."""
        if self._lost is not None:
            lost, self._lost = self._lost, None
            raise lost
        return self.take_results() or self._advance()

    def land(self) -> None:
        """Have all packs in flight get through; the next round tells what came of them.

        What changes the stacks waits for it: a pass adds its gradients where they were.
        """
        try:
            while self._flights:
                self._results += self._advance(begins=False)
        # jobs are taken out of a device that is lost as well
        except Exception as error:
            self._flights.clear()
            self._lost = error

    def take_results(self) -> list[StepResult | StepFailure]:
        """What came of packs that landed between two rounds."""
        found, self._results = self._results, []
        return found

    def _advance(self, *, begins: bool = True) -> list[StepResult | StepFailure]:
        shares: list[PackShare] = []
        try:
            while True:
                while begins and len(self._flights) < self._most_flights:
                    shares = self._plan_shares()
                    if not shares:
                        break
                    self._begin(shares)
                if not self._flights:
                    return []
                flight = self.clock.choose(self._flights)
                shares = flight.shares
                self.clock.note(flight)
                flight.way.run_next()
                if flight.way.is_through:
                    break
            self._landed_at = flight.at
            failed = self._note(flight)
            if failed:
                return failed
            self._flights.remove(flight)
        except GangLost as lost:
            log.warning("a device of the gang is lost, the others go on: %s", lost)
            self._rewind([share.job_id for share in shares])
            return []
        except Exception as error:
            if is_out_of_memory(error):
                return self._out_of_memory(shares)
            if is_device_lost(error):
                self._flights.clear()
                raise
            return self._failed_pack(shares, error)
        flying = {share.job_id for other in self._flights for share in other.shares}
        done = [self.jobs[share.job_id] for share in shares if share.job_id not in flying]
        return self._step([job for job in done if is_batch_complete(job)])

    @property
    def _most_flights(self) -> int:
        """Packs in flight; a suspect is alone."""
        return 1 if self._suspects else self.clock.window

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
                self._flights.clear()
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
        requests = [
            PackRequest(
                job.job_id,
                tuple(job.tokens_of(example) for example in list_left(job)),
                self._last_served[job.job_id],
                job.micro_tokens,
                begun_tokens=count_taken(job),
            )
            for job in waiting
        ]
        turn, budget = choose_turn(
            requests, parts=len(self.model.parts), token_budget=self.token_budget
        )
        takes = plan_pack(turn, token_budget=budget)
        # in the order of arrival, which is that of the adapters
        return [take_share(job, takes[name]) for name, job in self.jobs.items() if name in takes]

    def _begin(self, shares: list[PackShare]) -> None:
        """Send a pack on its way; a gang's members compute parts of its batches meanwhile."""
        self._round += 1
        for share in shares:
            self._last_served[share.job_id] = self._round
        gang, theirs = self.gang, list[list[PackShare]]()
        if gang is not None and gang.members and not self._suspects and not self._measure:
            shares, theirs = divide_shares(
                shares, self.jobs, members=gang.members, token_budget=self.token_budget
            )
        flight = begin_flight(
            self.model,
            [(self.jobs[share.job_id], share) for share in shares],
            pad_to=self.pad_to,
            form="segments" if self._suspects else None,
            measures=self._measure,
        )
        self.last_pack = flight.tokens
        self.largest_pack = max(self.largest_pack, flight.tokens)
        flight.at = self._landed_at
        self._flights.append(flight)
        if gang is not None and theirs:
            gang.begin([[self._part(share) for share in of] for of in theirs])
            flight.theirs = theirs
        for share in chain(shares, *theirs):
            self.jobs[share.job_id].current_batch().taken += len(share.examples)

    def _part(self, share: PackShare) -> GangPart:
        [(_, values, _)] = self.model.tensors(share.job_id)
        weight = self.jobs[share.job_id].current_batch().weight
        return GangPart(share, values.float().cpu().numpy(), weight)

    def _note(self, flight: Flight) -> list[StepResult | StepFailure]:
        """Count what a pack that is through has added to the jobs' gradients.

        Where a job's loss is not finite, nothing of what is under way counts.
        """
        if flight.saved is not None:
            self.saved_per_token = flight.saved.total / flight.tokens
            self._measure = False
        found = list(flight.read())
        grads: list[PartGradient] = []
        if self.gang is not None and flight.theirs:
            theirs, flight.theirs = flight.theirs, []
            grads = list(chain(*self.gang.collect()))
            for share, part in zip(chain(*theirs), grads, strict=True):
                weight = self.jobs[share.job_id].current_batch().weight
                found.append((share, sum(part.per_row) / weight, part.per_row))
        bad = dict.fromkeys(share.job_id for share, loss, _ in found if not math.isfinite(loss))
        if bad:
            self._rewind(self.jobs)
            return [fail_diverged(self.jobs[job_id], "loss") for job_id in bad]
        for (share, _, _), part in zip(found[len(flight.shares) :], grads, strict=True):
            [(_, _, grad)] = self.model.tensors(share.job_id)
            grad += torch.from_numpy(part.gradient_VD).to(grad)
        for share, loss, losses in found:
            self.jobs[share.job_id].note(share, losses=losses, loss=loss)
        return []

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
                self._rewind(self.jobs)
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

    def _rewind(self, job_ids: Iterable[str]) -> None:
        """Begin the jobs' current batches again; their weights have not changed since.

        Also those of packs in flight, which are lost.
        """
        flights, self._flights = self._flights, []
        if self.gang is not None and any(flight.theirs for flight in flights):
            # the next parts must not find these in their way
            with suppress(GangLost):
                self.gang.collect()
        lost = (share.job_id for flight in flights for share in flight.shares)
        for job_id in {*job_ids, *lost}:
            self.jobs[job_id].batch = None
            for _, _, grad in self.model.tensors(job_id):
                grad.zero_()

    def _out_of_memory(self, shares: list[PackShare]) -> list[StepResult | StepFailure]:
        """Find out who is too big, alone; halve its micro-batch; leave the others as they are."""
        company = list_company(shares, self._flights)
        self._rewind([share.job_id for share in shares])
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()
        if company:
            self._suspects = company
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
        company = list_company(shares, self._flights)
        # what it added before it failed may be in anyone's gradients
        self._rewind(self.jobs)
        if company:
            log.warning("a pack failed, its jobs run alone now: %r", error)
            self._suspects = company
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
