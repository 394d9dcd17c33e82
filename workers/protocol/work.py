"""How much work a job is: counted from its rows' lengths, by the market and by the node alike.

A work unit is about one token of an ordinary row, forward and backward. A sequence of ``L`` tokens
after truncation, ``M`` of which the loss counts, is

    ceil((token * L + trained_token * M + token_pair * L * L + sequence) / 2**20)

units: the frozen layers, the output layer (whose logits exist for trained tokens only),
attention, and what a sequence costs beside its tokens. Where all sequences of a job are equally
long, theirs are the share ``even`` of that. An optimizer step adds ``step``, and an evaluation the
share ``forward`` of its rows' units. All counts are integers, so the two sides agree
to the last unit; the costs are a zone's (``WorkCosts``), and a node's speed is in units a second.

DPO passes the frozen base once over each row before the row is first trained or evaluated on. At
the end, a job writes on held-out prompts, without and with its adapter (``count_sample_units``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.protocol.job_spec import TrainingSpec, WorkCosts
from workers.protocol.reports import SAMPLES_MAX
from workers.protocol.row_order import shuffle_rows

Ints = NDArray[np.int64]

#: Parts of a work unit in which costs are given.
PARTS = 1 << 20
#: With these, a sequence of 2**20 tokens cannot overflow 64 bits.
_COST_MAX, _PAIR_COST_MAX = 1 << 36, 1 << 20
#: Counts up to here are exact as floats, which the auction reckons with.
UNITS_MAX = 1 << 53
#: Evaluations of a job that leaves their number to the market, the first and the last included.
EVALUATIONS_DEFAULT = 10
#: More often than this, evaluations are spread out.
EVALUATIONS_MAX = 100
#: Tokens of an answer that is written to show what was learnt, and most of the prompt before it.
WRITTEN_TOKENS_MAX, PROMPT_TOKENS_MAX = 48, 256
#: Tokens that count as the prompt of a row that has none, and at most half of the row.
OPENING_TOKENS = 16


class TooMuchWorkError(ValueError):
    """The job is more work than can be counted."""


@dataclass(frozen=True, slots=True, eq=False)
class RowLengths:
    """Lengths of rows after truncation; a preference row has two sequences, any other one."""

    #: ``int64[rows, sequences]``
    tokens: Ints
    #: Those among them that the loss counts, in the same shape.
    trained: Ints

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_preference(self) -> bool:
        return self.tokens.shape[1] == 2

    def lengthen(self, tokens: int) -> RowLengths:
        """Add tokens to each sequence that the loss does not count."""
        return RowLengths(self.tokens + tokens, self.trained)

    def select(self, rows: NDArray[np.bool_]) -> RowLengths:
        """The rows of a mask."""
        return RowLengths(self.tokens[rows], self.trained[rows])

    @staticmethod
    def of(rows: Sequence[Sequence[tuple[int, int]]]) -> RowLengths:
        """From ``(tokens, trained tokens)`` of each row's sequences."""
        table = np.asarray(rows, dtype=np.int64)
        if not len(table):
            table = np.zeros((0, 1, 2), dtype=np.int64)
        return RowLengths(table[:, :, 0], table[:, :, 1])


def check_work_costs(costs: WorkCosts) -> None:
    """Refuse costs that no model has, or that could overflow.

    Raises
    ------
    ValueError
    """
    linear = (costs.token, costs.trained_token, costs.sequence, costs.step)
    if (
        not all(0 <= cost <= _COST_MAX for cost in linear)
        or not 0 <= costs.token_pair <= _PAIR_COST_MAX
        or not all(0 <= share <= PARTS for share in (costs.forward, costs.even))
    ):
        raise ValueError(f"work costs out of range: {costs}")


