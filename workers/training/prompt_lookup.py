"""The start of a soft prompt: the candidate with the least loss on a few rows of its job.

Successive halving: all candidates are scored on one row, the best half of them, 60 at most, on
four, the best 15 on sixteen. The job's own initial prompt is one of them and survives every stage,
so that the gain over it is known.

References
----------
Jamieson and Talwalkar (2016), Non-stochastic best arm identification and hyperparameter
optimization; Gao et al., PromptTuner, section 4.3.2, equation 1.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import nn

from workers.protocol.adapter_check import PROMPT_PEAK_MAX
from workers.protocol.adapter_names import PROMPT
from workers.protocol.reports import LookupFigures
from workers.training.job import TrainingJob
from workers.training.objective import compute_sequence_nll
from workers.training.packed_model import PackedModel
from workers.training.packing import Example, PackShare, build_pack

#: Rows that each stage has scored at its end, and how many candidates survive it at most.
STAGE_ROWS = (1, 4, 16)
SURVIVORS = (60, 15, 1)
#: Tokens of a pack on a CPU, at most: what a layer works on stays in its cache.
CPU_PACK_TOKENS = 1024
#: Name of the job's own initial prompt among the candidates; no prompt of a bank has it.
OWN = ""


class LookupRun:
    """A lookup under way, one pack at a time, so that neighbours train in between.

    Parameters
    ----------
    candidates : mapping of str to float32[V, D]
        Known prompts by id; those of another size than the job's, and those that are not sound,
        are left out.
    own : float32[V, D]
        The job's own initial prompt.
    token_budget : int
        Tokens of a pack.
    budget_s : float
        When they are over, the best so far is taken.
    clock : callable
        Seconds, rising.
    """

    def __init__(
        self,
        job: TrainingJob,
        *,
        candidates: Mapping[str, torch.Tensor],
        own: torch.Tensor,
        token_budget: int,
        budget_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        fitting = {
            name: values
            for name, values in candidates.items()
            if name != OWN and values.shape == own.shape and is_sound_prompt(values)
        }
        self._prompts = {OWN: own, **fitting}
        self._rows = _choose_rows(job)
        self._token_budget = (
            min(token_budget, CPU_PACK_TOKENS) if own.device.type == "cpu" else token_budget
        )
        self._clock = clock
        self._began_at = clock()
        self._ends_at = self._began_at + budget_s
        self._alive = list(self._prompts)
        #: Losses of each candidate by row of ``_rows``.
        self._losses: dict[str, dict[int, float]] = {name: {} for name in self._prompts}
        self._stage = 0
        self._todo = self._list_stage()

    def score_pack(self, model: PackedModel) -> LookupFigures | None:
        """Score as many candidates as a pack holds; what was found once all is scored."""
        if self._todo and self._clock() < self._ends_at:
            self._score(model, self._take_pack())
            if self._todo:
                return None
        if not self._todo:
            self._end_stage()
            if self._todo:
                return None
        return self._build()

    def get_prompt(self, figures: LookupFigures) -> torch.Tensor:
        """The values of the prompt found."""
        return self._prompts[figures.prompt_id]

    def _list_stage(self) -> list[tuple[str, int]]:
        """Candidates and rows that the present stage has to score."""
        begin = STAGE_ROWS[self._stage - 1] if self._stage else 0
        rows = range(begin, min(STAGE_ROWS[self._stage], len(self._rows)))
        return [(name, row) for name in self._alive for row in rows]

    def _end_stage(self) -> None:
        while not self._todo and self._stage < len(STAGE_ROWS):
            ranked = sorted(self._alive, key=self._mean)
            best = set(ranked[: _count_survivors(self._stage, len(ranked))]) | {OWN}
            # In the first order, so that ties fall to the first: the job's own.
            self._alive = [name for name in self._alive if name in best]
            self._stage += 1
            if self._stage < len(STAGE_ROWS):
                self._todo = self._list_stage()

    def _take_pack(self) -> list[tuple[str, int]]:
        virtual = len(self._prompts[OWN])
        used, taken = 0, 0
        for _, row in self._todo:
            used += virtual + len(self._rows[row].sequences[0])
            if taken and used > self._token_budget:
                break
            taken += 1
        pack, self._todo = self._todo[:taken], self._todo[taken:]
        return pack

    @torch.no_grad()
    def _score(self, model: PackedModel, scored: list[tuple[str, int]]) -> None:
        rows_of: dict[str, list[int]] = {}
        for name, row in scored:
            rows_of.setdefault(name, []).append(row)
        virtual = len(self._prompts[OWN])
        shares = [
            PackShare(
                f"candidate {name}",
                tuple(self._rows[row] for row in rows),
                0,
                0,
                virtual_tokens=virtual,
            )
            for name, rows in rows_of.items()
        ]
        pack = build_pack(shares, device=model.device)
        lent = {f"candidate {name}": self._prompts[name] for name in rows_of}
        with model.lend_prompts(lent), model.streaming(pack), _quickly(model.device):
            losses = compute_sequence_nll(model, pack, model.hidden(pack)).tolist()
        pairs = [(name, row) for name, rows in rows_of.items() for row in rows]
        for (name, row), loss in zip(pairs, losses, strict=False):
            self._losses[name][row] = loss / self._rows[row].trained_tokens

    def _mean(self, name: str) -> float:
        """Mean loss on the rows scored; a candidate without a number comes last."""
        losses = self._losses[name].values()
        mean = sum(losses) / len(losses) if losses else math.inf
        return mean if math.isfinite(mean) else math.inf

    def _build(self) -> LookupFigures:
        # Means of unlike numbers of rows do not compare: only who was scored on most.
        most = max(len(losses) for losses in self._losses.values())
        finalists = [name for name in self._prompts if len(self._losses[name]) == most]
        found = min(finalists, key=self._mean)
        return LookupFigures(
            prompt_id=found,
            score=_number(self._mean(found)),
            own_score=_number(self._mean(OWN)),
            candidates=len(self._prompts),
            losses=sum(len(losses) for losses in self._losses.values()),
            seconds=self._clock() - self._began_at,
        )


def _quickly(device: torch.device) -> torch.autocast:
    """Halved precision on CPUs that multiply it in tiles, which is twice as fast: scores that
    differ by a thousandth choose the same start, or one as good."""
    is_tiled = device.type == "cpu" and bool(torch.cpu.get_capabilities().get("amx_bf16"))
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=is_tiled)


def _count_survivors(stage: int, alive: int) -> int:
    """As ``scheduler.experiments.prompts.lookup.HalvingRules`` counts them."""
    if stage == len(SURVIVORS) - 1:
        return SURVIVORS[stage]
    return min(SURVIVORS[stage], max(SURVIVORS[-2], -(-alive // 2)))


def is_sound_prompt(values: torch.Tensor) -> bool:
    """Whether all values are numbers that training can have left there."""
    # A comparison with NaN is false.
    return bool((values.abs() <= PROMPT_PEAK_MAX).all())


def read_candidates(path: Path) -> dict[str, torch.Tensor]:
    """Prompts of a file by id; empty where it cannot be read: a job can start without."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError):
        return {}


