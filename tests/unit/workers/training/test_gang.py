"""A gang's members compute parts of a soft prompt's batches; the prompt is that of one device."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch

from tests.unit.workers.training_builders import (
    admit,
    random_examples,
    run_steps,
    tiny_model,
    trainer,
    training_job,
)
from workers.protocol.job_spec import AdapterKind
from workers.training.gang import GangLost, GangPart, PartGradient, compute_part, divide_shares
from workers.training.packed_model import PackedModel

SOFT = {"kind": AdapterKind.SOFT_PROMPT, "virtual_tokens": 4}


class GangOfModels:
    """Members in this process, each with a base of its own; one may be lost at a step."""

    def __init__(self, model, members, *, lost_at=None):
        self._models = [PackedModel(copy.deepcopy(model)) for _ in range(members)]
        self._found: list[list[PartGradient]] = []
        self.calls, self.lost_at = 0, lost_at
        self.rows = 0

    @property
    def members(self):
        return len(self._models)

    def begin(self, parts: Sequence[Sequence[GangPart]]) -> None:
        self.calls += 1
        self.rows += sum(len(part.share.examples) for of in parts for part in of)
        self._found = [
            [compute_part(model, part) for part in of]
            for model, of in zip(self._models, parts, strict=True)
        ]

    def collect(self):
        if self.calls == self.lost_at:
            self._models = []
            raise GangLost("killed")
        return self._found

    def close(self):
        self._models = []


def tune(*, members=0, lost_at=None, kind=SOFT, token_budget=4096):
    """Losses and tensors after six steps of a soft prompt, with a LoRA beside it."""
    model = tiny_model()
    gang = GangOfModels(model, members, lost_at=lost_at) if members else None
    fused = trainer(model, token_budget=token_budget)
    fused.gang = gang
    examples = random_examples(32, seed=3)
    training = {"batch_size": 8, "learning_rate": 1e-2, "epochs": 4}
    admit(fused, training_job("prompt", examples, adapter=kind, training=training))
    admit(fused, training_job("beside", random_examples(16, seed=5), training={"batch_size": 4}))
    losses = run_steps(fused, 6)["prompt"]
    [(_, values, _)] = fused.model.tensors("prompt")
    return losses, values.clone(), gang, fused


@pytest.mark.parametrize("members", [1, 3])
def test_a_gang_tunes_the_prompt_that_one_device_tunes(members):
    alone_losses, alone, _, _ = tune()
    losses, values, gang, _ = tune(members=members)
    assert losses == pytest.approx(alone_losses, rel=1e-5)
    torch.testing.assert_close(values, alone, rtol=1e-4, atol=1e-5)
    # It did a good part of six batches of eight rows.
    assert gang is not None
    assert gang.rows >= 6 * 8 * members / (members + 1) - 12


def test_a_small_budget_cuts_the_batches_otherwise_and_changes_nothing():
    # The job beside it makes its steps at other moments, so the prompts are compared by loss.
    losses, _, gang, _ = tune(members=2, token_budget=64)
    assert losses == pytest.approx(tune()[0], rel=1e-5)
    assert gang is not None
    assert gang.rows > 0


def test_a_lost_member_costs_a_batch_again_and_no_step():
    alone_losses, alone, _, _ = tune()
    losses, values, gang, fused = tune(members=1, lost_at=3)
    assert gang is not None
    assert gang.members == 0
    assert losses == pytest.approx(alone_losses, rel=1e-5)
    torch.testing.assert_close(values, alone, rtol=1e-4, atol=1e-5)
    assert fused.jobs["prompt"].progress.step >= 6


def test_a_part_leaves_the_members_model_as_it_was():
    model = PackedModel(tiny_model())
    job = training_job("prompt", random_examples(4, seed=1), adapter=SOFT)
    before = {name: value.clone() for name, value in model.model.state_dict().items()}
    fused = trainer(tiny_model())
    admit(fused, job)
    [share] = fused._plan_shares()
    [(_, values, _)] = fused.model.tensors("prompt")
    part = GangPart(share, values.numpy(), job.current_batch().weight)
    first, again = compute_part(model, part), compute_part(model, part)
    assert (first.gradient_VD == again.gradient_VD).all()
    assert abs(first.gradient_VD).max() > 0
    assert model.trained == set()
    after = model.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("members", [1, 2, 5, 40])
def test_parts_follow_each_other_and_none_is_above_the_budget(members):
    job = training_job(
        "prompt", random_examples(20, seed=2), adapter=SOFT, training={"batch_size": 16}
    )
    fused = trainer(tiny_model(), token_budget=60)
    admit(fused, job)
    [share] = fused._plan_shares()
    own, theirs = divide_shares([share], fused.jobs, members=members, token_budget=60)
    parts = [*own, *(part for of in theirs for part in of)]
    rows = [(part.first_row, part.first_row + len(part.examples)) for part in parts]
    assert rows[0][0] == 0
    assert all(end == start for (_, end), (start, _) in pairwise(rows))
    assert all(sum(job.tokens_of(e) for e in part.examples) <= 60 for part in parts)
    batch = [job.data.train[row] for row in job.current_batch().rows]
    assert [e.line for part in parts for e in part.examples] == [e.line for e in batch][
        : rows[-1][1]
    ]


def test_what_is_no_soft_prompt_on_plain_rows_is_not_divided():
    fused = trainer(tiny_model())
    admit(fused, training_job("lora", random_examples(8, seed=2)))
    shares = fused._plan_shares()
    own, theirs = divide_shares(shares, fused.jobs, members=2, token_budget=4096)
    assert own == shares
    assert theirs == [[], []]
