"""The CPU form of many adapters on one layer: a job's rows meet its own adapter only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


def apply_segments(x, weight_OD, bias, A_RD, B_RO, spans, keep_TD, products):
    """``SegmentsLinear``; where no gradients are wanted, without an autograd node."""
    if torch.is_grad_enabled():
        out_TO: Any = SegmentsLinear.apply(x, weight_OD, bias, A_RD, B_RO, spans, keep_TD, products)
    else:
        out_TO = _compute(x, weight_OD, bias, A_RD, B_RO, spans, keep_TD, products)[1]
    # a view that is made outside of the node may be changed in place, as some models do
    return out_TO.view(*x.shape[:-1], out_TO.shape[-1])


def _compute(x, weight_OD, bias, A_RD, B_RO, spans, keep_TD, products):
    x_TD = x.reshape(-1, x.shape[-1])
    if weight_OD is None:
        out_TO = x_TD.new_zeros(len(x_TD), B_RO.shape[1])
    else:
        out_TO = products.apply(x_TD, weight_OD, bias)
    inners = []
    block = _block(spans)
    if block is not None:
        inners = [_add_block(out_TO, x_TD, A_RD, B_RO, block)]
        spans = ()
    for row, rank, scale, start, end, probability in spans:
        rows = x_TD[start:end]
        if probability > 0:
            rows = rows * keep_TD[start:end] * (1.0 / (1.0 - probability))
        inner = rows @ A_RD[row : row + rank].to(rows.dtype).T
        inner *= scale
        out_TO[start:end].addmm_(inner, B_RO[row : row + rank].to(rows.dtype))
        inners.append(inner)
    return x_TD, out_TO, inners, block, spans


class SegmentsLinear(torch.autograd.Function):
    """Base product and all adapters of one layer as a single autograd node.

    Gradients of A and B are added into the stacks' ``grad`` directly, on each job's own rows. So no
    layer and pass allocates a tensor of the size of a stack.
    """

    @staticmethod
    def forward(ctx: Any, x, weight_OD, bias, A_RD, B_RO, spans, keep_TD, products):
        x_TD, out_TO, inners, block, spans = _compute(
            x, weight_OD, bias, A_RD, B_RO, spans, keep_TD, products
        )
        ctx.save_for_backward(x_TD, weight_OD, keep_TD, *inners)
        ctx.stacks = (A_RD, B_RO)
        ctx.spans = spans
        ctx.block = block
        ctx.products = products
        ctx.x_shape = x.shape
        return out_TO

    @staticmethod
    def backward(ctx: Any, *grads):
        x_TD, weight_OD, keep_TD, *inners = ctx.saved_tensors
        A_RD, B_RO = ctx.stacks
        grad_TO = grads[0].reshape(-1, grads[0].shape[-1])
        grad_x = None
        if ctx.needs_input_grad[0]:
            if weight_OD is None:
                grad_x = torch.zeros_like(x_TD)
            else:
                grad_x = ctx.products.apply(grad_TO, weight_OD.T, None)
        if ctx.block is not None:
            _add_block_gradients(grad_x, grad_TO, x_TD, A_RD, B_RO, ctx.block, inners.pop())
        for (row, rank, scale, start, end, probability), inner in zip(
            ctx.spans, inners, strict=True
        ):
            own = slice(row, row + rank)
            grad_rows = grad_TO[start:end]
            rows = x_TD[start:end]
            keep = None
            if probability > 0:
                keep = keep_TD[start:end].to(rows.dtype) * (1.0 / (1.0 - probability))
                rows = rows * keep
            grad_inner = grad_rows @ B_RO[own].to(rows.dtype).T
            grad_inner *= scale
            _add_product(B_RO.grad[own], inner, grad_rows)
            _add_product(A_RD.grad[own], grad_inner, rows)
            if grad_x is None:
                continue
            own_RD = A_RD[own].to(rows.dtype)
            if keep is None:
                grad_x[start:end].addmm_(grad_inner, own_RD)
            else:
                grad_x[start:end] += (grad_inner @ own_RD) * keep
        if grad_x is not None:
            grad_x = grad_x.view(ctx.x_shape)
        return grad_x, None, None, None, None, None, None, None


def _block(spans: tuple[tuple[int, int, float, int, int, float], ...]) -> _Block | None:
    """Several jobs of one rank and as many tokens each, side by side and without dropout.

    The common case of a market: such jobs go through batched products, one call for all.
    """
    if len(spans) < 2:
        return None
    row, rank, scale, start, end, _ = spans[0]
    length = end - start
    for place, span in enumerate(spans):
        at, first = start + place * length, row + place * rank
        if span != (first, rank, scale, at, at + length, 0.0):
            return None
    return _Block(row, len(spans), rank, scale, start, length)


@dataclass(frozen=True, slots=True)
class _Block:
    row: int
    jobs: int
    rank: int
    scale: float
    start: int
    length: int

    def rows(self, stream_TD: torch.Tensor) -> torch.Tensor:
        """``[jobs, length, D]``, a view of the stream."""
        end = self.start + self.jobs * self.length
        return stream_TD[self.start : end].view(self.jobs, self.length, -1)

    def adapters(self, stacked: torch.Tensor) -> torch.Tensor:
        """``[jobs, rank, width]``, a view of the stack."""
        end = self.row + self.jobs * self.rank
        return stacked[self.row : end].view(self.jobs, self.rank, -1)


def _add_block(
    out_TO: torch.Tensor,
    x_TD: torch.Tensor,
    A_RD: torch.Tensor,
    B_RO: torch.Tensor,
    block: _Block,
) -> torch.Tensor:
    A = block.adapters(A_RD).to(x_TD.dtype)
    inner = torch.bmm(block.rows(x_TD), A.transpose(1, 2))
    inner *= block.scale
    block.rows(out_TO).baddbmm_(inner, block.adapters(B_RO).to(x_TD.dtype))
    return inner


def _add_block_gradients(
    grad_x: torch.Tensor | None,
    grad_TO: torch.Tensor,
    x_TD: torch.Tensor,
    A_RD: torch.Tensor,
    B_RO: torch.Tensor,
    block: _Block,
    inner: torch.Tensor,
) -> None:
    grad_rows = block.rows(grad_TO)
    grad_inner = torch.bmm(grad_rows, block.adapters(B_RO).to(x_TD.dtype).transpose(1, 2))
    grad_inner *= block.scale
    assert A_RD.grad is not None
    assert B_RO.grad is not None
    block.adapters(B_RO.grad).add_(torch.bmm(inner.transpose(1, 2), grad_rows))
    block.adapters(A_RD.grad).add_(torch.bmm(grad_inner.transpose(1, 2), block.rows(x_TD)))
    if grad_x is not None:
        block.rows(grad_x).baddbmm_(grad_inner, block.adapters(A_RD).to(x_TD.dtype))


def _add_product(into: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """``into += left.T @ right``, in the stack's float32."""
    if left.dtype == into.dtype:
        into.addmm_(left.T, right)
    else:
        into += left.T @ right
