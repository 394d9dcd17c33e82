"""A pack under way: whose rows it has, how far it is, and what it has found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from workers.training.job import TrainingJob
from workers.training.multi_lora import Form
from workers.training.objective import cache_reference_losses, compute_example_losses
from workers.training.packed_model import PackedModel
from workers.training.packing import PackShare, build_pack
from workers.training.part_pass import PartPass
from workers.training.saved_bytes import SavedBytes


@dataclass(slots=True, eq=False)
class Flight:
    """Nothing is read off the device before the pack is through."""

    shares: list[PackShare]
    tokens: int
    way: PartPass
    #: Losses of the shares' examples, and the losses of the shares, once they are computed.
    losses: list[torch.Tensor]
    #: Counts what autograd keeps, where that is measured.
    saved: SavedBytes | None
    #: By the clock of ``part_clock``.
    at: float = 0.0
    #: What members of a gang compute of the same batches.
    theirs: list[list[PackShare]] = field(default_factory=list[list[PackShare]])

    def read(self) -> Iterator[tuple[PackShare, float, list[float]]]:
        """Each share's loss, and those of its examples."""
        *parts, shares = self.losses
        per_row = torch.cat(parts).tolist()
        at = 0
        for share, loss in zip(self.shares, shares.tolist(), strict=True):
            end = at + len(share.examples)
            yield share, loss, per_row[at:end]
            at = end


def begin_flight(
    model: PackedModel,
    shares: Sequence[tuple[TrainingJob, PackShare]],
    *,
    pad_to: int,
    form: Form | None,
    measures: bool,
) -> Flight:
    """Lay out a pack of the jobs' current batches; what the bare base loses is computed at once."""
    jobs = [job for job, _ in shares]
    rows = [job.find_rows(share) for job, share in shares]
    weights = [job.current_batch().weight for job in jobs]
    for job, job_rows in zip(jobs, rows, strict=True):
        cache_reference_losses(model, job, job_rows, pad_to=pad_to)
    pack = build_pack([share for _, share in shares], device=model.device, pad_to=pad_to)
    losses: list[torch.Tensor] = []

    def compute_loss() -> torch.Tensor:
        there = model.stream.move(pack, model.ending_device)
        parts = compute_example_losses(model, there, jobs, rows)
        of_shares = torch.stack(
            [part.sum() / weight for part, weight in zip(parts, weights, strict=True)]
        )
        losses.extend(part.detach() for part in (*parts, of_shares))
        return of_shares.sum()

    saved = SavedBytes(model.model) if measures else None
    way = PartPass(model, pack, form=form, compute_loss=compute_loss, watching=saved)
    return Flight([share for _, share in shares], pack.tokens, way, losses, saved)


def list_company(shares: list[PackShare], flights: Sequence[Flight]) -> list[str]:
    """The jobs of a pack that failed and of those in flight with it; none if it was alone.

    All of them begin again, so all take turns until each has stepped.
    """
    others = [flight.shares for flight in flights if flight.shares is not shares]
    if len(shares) == 1 and not others:
        return []
    return list(dict.fromkeys(share.job_id for of in (shares, *others) for share in of))
