"""One AdamW over the stacked adapters, each with its own rate, clipping and step count."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch.optim.adamw import adamw

BETAS = (0.9, 0.999)
EPSILON = 1e-8


def compute_learning_rate(
    *, schedule: str, base_rate: float, step: int, total: int, warmup: int
) -> float:
    """Learning rate of a step, counted from 0.

    The warm-up rises from ``1 / warmup`` to 1 (never 0, which would waste a step of a
    short job); then ``linear`` falls to 0, ``cosine`` follows half a cosine to 0 and
    ``constant`` stays.
    """
    if step < warmup:
        return base_rate * (step + 1) / warmup
    share = (step - warmup) / max(1, total - warmup)
    if schedule == "constant":
        return base_rate
    if schedule == "linear":
        return base_rate * max(0.0, 1.0 - share)
    if schedule == "cosine":
        return base_rate * 0.5 * (1.0 + math.cos(math.pi * min(1.0, share)))
    raise ValueError(f"schedule must be linear, cosine or constant, not {schedule!r}")


def make_moment(parameter: torch.Tensor) -> torch.Tensor:
    """One of the two moments, before the first step."""
    return torch.zeros_like(parameter)


@torch.no_grad()
def clip_gradients(grads: list[torch.Tensor], max_norm: float) -> torch.Tensor:
    """Scale one adapter's gradients to at most ``max_norm`` (0: never); gives the norm before.

    They may lie on several devices; the norm is on the first one's.
    """
    groups = list(_group_by_device(grads))
    first = grads[0].device
    norms = [torch.nn.utils.get_total_norm([grads[at] for at in group]) for group in groups]
    norm = torch.nn.utils.get_total_norm([one.to(first) for one in norms])
    if max_norm > 0:
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for group in groups:
            own = [grads[at] for at in group]
            torch._foreach_mul_(own, factor.to(own[0].device))  # pyright: ignore[reportPrivateImportUsage]
    return norm


def _group_by_device(tensors: list[torch.Tensor]) -> Iterable[list[int]]:
    """Places of the tensors of each device: kernels for many at once want one."""
    groups: dict[torch.device, list[int]] = {}
    for at, tensor in enumerate(tensors):
        groups.setdefault(tensor.device, []).append(at)
    return groups.values()


@torch.no_grad()
def adamw_step(
    *,
    params: list[torch.Tensor],
    grads: list[torch.Tensor],
    means: list[torch.Tensor],
    squares: list[torch.Tensor],
    step: int,
    rate: float,
    weight_decay: float,
) -> None:
    """One fused AdamW step of one adapter's rows, in place, device by device.

    Parameters
    ----------
    step : int
        Steps done before this one.
    """
    for group in _group_by_device(params):
        device = params[group[0]].device
        steps = torch.full((len(group),), float(step), device=device).unbind()
        adamw(
            [params[at] for at in group],
            [grads[at] for at in group],
            [means[at] for at in group],
            [squares[at] for at in group],
            [],
            list(steps),
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=rate,
            weight_decay=weight_decay,
            eps=EPSILON,
            maximize=False,
            fused=True,
        )
