"""Products of stacked adapters with a pack: dense over all of them, or run by run."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from workers.training.stack_table import OwnerTable, Run, RunTable

log = logging.getLogger(__name__)
#: Stacked rank from which products run by run beat masked dense ones on CUDA: the masked
#: form then spends more than ~6 % of an 8 B model's base arithmetic.
DENSE_RANK_LIMIT = 256
#: Older GPUs compute groups in a loop that waits for the device at each product.
_GROUPED_CAPABILITY = (9, 0)


def compute_dense_delta(
    x_TD: torch.Tensor, A_RD: torch.Tensor, B_RO: torch.Tensor, table: OwnerTable
) -> torch.Tensor:
    """Every adapter on every token, foreign results set to zero; ``[T, O]``.

    ``where`` and not a product with a mask: zero times the NaN of a job that diverged
    would be NaN.
    """
    scaled_TR = (x_TD @ A_RD.to(x_TD.dtype).T) * table.scale_R.to(x_TD.dtype)
    masked_TR = torch.where(table.own_TR, scaled_TR, scaled_TR.new_zeros(()))
    return masked_TR @ B_RO.to(x_TD.dtype)


def compute_grouped_delta(
    x_TD: torch.Tensor, A_RD: torch.Tensor, B_RO: torch.Tensor, table: RunTable
) -> torch.Tensor:
    """Each adapter on its own rows; ``[T, O]``. Adapters side by side are one grouped product.

    The matrices are divided once, so that their gradients come in one piece.
    """
    A = A_RD.to(x_TD.dtype).split(table.row_sizes)
    B = B_RO.to(x_TD.dtype).split(table.row_sizes)
    parts, at = [], 0
    rows_TD = x_TD.split([run.tokens for run in table.runs])
    for x, run, place in zip(rows_TD, table.runs, table.row_places, strict=True):
        ends = table.ends[at : at + len(run.scales)]
        at += len(run.scales)
        if not run.rows:
            parts.append(x.new_zeros(len(x), B_RO.shape[1]))
        elif len(run.scales) == 1:
            parts.append(((x @ A[place].T) * run.scales[0]) @ B[place])
        else:
            parts.append(_multiply_group(x, A[place], B[place], run, ends))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _multiply_group(
    x: torch.Tensor, A: torch.Tensor, B: torch.Tensor, run: Run, ends: torch.Tensor
) -> torch.Tensor:
    jobs = len(run.scales)
    inner = F.grouped_mm(x, A.view(jobs, run.rows, -1).transpose(1, 2), offs=ends)
    if len(set(run.scales)) == 1:
        inner = inner * run.scales[0]
    else:
        scales = torch.tensor(run.scales, dtype=x.dtype).to(x.device, non_blocking=True)
        places = torch.searchsorted(ends, torch.arange(len(x), device=x.device), right=True)
        inner = inner * scales[places][:, None]
    return F.grouped_mm(inner, B.view(jobs, run.rows, -1), offs=ends)


@functools.cache
def is_grouped_usable(device: torch.device) -> bool:
    """Whether grouped products have the dense form's gradients here, tried once on small ones.

    Releases and GPUs differ in what they have kernels for, backward above all.
    """
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < _GROUPED_CAPABILITY:
        return False
    try:
        ends = torch.tensor([16, 32], dtype=torch.int32, device=device)
        runs = RunTable((Run([16, 16], 0, 16, (1.0, 0.5)),), ends, (32,), (0,))
        owner = torch.arange(32, device=device) // 16
        owners = OwnerTable(owner[:, None] == owner[None, :], 1.0 - owner / 2)
        pairs = zip(
            _try_form(compute_grouped_delta, runs, device),
            _try_form(compute_dense_delta, owners, device),
            strict=True,
        )
        differs = not all(torch.allclose(one, other, rtol=0.02) for one, other in pairs)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, NotImplementedError, AttributeError, TypeError) as error:
        log.warning("grouped products are not used here: %s", error)
        return False
    if differs:
        log.warning("grouped products are not used here: their gradients are others")
    return not differs


def _try_form(
    form: Callable[..., torch.Tensor], table: Any, device: torch.device
) -> list[torch.Tensor]:
    """Gradients of the inputs and of two adapters, each on half of the rows."""
    x_TD = torch.ones(32, 32, device=device, dtype=torch.bfloat16, requires_grad=True)
    stacks = [torch.ones(32, 32, device=device, requires_grad=True) for _ in range(2)]
    form(x_TD, *stacks, table).float().sum().backward()
    return [one.grad for one in (x_TD, *stacks) if one.grad is not None]
