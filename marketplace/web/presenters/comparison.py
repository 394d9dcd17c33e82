"""Jobs beside each other: what they were asked to do, what they cost and how they learnt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marketplace.auction.models import Bid
from marketplace.jobs.models import Job
from marketplace.jobs.selectors import load_metric_series
from marketplace.web.presenters.progress import sample_losses
from workers.protocol.wire import to_json

#: Classes of the lines' colours, in the order in which jobs were chosen.
TONES = ("c1", "c2", "c3", "c4", "c5", "c6")
#: Jobs that one page compares: as many lines as eyes tell apart.
COMPARED_MAX = len(TONES)


@dataclass(frozen=True)
class Setting:
    """A row of the table of settings."""

    name: str
    #: Per job; ``None``: the job has no such setting.
    values: list[str | None]

    @property
    def differs(self) -> bool:
        return len(set(self.values)) > 1


def compare(jobs: Sequence[Job], bids: Mapping[str, Bid]) -> dict[str, Any]:
    """What the page of compared jobs shows; ``bids`` by id."""
    columns: list[dict[str, Any]] = []
    lines = []
    for job, tone in zip(jobs, TONES, strict=False):
        series = load_metric_series(job, is_shown=True)
        columns.append({"job": job, "bid": bids[job.bid_id], "tone": tone})
        lines.append(
            {
                "name": job.name,
                "tone": tone,
                "train": sample_losses(series),
                "valid": [(of.step, of.valid_loss) for of in series if of.valid_loss is not None],
            }
        )
    settings = _list_settings(jobs)
    is_same_test = _is_same_test(jobs)
    return {
        "columns": columns,
        "best": _find_best(jobs) if is_same_test else None,
        "is_same_test": is_same_test,
        "differing": [setting for setting in settings if setting.differs],
        "same": [setting for setting in settings if not setting.differs],
        "lines": lines,
    }


def _is_same_test(jobs: Sequence[Job]) -> bool:
    """Whether validation losses compare: one base model, one loss, the same held-out rows."""
    return len({_describe_test(job) for job in jobs}) == 1


def _describe_test(job: Job) -> tuple[object, ...]:
    terms, training = job.terms, job.terms.training
    held_out = (
        terms.validation
        or (job.dataset.sha256, terms.preparation, training.validation_share, training.seed),
    )
    loss = (training.sequence_length, training.preference_loss, training.dpo_beta)
    return (job.zone.base_model_name, *held_out, *loss)


def _find_best(jobs: Sequence[Job]) -> str | None:
    """The job of the lowest last validation loss, where one alone has it."""
    losses = sorted((job.valid_loss, job.pk) for job in jobs if job.valid_loss is not None)
    if len(losses) < 2 or losses[0][0] == losses[1][0]:
        return None
    return losses[0][1]


def _list_settings(jobs: Sequence[Job]) -> list[Setting]:
    told = [dict(_flatten(_describe(job))) for job in jobs]
    names = dict.fromkeys(name for of in told for name in of)
    return [Setting(name, [of.get(name) for of in told]) for name in names]


def _describe(job: Job) -> dict[str, Any]:
    terms = job.terms
    return {
        "base model": job.zone.base_model_name,
        "data": job.dataset.name,
        "start": "an earlier adapter" if terms.start else "fresh weights",
        "prepared by a vendor": terms.preparation is not None,
        "adapter": to_json(terms.adapter),
        "training": to_json(terms.training),
    }


def _flatten(value: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for name, of in value.items():
        if isinstance(of, Mapping):
            yield from _flatten(of, f"{before}{name}.")
        elif isinstance(of, bool):
            yield f"{before}{name}", "yes" if of else "no"
        elif isinstance(of, list):
            yield f"{before}{name}", ", ".join(map(str, of))
        elif of is not None:
            yield f"{before}{name}", str(of)
