"""Where a soft prompt that looks up its start begins: at the best of the known prompts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from workers.protocol.adapter_names import PROMPT
from workers.protocol.job_spec import PromptLookup
from workers.protocol.reports import LookupFigures
from workers.runtime.running_job import RunningJob
from workers.training.prompt_lookup import LookupRun, read_candidates


def look_up_start(
    running: RunningJob,
    values: dict[str, torch.Tensor],
    lookup: PromptLookup,
    prompts_path: Path,
    *,
    call: Callable[[Callable[[], LookupFigures | None]], LookupFigures | None],
) -> dict[str, torch.Tensor]:
    """The values a soft prompt starts from; others train between the lookup's packs.

    Parameters
    ----------
    values : dict of str to torch.Tensor
        The job's own initial values by name.
    call : callable
        Runs one pack of the lookup between two training steps.
    """
    run = LookupRun(
        running.job,
        candidates=read_candidates(prompts_path),
        own=values[PROMPT],
        token_budget=running.resident.trainer.token_budget,
        budget_s=lookup.budget_s,
    )
    model = running.resident.model
    figures = None
    while figures is None:
        figures = call(lambda: run.score_pack(model))
    running.lookup = figures
    running.log.append(
        f"Lookup: {figures.candidates} prompts compared in {figures.seconds:.2f} s; "
        + (
            f"starts at a loss of {figures.score:.3f} instead of {figures.own_score:.3f}."
            if figures.prompt_id
            else "the job's own initial prompt is best."
        )
    )
    return values | {PROMPT: run.get_prompt(figures)}
