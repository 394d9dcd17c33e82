"""Products of stacked adapters with a pack: dense over all of them, or grouped by their rows."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

import torch
import torch.nn.functional as F

from workers.training.slot_table import SlotTable

log = logging.getLogger(__name__)
#: Stacked rank from which grouped products beat masked dense ones on CUDA: the masked
#: form then spends more than ~6 % of an 8 B model's base arithmetic.
DENSE_RANK_LIMIT = 256


def compute_dense_delta(
    x_TD: torch.Tensor, A_NRD: torch.Tensor, B_NRO: torch.Tensor, table: SlotTable
) -> torch.Tensor:
    """Every adapter on every token, foreign results set to zero; ``[T, O]``.

    ``where`` and not a product with a mask: zero times the NaN of a job that diverged
    would be NaN.
    """
    slots, rank, width = A_NRD.shape
    inner = (x_TD @ A_NRD.to(x_TD.dtype).view(slots * rank, width).T).view(-1, slots, rank)
    scaled = inner * table.scale_N.to(x_TD.dtype)[None, :, None]
    masked = torch.where(table.own_TN[:, :, None], scaled, scaled.new_zeros(()))
    return masked.view(-1, slots * rank) @ B_NRO.to(x_TD.dtype).view(slots * rank, -1)


@functools.cache
def is_grouped_usable(device: torch.device) -> bool:
    """Whether grouped products have the dense form's gradients here, tried once on small ones.

    Releases and GPUs differ in what they have kernels for, backward above all.
    """
    try:
        pairs = zip(
            *(_try_form(form, device) for form in (compute_grouped_delta, compute_dense_delta)),
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


def _try_form(form: Callable[..., torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Gradients of the inputs and of two adapters, each on half of the rows."""
    x_TD = torch.ones(32, 32, device=device, dtype=torch.bfloat16, requires_grad=True)
    stacks = [torch.ones(2, 16, 32, device=device, requires_grad=True) for _ in range(2)]
    slot_T = torch.arange(32, device=device) // 16
    table = SlotTable(
        own_TN=slot_T[:, None] == torch.arange(2, device=device),
        scale_N=torch.tensor([1.0, 0.5], device=device),
        order_T=torch.arange(32, device=device),
        ends=torch.tensor([16, 32, 32], dtype=torch.int32, device=device),
    )
    form(x_TD, *stacks, table).float().sum().backward()
    return [one.grad for one in (x_TD, *stacks) if one.grad is not None]


def compute_grouped_delta(
    x_TD: torch.Tensor, A_NRD: torch.Tensor, B_NRO: torch.Tensor, table: SlotTable
) -> torch.Tensor:
    """Each adapter on its own rows by grouped matrix products; ``[T, O]``.

    Tokens come sorted by job, not by slot, and some may have no slot at all, so rows are
    brought into the order of slots first; rows without a slot go to an all-zero group.
    """
    zero = A_NRD.new_zeros(1, *A_NRD.shape[1:])
    A = torch.cat([A_NRD * table.scale_N[:, None, None], zero]).to(x_TD.dtype)
    B = torch.cat([B_NRO, B_NRO.new_zeros(1, *B_NRO.shape[1:])]).to(x_TD.dtype)
    inner_TR = F.grouped_mm(x_TD[table.order_T], A.transpose(1, 2), offs=table.ends)
    delta_TO = F.grouped_mm(inner_TR, B, offs=table.ends)
    return torch.empty_like(delta_TO).index_copy(0, table.order_T, delta_TO)