def count_row_units(costs: WorkCosts, rows: RowLengths, *, even: bool) -> Ints:
    """Units of one pass over each row, forward and backward.

    Parameters
    ----------
    even : bool
        Whether all sequences of the job are equally long.

    Returns
    -------
    int64[rows]
        At least 1 for each sequence.
    """
    tokens = rows.tokens
    parts = (
        costs.token * tokens
        + costs.trained_token * rows.trained
        + costs.token_pair * tokens * tokens
        + costs.sequence
    )
    units = np.maximum(1, -(-parts // PARTS))
    if even:
        units = np.maximum(1, _take_share(costs.even, units))
    return units.sum(axis=1)


def count_forward_units(costs: WorkCosts, units: Ints) -> Ints:
    """Units of a pass without a backward one, from those of a whole pass."""
    return _take_share(costs.forward, units)


def count_sample_units(costs: WorkCosts, valid: RowLengths) -> int:
    """Units of what a finished job writes on its first held-out prompts.

    Each prompt is answered twice, without and with the adapter, one pass over all tokens so far for
    each token written. Counted are as many as the row's own answer has: how long the model's are,
    no one knows before. Prompts have the tokens that the loss does not count, within limits.
    """
    passes: list[list[tuple[int, int]]] = []
    lengths = zip(valid.tokens[:SAMPLES_MAX, 0], valid.trained[:SAMPLES_MAX, 0], strict=True)
    for tokens, trained in lengths:
        opening = min(OPENING_TOKENS, int(tokens) // 2)
        prompt = min(max(int(tokens - trained), opening, 1), PROMPT_TOKENS_MAX)
        passes += [[(prompt + n, 1)] for n in range(min(int(trained), WRITTEN_TOKENS_MAX))]
    units = count_row_units(costs, RowLengths.of(passes), even=False)
    return 2 * int(count_forward_units(costs, units).sum())


def _take_share(share: int, units: Ints) -> Ints:
    """A share of units in ``PARTS``, rounded up."""
    return -(-(units * share) // PARTS)


def find_evaluation_interval(*, total_steps: int, asked: int) -> int:
    """Steps between two evaluations of a job.

    ``asked`` is the job's setting: with 0 the market evaluates about ten times. Never
    more than ``EVALUATIONS_MAX`` times.
    """
    most = EVALUATIONS_MAX if asked else EVALUATIONS_DEFAULT
    return max(asked, math.ceil(total_steps / (most - 1)), 1)


class WorkPlan:
    """The work of a whole job, by optimizer step.

    Parameters
    ----------
    costs : WorkCosts
        Of the job's zone.
    training : TrainingSpec
    train, valid : RowLengths
        The rows that are trained on, at least one, and those held out.

    Raises
    ------
    TooMuchWorkError
        Beyond ``UNITS_MAX``.
    ValueError
        As ``check_work_costs``.
    """

    def __init__(
        self, costs: WorkCosts, training: TrainingSpec, *, train: RowLengths, valid: RowLengths
    ) -> None:
        check_work_costs(costs)
        self._seed, self._batch = training.seed, training.batch_size
        self._step_units = -(-costs.step // PARTS)
        even = len(np.unique(train.tokens)) == 1
        self._row_units = count_row_units(costs, train, even=even)
        #: Of the rows' first pass, which for preferences is preceded by the base model's.
        self._first_units = self._row_units
        valid_units = count_forward_units(costs, count_row_units(costs, valid, even=even))
        #: Units of one evaluation.
        self.evaluation_units = int(valid_units.sum())
        self._first_evaluation_units = self.evaluation_units
        #: Units of what is written once the job has ended.
        self.sample_units = count_sample_units(costs, valid)
        if train.is_preference and training.preference_loss == "dpo":
            self._first_units = self._row_units + count_forward_units(costs, self._row_units)
            self._first_evaluation_units *= 2
        self._epoch_units = int(self._row_units.sum())
        self._first_epoch_units = int(self._first_units.sum())
        self.steps_per_epoch = math.ceil(len(train) / training.batch_size)
        self.total_steps = self.steps_per_epoch * training.epochs
        self.evaluation_interval = find_evaluation_interval(
            total_steps=self.total_steps, asked=training.eval_every_steps
        )
        #: Epoch, and units up to the end of each of its steps.
        self._known_epoch: tuple[int, Ints] | None = None
        self.total_units = self.count_until(self.total_steps)
        if self.total_units >= UNITS_MAX:
            raise TooMuchWorkError(
                "The data set times the epochs is more work than can be counted. "
                "Ask for fewer epochs or shorter rows."
            )

    def count_until(self, step: int) -> int:
        """Units of the job up to and with a step and its evaluation; 0 at step 0.

        The evaluation before the first step counts with that step, the samples with the last.
        """
        if step <= 0:
            return 0
        step = min(step, self.total_steps)
        epochs, index = divmod(step, self.steps_per_epoch)
        units = step * self._step_units
        if epochs:
            units += self._first_epoch_units + (epochs - 1) * self._epoch_units
        if index:
            units += int(self._units_in_epoch(epochs)[index - 1])
        evaluations = self.count_evaluations(step)
        units += self._first_evaluation_units + (evaluations - 1) * self.evaluation_units
        return units + (self.sample_units if step == self.total_steps else 0)

    def count_ended_at(self, step: int) -> int:
        """Units of a job that ends with a step, early or not.

        It is evaluated then in any case, and its samples are written.
        """
        if not 0 < step < self.total_steps:
            return self.count_until(step)
        evaluation = 0 if self.is_evaluated_at(step) else self.evaluation_units
        return self.count_until(step) + evaluation + self.sample_units

    def count_between(self, first_step: int, last_step: int) -> int:
        """Units of the steps after ``first_step`` up to ``last_step``."""
        return max(0, self.count_until(last_step) - self.count_until(first_step))

    def is_evaluated_at(self, step: int) -> bool:
        """Whether the held-out rows are evaluated after a step; step 0 is before the first."""
        return step % self.evaluation_interval == 0 or step == self.total_steps

    def count_evaluations(self, step: int) -> int:
        """Evaluations up to and with a step, the one before the first step included."""
        last = step == self.total_steps and step % self.evaluation_interval != 0
        return 1 + step // self.evaluation_interval + last

    def _units_in_epoch(self, epoch: int) -> Ints:
        """Units up to the end of each step of an epoch, without ``step``."""
        known = self._known_epoch
        if known is None or known[0] != epoch:
            units = self._row_units if epoch else self._first_units
            order = shuffle_rows(len(units), seed=self._seed, epoch=epoch)
            sums = np.cumsum(units[order])
            ends = np.arange(1, self.steps_per_epoch + 1) * self._batch
            # In one assignment: threads share a plan.
            known = self._known_epoch = (epoch, sums[np.minimum(ends, len(units)) - 1])
        return known[1]