#: A virtual token as much like a token of the vocabulary counts as that token.
COPIED_COSINE = 0.9


def count_copied_tokens(model: PackedModel, job: TrainingJob, tokenizer: Any) -> int:
    """The longest run of a job's virtual tokens that spells out words of its owner.

    Those are the rows and the initial text.

    A prompt that was made from its owner's words, or learnt them by heart, gives them away.

    Parameters
    ----------
    job : TrainingJob
        With a soft prompt, on the model.
    tokenizer
        The base model's.

    Returns
    -------
    int
        In tokens.
    """
    [values] = [values for name, values, _ in model.tensors(job.job_id) if name == PROMPT]
    spelt = find_nearest_tokens(model, values, least_cosine=COPIED_COSINE)
    rows = [
        sequence.tokens
        for example in (*job.data.train, *job.data.valid)
        for sequence in example.sequences
    ]
    text = tokenizer(job.spec.adapter.init_text, add_special_tokens=False).input_ids
    return find_longest_run(spelt, [*rows, np.asarray(text, dtype=np.int64)])


def find_longest_run(spelt: list[int], rows: list[np.ndarray]) -> int:
    """Length of the longest run of ``spelt`` that is part of a row; -1 is part of none."""
    starts: dict[int, list[int]] = {}
    for place, token in enumerate(spelt):
        if token >= 0:
            starts.setdefault(token, []).append(place)
    if not starts:
        return 0
    known = np.asarray(list(starts))
    best = 0
    for row in rows:
        for at in np.flatnonzero(np.isin(row, known)).tolist():
            for place in starts[int(row[at])]:
                length = 1
                while (
                    place + length < len(spelt)
                    and at + length < len(row)
                    and spelt[place + length] == row[at + length]
                ):
                    length += 1
                best = max(best, length)
    return best


def _choose_rows(job: TrainingJob) -> tuple[Example, ...]:
    """Training rows that scores are means of, spread over the data; rows of one sequence."""
    rows = [example for example in job.data.train if example.trained_tokens]
    most = STAGE_ROWS[-1]
    picked = np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(int)
    return tuple(
        Example(rows[i].line, rows[i].sequences[:1])
        for i in picked.tolist()
        if rows[i].sequences[0].weights.any()
    )


def _number(value: float) -> float:
    """A loss that every store takes."""
    return value if math.isfinite(value) else 1e9


def find_nearest_tokens(
    model: PackedModel, prompt_VD: torch.Tensor, *, least_cosine: float
) -> list[int]:
    """The token whose embedding each virtual token is, or -1 where it is none's.

    Parameters
    ----------
    least_cosine : float
        A virtual token that is less like every token is no token.
    """
    embeddings = model.model.get_input_embeddings()
    assert isinstance(embeddings, nn.Embedding)
    table_KD = embeddings.weight.detach().float()
    prompt_VD = prompt_VD.to(table_KD.device, torch.float32)
    cosine_VK = F.normalize(prompt_VD, dim=1) @ F.normalize(table_KD, dim=1).T
    best_V, token_V = cosine_VK.max(dim=1)
    return torch.where(best_V >= least_cosine, token_V, -1).tolist()
