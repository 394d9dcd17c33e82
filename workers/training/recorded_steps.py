"""Steps of fixed shape, recorded once each; used where that is measured to pay."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import torch

from workers.training.graph_runners import GraphRunner, RecordingDeferredError
from workers.training.multi_lora import Form
from workers.training.objective import compute_sequence_nll
from workers.training.packed_model import PackedModel
from workers.training.packing import Pack
from workers.training.recorded_step import RecordedStep, StepShape
from workers.training.rehearsal import build_rehearsal_pack, rehearsal, wait_for_device

log = logging.getLogger(__name__)

#: A recorded pass must take at most this share of the plain time to be used.
_WORTH = 0.97
#: Largest difference from the plain pass, relative to the largest value.
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
_TOKENS = 512
_ROUNDS = 5


class RecordingError(Exception):
    """A step could not be recorded or replayed.

    The pack must go the plain way, and nothing that gradients held or hold is to be trusted.
    """


class RecordedSteps:
    """Recordings by shape. Not thread-safe: the loop of the model owns it.

    Parameters
    ----------
    form : Form, optional
        Of the adapters; by default what suits the device and what is on it.
    most : int
        Recordings kept. Each holds its buffers and, on a GPU, a share of a pool.
    after : int
        Packs of a shape that pass before it is recorded; a shape that comes once is not
        worth it.
    """

    def __init__(
        self,
        model: PackedModel,
        runner: GraphRunner,
        *,
        form: Form | None = None,
        most: int = 16,
        after: int = 1,
    ) -> None:
        self.model = model
        self.runner = runner
        self._form: Form | None = form
        self._most = most
        self._after = after
        self._recorded: dict[tuple[StepShape, Form], tuple[RecordedStep, Callable[[], None]]] = {}
        self._seen: Counter[StepShape] = Counter()
        self._layout = model.stream.layout
        #: Set by the first failure: nothing is recorded or replayed from then on.
        self.failed = False
        #: Packs that went through a recording.
        self.replays = 0
        model.even_slots = True

    @property
    def shapes(self) -> tuple[StepShape, ...]:
        """What has been recorded."""
        return tuple(shape for shape, _ in self._recorded)

    @property
    def form(self) -> Form:
        """Of the adapters in the next pack."""
        return self._form or self.model.choose_form()

    def losses(self, pack: Pack, weights: list[float]) -> torch.Tensor | None:
        """Add a pack's gradients and give its sequences' summed losses, ``float32[S]``.

        Parameters
        ----------
        pack : Pack
            Made without padding.
        weights : list of float
            Per share, what a sequence's loss counts for.

        Returns
        -------
        torch.Tensor or None
            ``None`` when nothing was done and the pack has to go the plain way.

        Raises
        ------
        RecordingError
            Once; from then on the answer is always ``None``.
        """
        if self.failed or self.model.slot_count == 0:
            return None
        if self._layout != self.model.stream.layout:
            # a stack has moved: recordings would go on with the old one
            self._recorded.clear()
            self._layout = self.model.stream.layout
        shape = StepShape.of(pack, context=self.model.context_length)
        form = self.form
        if (shape, form) not in self._recorded and not self._record(shape, form, pack, weights):
            return None
        step, run = self._recorded[shape, form]
        try:
            step.load(pack, weights)
            self.model.stream.form = form
            run()
        except Exception as error:
            raise self._given_up(error) from error
        self.replays += 1
        return step.nll_S[: len(pack.starts) - 1]

    def forget(self) -> None:
        """Drop all recordings for their memory; shapes that come again get new ones."""
        self._recorded.clear()
        self._seen.clear()

    def _given_up(self, error: Exception) -> RecordingError:
        """Note that nothing can be recorded here, and say so; the plain way is always there."""
        log.warning("steps are not recorded here (%s): %s", self.runner.name, error)
        self.failed = True
        self._recorded.clear()
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()
        return RecordingError(f"recording failed: {error}")

    def _record(self, shape: StepShape, form: Form, pack: Pack, weights: list[float]) -> bool:
        self._seen[shape] += 1
        if self._seen[shape] <= self._after or len(self._recorded) >= self._most:
            return False
        try:
            step = RecordedStep(self.model, shape, form=form)
            step.load(pack, weights)
            # with no weight on anything, the runs of the recording add zero
            step.clear()
            self._recorded[shape, form] = step, self.runner.record(step.compute)
        except RecordingDeferredError:
            return False
        # capture may fail for any reason, and training goes on without it
        except Exception as error:
            raise self._given_up(error) from error
        return True


def record_steps_if_faster(
    model: PackedModel, runner: GraphRunner, *, form: Form | None = None
) -> RecordedSteps | None:
    """Record a rehearsal, check its numbers, time both ways, and keep the faster.

    Call while no job is on the model.

    Parameters
    ----------
    form : Form, optional
        As for ``RecordedSteps``.

    Returns
    -------
    RecordedSteps or None
        ``None`` when the plain way is better, or the only one.
    """
    if model.shape.encoder:
        return None
    steps = RecordedSteps(model, runner, form=form, after=0)
    try:
        plain_s, fixed_s = _measured(model, steps)
    # whatever a device cannot do, it trains the plain way
    except Exception as error:
        log.warning("steps are not recorded here (%s): %s", runner.name, error)
        model.even_slots = False
        return None
    log.info("a pass takes %.4f s plain and %.4f s by %s", plain_s, fixed_s, runner.name)
    if fixed_s > _WORTH * plain_s:
        model.even_slots = False
        return None
    return RecordedSteps(model, runner, form=form)


def _measured(model: PackedModel, steps: RecordedSteps) -> tuple[float, float]:
    """Seconds of a plain and of a recorded pass.

    Raises
    ------
    ArithmeticError
        When their numbers differ.
    Exception
        Whatever recording raised.
    """
    with rehearsal(model, tokens=_TOKENS) as pack:
        for layer in model.layers.values():
            if layer.B_NRO is not None:
                # a fresh adapter's is zero, which would hide half of the gradients
                layer.B_NRO.data.normal_(std=0.02)

        def plain(pack: Pack = pack) -> torch.Tensor:
            weight = _weight(pack)
            with model.streaming(pack, form=steps.form):
                nll_S = compute_sequence_nll(model, pack, model.hidden(pack))
                (nll_S.sum() * weight).backward()
            return nll_S.detach()

        def fixed(pack: Pack = pack) -> torch.Tensor:
            nll_S = steps.losses(pack, [_weight(pack)])
            if nll_S is None:
                raise RuntimeError("nothing was recorded")
            return nll_S

        # the second pack runs on the recording of the first: what a recording wrongly took
        # from the host when it was made shows there, and only there
        cut = pack.tokens // 8
        packs = (pack, build_rehearsal_pack(model, lengths=(cut, pack.tokens - cut), seed=1))
        for checked in packs:
            numbers = [_numbers(model, partial(way, checked)) for way in (plain, fixed)]
            for expected, found in zip(*numbers, strict=True):
                error = (found - expected).abs().max() / expected.abs().max().clamp(min=1e-12)
                if not error <= _TOLERANCE.get(model.dtype, 3e-2):
                    raise ArithmeticError(f"its numbers are off by {float(error):.1e}")
        best = [float("inf"), float("inf")]
        for _ in range(_ROUNDS):
            for index, way in enumerate((plain, fixed)):
                wait_for_device(model)
                began = time.perf_counter()
                way()
                wait_for_device(model)
                best[index] = min(best[index], time.perf_counter() - began)
    return best[0], best[1]


def _weight(pack: Pack) -> float:
    return 1.0 / max(1, int(pack.predict_M.numel()))


def _numbers(model: PackedModel, way: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    """Losses and every stack's gradient of one pass."""
    stacks = [s for layer in model.layers.values() for s in (layer.A_NRD, layer.B_NRO)]
    grads = [stack.grad for stack in stacks if stack is not None and stack.grad is not None]
    way()
    for grad in grads:
        grad.zero_()
    losses = way().clone()
    return [losses, *(grad.clone() for grad in grads)]
