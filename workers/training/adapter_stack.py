"""The adapters of one layer: row ranges of two flat matrices, one after the other.

The layout is that of Punica (Chen et al. 2023, section 4) and S-LoRA (Sheng et al. 2023, section
5). ``workers.protocol.adapter_layout`` says how many rows an adapter has; the market counts by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from workers.protocol.adapter_layout import count_stack_rows
from workers.protocol.adapter_names import MAGNITUDE
from workers.training.faults import is_out_of_memory

_NAMES = (("lora_A", "A_RD"), ("lora_B", "B_RO"))


@dataclass(slots=True)
class Slot:
    """Where one adapter is in a layer."""

    #: Its first row.
    start: int
    #: Rows from there, those that only align it included; these are zero and stay so.
    rows: int
    rank: int
    #: ``AdapterSpec.scale``.
    scale: float
    #: ``float32[O]`` of DoRA: the learnt length of each output's weights.
    magnitude_O: nn.Parameter | None = None
    #: ``float32[O]`` of DoRA: lengths of the summed weights, where these never change.
    lengths_O: torch.Tensor | None = None


class AdapterStack(nn.Module):
    """The matrices, and who has which rows.

    Parameters
    ----------
    trains : bool
        Whether there are gradients. Adapters that only answer questions have none.
    experts : int
        How many pairs of matrices an adapter has here, one below the other.
    """

    def __init__(self, *, trains: bool, experts: int = 1) -> None:
        super().__init__()
        self.trains = trains
        self.experts = experts
        #: In the order of their rows, which is that of arrival.
        self.slots: dict[str, Slot] = {}
        self.A_RD: nn.Parameter | None = None
        self.B_RO: nn.Parameter | None = None

    @property
    def rows(self) -> int:
        return 0 if self.A_RD is None else len(self.A_RD)

    def attach(
        self,
        job_id: str,
        *,
        rank: int,
        scale: float,
        A_RD: torch.Tensor,
        B_RO: torch.Tensor,
        magnitude_O: torch.Tensor | None,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Append an adapter's rows; the others keep values and gradients.

        Where memory lacks, call ``detach``: it takes out what has come so far.

        Parameters
        ----------
        dtype
            Of adapters that do not train; those that do are in 32 bits.
        """
        assert job_id not in self.slots
        if self.trains:
            dtype = torch.float32
        rank *= self.experts
        rows = count_stack_rows(rank, device=device.type)
        slot = self.slots[job_id] = Slot(self.rows, rows, rank, scale)
        for (_, name), values in zip(_NAMES, (A_RD, B_RO), strict=True):
            old: nn.Parameter | None = getattr(self, name)
            shape = (slot.start + rows, values.shape[-1])
            value = allocate(shape, device=device, dtype=dtype)
            grad = allocate(shape, device=device, dtype=dtype) if self.trains else None
            if old is not None:
                value[: slot.start] = old.data
                if grad is not None:
                    assert old.grad is not None
                    grad[: slot.start] = old.grad
            value[slot.start : slot.start + rank] = values.flatten(0, -2)
            self._put(name, value, grad)
        if magnitude_O is not None:
            slot.magnitude_O = make_parameter(magnitude_O, device, trains=self.trains)

    def detach(self, job_id: str) -> None:
        """Take an adapter's rows out; those behind it move up. It needs no memory to succeed."""
        slot = self.slots.pop(job_id)
        for _, name in _NAMES:
            matrix: nn.Parameter | None = getattr(self, name)
            if matrix is None or len(matrix) <= slot.start:
                # memory ran out before this one had grown
                continue
            grad, matrix.grad = matrix.grad, None
            if len(matrix) == slot.rows:
                setattr(self, name, None)
                continue
            value = matrix.data
            setattr(self, name, None)
            del matrix
            value = _take_out(value, slot)
            self._put(name, value, None if grad is None else _take_out(grad, slot))
        for other in self.slots.values():
            if other.start > slot.start:
                other.start -= slot.rows

    def tensors(self, job_id: str) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """An adapter's ``(name, values, gradient)``; those of A and B are views.

        Of experts, with one matrix for each.
        """
        slot = self.slots[job_id]
        for label, name in _NAMES:
            matrix: nn.Parameter = getattr(self, name)
            assert matrix.grad is not None
            own = slice(slot.start, slot.start + slot.rank)
            value, grad = matrix.data[own], matrix.grad[own]
            if self.experts > 1:
                value, grad = (part.unflatten(0, (self.experts, -1)) for part in (value, grad))
            yield label, value, grad
        if slot.magnitude_O is not None:
            assert slot.magnitude_O.grad is not None
            yield MAGNITUDE, slot.magnitude_O.data, slot.magnitude_O.grad

    def _put(self, name: str, value: torch.Tensor, grad: torch.Tensor | None) -> None:
        parameter = nn.Parameter(value, requires_grad=self.trains)
        parameter.grad = grad
        setattr(self, name, parameter)


def allocate(shape: tuple[int, int], *, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(shape, device=device, dtype=dtype)


def make_parameter(values: torch.Tensor, device: torch.device, *, trains: bool) -> nn.Parameter:
    """A job's own tensor in 32 bits, with an empty gradient where it trains."""
    made = nn.Parameter(values.detach().to(device, torch.float32, copy=True), requires_grad=trains)
    if trains:
        made.grad = torch.zeros_like(made)
    return made


def _take_out(matrix: torch.Tensor, slot: Slot) -> torch.Tensor:
    """The matrix without the slot's rows, in memory of just its size if there is any for a copy."""
    kept = len(matrix) - slot.rows
    # piece by piece, so that no piece is read after it was written
    for at in range(slot.start, kept, slot.rows):
        end = min(at + slot.rows, kept)
        matrix[at:end] = matrix[at + slot.rows : end + slot.rows]
    try:
        return matrix[:kept].clone()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return matrix[:kept]
