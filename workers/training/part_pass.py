"""A pack on its way through a model whose blocks lie on several devices, one part at a time.

The graph is cut where blocks change devices, so that packs of different jobs are computed in turn:
GPipe's partition (Huang et al. 2019, section 2.2) in the order of PipeDream's 1F1B (Narayanan et
al. 2019, section 3.2), without the barrier at the end of a batch, since every job steps by itself
(mLoRA, Ye et al. 2023, section 4). Embeddings are on the first device; last norm, output layer and
losses on the last, since a pack that came back to the first would wait there between two units.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import nn

from workers.training.architectures import find_last_norms
from workers.training.faults import is_device_lost, is_out_of_memory
from workers.training.multi_lora import Form
from workers.training.packed_model import PackedModel
from workers.training.packing import Pack
from workers.training.recomputing import BlockCalls, BlocksNoted
from workers.training.rehearsal import rehearsal

log = logging.getLogger(__name__)
#: Of the largest hidden state, by which a pass in parts may differ from a whole one.
_TOLERANCE = 1e-3
_REHEARSED_TOKENS = 24


class PartPass:
    """One pack forward and backward, unit by unit.

    Units are the parts forward, then the losses, then the parts backward. A pass that is not cut
    is a single unit.

    Parameters
    ----------
    compute_loss : callable
        Gives what is trained on, from ``model.hidden(pack)``.
    watching : context manager, optional
        Entered whenever something is kept for the backward pass.
    """

    def __init__(
        self,
        model: PackedModel,
        pack: Pack,
        *,
        form: Form | None,
        compute_loss: Callable[[], torch.Tensor],
        watching: AbstractContextManager[Any] | None = None,
    ) -> None:
        self._model = model
        self._pack = pack
        self._form: Form = form or model.choose_form()
        self._compute_loss = compute_loss
        self._watching = watching or nullcontext()
        self._parts = len(model.parts)
        self._units = 2 * self._parts + 1 if self._parts > 1 else 1
        self._next = 0
        self._tables: dict[Any, Any] = {}
        self._calls = BlockCalls(len(model.blocks))
        #: Of each part, what went in, as a leaf of its own graph, and what came out.
        self._inputs: list[torch.Tensor] = []
        self._outputs: list[torch.Tensor] = []
        #: Likewise what blocks are called with beside it that a soft prompt is in, by its id: as it
        #: came, and as a leaf. Gemma's blocks have embeddings of their own.
        self._beside: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def is_through(self) -> bool:
        return self._next == self._units

    @property
    def is_forward(self) -> bool:
        """Whether the next unit is one of a forward pass."""
        return self._next < self._parts

    @property
    def part(self) -> int:
        """Whose turn it is."""
        if self.is_forward:
            return self._next
        return self._parts - 1 if self.is_loss else self._units - self._next - 1

    @property
    def is_loss(self) -> bool:
        """Whether the next unit is that of the losses; a pass that is not cut has all in one."""
        return self._next == self._parts

    def holds(self, part: int) -> bool:
        """Whether the part keeps something for the backward pass."""
        return part < self._next < self._units - part

    def run_next(self) -> None:
        unit, part = self._next, self.part
        with self._model.streaming(self._pack, form=self._form, tables=self._tables):
            if self._parts == 1:
                self._compute_loss_alone()
            elif unit < self._parts:
                with self._watching:
                    self._forward(part)
            elif unit == self._parts:
                self._compute_loss_of(self._outputs[-1])
            else:
                self._backward(part)
        self._next += 1

    def _compute_loss_alone(self) -> None:
        with self._watching:
            loss = self._compute_loss()
        if loss.requires_grad:
            loss.backward()

    def _forward(self, part: int) -> None:
        model = self._model
        if part == 0:
            with suppress(BlocksNoted), _standing_in(model, self._calls):
                model.hidden(self._pack)
            assert self._calls.first is not None
            hidden = self._calls.first
        else:
            hidden = self._outputs[-1]
        numbers = model.parts[part]
        hidden = self._cut(hidden, model.blocks[numbers.start].device)
        for number in numbers:
            args, kwargs = self._calls.rest[number]
            cut = {name: self._cut_beside(value) for name, value in kwargs.items()}
            hidden = model.blocks[number].run(hidden, *map(self._cut_beside, args), **cut)
        self._outputs.append(hidden)

    def _compute_loss_of(self, hidden: torch.Tensor) -> None:
        given = self._cut(hidden, hidden.device)
        calls = BlockCalls(len(self._model.blocks), given)
        with _standing_in(self._model, calls):
            self._compute_loss_alone()

    def _cut(self, hidden: torch.Tensor, device: torch.device) -> torch.Tensor:
        leaf = hidden.detach().to(device, non_blocking=True).requires_grad_(hidden.requires_grad)
        self._inputs.append(leaf)
        return leaf

    def _cut_beside(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.requires_grad:
            return value
        leaf = value.detach().requires_grad_()
        return self._beside.setdefault(id(value), (value, leaf))[1]

    def _backward(self, part: int) -> None:
        grad, output = self._inputs.pop().grad, self._outputs.pop()
        if grad is not None:
            output.backward(grad.to(output.device, non_blocking=True))
        if part == 0:
            cuts = [(self._calls.first, self._inputs[0]), *self._beside.values()]
            cuts = [(came, leaf.grad) for came, leaf in cuts if leaf.grad is not None]
            if cuts:
                torch.autograd.backward([came for came, _ in cuts], [grad for _, grad in cuts])


@contextmanager
def _standing_in(model: PackedModel, calls: BlockCalls) -> Iterator[None]:
    model.calls = calls
    try:
        yield
    finally:
        model.calls = None


def divide_passes(model: PackedModel, parts: tuple[range, ...]) -> None:
    """Cut a model's passes into parts, if that gives what whole ones give.

    Families that do more between their blocks than call them are computed whole, as those are that
    run by their own code: their hidden states go from device to device.
    """
    if len(parts) == 1 or not model.is_packed or model.shape.encoder:
        return
    found: list[torch.Tensor] = []
    before = [
        (module, name, weight)
        for module in list_ending(model)
        for name, weight in module.named_parameters(recurse=False)
    ]
    _place_ending(model, model.blocks[-1].device)

    def compute_loss() -> torch.Tensor:
        found.append(model.hidden(pack).float())
        return found[-1].sum()

    try:
        with rehearsal(model, tokens=_REHEARSED_TOKENS) as pack:
            for cut in ((range(len(model.blocks)),), parts):
                model.parts = cut
                tried = PartPass(model, pack, form=None, compute_loss=compute_loss)
                while not tried.is_through:
                    tried.run_next()
        whole, cut = (one.detach() for one in found)
        agree = bool((whole - cut).abs().max() <= _TOLERANCE * whole.abs().max())
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        if is_out_of_memory(error) or is_device_lost(error):
            raise
        log.warning("passes of this base are not cut into parts: %s", error)
        agree = False
    if not agree:
        model.parts = (range(len(model.blocks)),)
        model.ending_device = model.device
        # these, as a copy of tied embeddings would be a second table there
        for module, name, weight in before:
            setattr(module, name, weight)


def list_ending(model: PackedModel) -> list[nn.Module]:
    """What comes after the blocks."""
    head: Any = model.model.get_output_embeddings()
    return [*find_last_norms(model.backbone), head]


def _place_ending(model: PackedModel, device: torch.device) -> None:
    """Put what comes after the blocks on a device; tied embeddings stay where they are."""
    model.ending_device = device
    for module in list_ending(model):
        for name, weight in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(weight.to(device), requires_grad=False))
