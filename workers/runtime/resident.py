"""Base models kept in memory, each with its loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from accelerate.hooks import remove_hook_from_submodules
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoTokenizer

from workers.models import find_bundled_path, is_bundled
from workers.protocol.base_files import hash_base_files
from workers.protocol.job_bytes import JobNeed
from workers.protocol.job_spec import BaseModelRef
from workers.protocol.memory import GB, PackSizing, count_job_bytes
from workers.protocol.model_shape import BasePart
from workers.protocol.part_memory import choose_cuts
from workers.protocol.pass_bytes import DeviceProfile, count_unpacking_bytes
from workers.runtime.base_check import check_base, check_depth, check_index
from workers.runtime.forward_check import choose_model
from workers.runtime.memory_plan import MemoryPlan, find_host_gb
from workers.runtime.peak_memory import measure_growth
from workers.runtime.quantized_files import choose_quantization, is_quantized_otherwise
from workers.training.answer_adapters import AnswerAdapters
from workers.training.architectures import (
    build_on_meta,
    find_blocks,
    find_loader,
    quantize_projections,
    read_shape,
)
from workers.training.faults import SystemFault, UserFault
from workers.training.fused_trainer import FusedTrainer
from workers.training.grammars import Grammars
from workers.training.job import TrainingJob
from workers.training.kept_bytes import describe_model
from workers.training.packed_model import PackedModel
from workers.training.part_pass import divide_passes, list_ending
from workers.training.samples import find_stop_tokens
from workers.training.step_results import StepFailure, StepResult
from workers.training.tuning import build_plain_trainer, build_tuned_trainer

#: What damaged, missing or foreign files raise, safetensors and older formats alike.
LOADING_ERRORS = (
    *(OSError, ValueError, KeyError, RuntimeError, EOFError),
    *(SafetensorError, StrictDataclassError, UnpicklingError),
)
#: What the sentence ends with; a model that asks for code of its own must say so by this name.
_OWN_CODE = "trust_remote_code"


@dataclass(slots=True)
class ResidentBase:
    ref: BaseModelRef
    tokenizer: Any
    model: PackedModel
    trainer: FusedTrainer
    plan: MemoryPlan
    adapters: AnswerAdapters
    grammars: Grammars
    #: ``hash_base_files`` of what was loaded; empty for a model that was not loaded from files.
    sha256: str = ""
    #: CPU threads it is trained with; ``None`` until measured on the loop's thread.
    threads: int | None = None

    def apply_threads(self) -> None:
        """Train the next pack with its number of threads; call on the loop's thread."""
        if self.threads is not None and self.threads != torch.get_num_threads():
            torch.set_num_threads(self.threads)

    @property
    def memory_gb(self) -> float:
        """The base's weights."""
        return self.plan.base_gb

    @property
    def activations_gb(self) -> float:
        """What the largest pack so far took, by the plan."""
        return self.plan.predict_pack_gb(self._size(self.trainer.largest_pack), self._list_needs())

    def describe_pack(self) -> str:
        """How large packs are, and why."""
        tokens = self.trainer.token_budget
        usual = self.plan.usual_tokens
        text = f"packs of at most {tokens:,} tokens"
        if tokens == usual:
            text += f", more are no faster on a {self.plan.profile.device} device"
        elif tokens > usual:
            text += ", as the longest row has"
        else:
            text += ", which is what memory leaves"
        if self.model.checkpoint_layers:
            text += "; blocks are computed again in the backward pass, to save memory"
        if self.model.spills:
            text += ", and what goes into them waits in the host's"
        return text

    def compute_job_gb(self, job: TrainingJob) -> float:
        """What a job takes beside base and pack, by the plan."""
        pack = self._size(self.trainer.token_budget)
        return count_job_bytes(self.plan.shape, self.plan.profile, job.memory_need, pack=pack) / GB

    def round(self, *, disturbed: Callable[[], bool]) -> list[StepResult | StepFailure]:
        """A round of the loop; on CPUs the first after a job came is held against the plan.

        Parameters
        ----------
        disturbed : callable
            Whether other work of this process takes memory now; nothing is concluded then.
        """
        trainer = self.trainer
        # of a group, packs of other jobs take memory meanwhile
        is_alone = self.model.device.type == "cpu" and not self.plan.parts
        if not is_alone or not trainer.measures_next or disturbed():
            return trainer.round()
        with measure_growth() as growth:
            results = trainer.round()
        if growth.peak_bytes is not None and not disturbed():
            self.note_pack(gb=growth.peak_bytes / 1e9)
        return results

    def note_pack(self, *, gb: float) -> None:
        """Hold what the last pack took against the plan."""
        self.plan = self.plan.grown(
            gb=gb, pack=self._size(self.trainer.last_pack), needs=self._list_needs()
        )

    def _size(self, tokens: int) -> PackSizing:
        return PackSizing(tokens, self.model.checkpoint_layers, self.model.spills)

    def _list_needs(self) -> list[JobNeed]:
        return [job.memory_need for job in self.trainer.jobs.values()]


def load_resident(
    ref: BaseModelRef,
    *,
    device: torch.device,
    others: Sequence[torch.device] = (),
    limit_gb: float,
    reproducible: bool = False,
) -> ResidentBase:
    """Load a base model and freeze it.

    Parameters
    ----------
    others : sequence of torch.device
        Those among which its blocks are divided as well.
    limit_gb : float
        Of all devices together.
    reproducible : bool
        As in ``NodeRuntime``.

    Raises
    ------
    UserFault
        When the model cannot be trained here at all.
    SystemFault
        When this node cannot load it.
    """
    source, devices = resolve_model_source(ref.source), (device, *others)
    # Said, so that no question is asked on a terminal: code of a model's own is never run.
    options: dict[str, Any] = {_OWN_CODE: False}
    options |= {"revision": ref.revision} if ref.revision else {}
    try:
        config = AutoConfig.from_pretrained(source, **options)
        loader = find_loader(config)
        whole = is_quantized_otherwise(config)
        options |= choose_quantization(ref, config)
        tokenizer = AutoTokenizer.from_pretrained(
            source, revision=ref.revision, trust_remote_code=False
        )
        parts = _choose_parts(ref, config, devices, limit_gb=limit_gb)
        # A model and a report, which the stubs do not say.
        loaded: Any = loader.from_pretrained(
            source,
            config=config,
            dtype=_dtype(ref, device),
            # tensor by tensor, so that the machine's own memory never holds all of them
            device_map={"": device} | dict(zip(parts.names, parts.devices, strict=True)),
            output_loading_info=True,
            # Reported, and refused below with a sentence.
            ignore_mismatched_sizes=True,
            **options,
        )
    except LOADING_ERRORS as error:
        raise SystemFault(_describe_loading(ref, error)) from error
    model, loading = loaded
    directory = _find_directory(source, ref.revision)
    check_index(ref.name, directory)
    sha256 = hash_base_files(directory)
    if ref.sha256 not in (None, sha256):
        raise SystemFault(_describe_other_base(ref))
    check_base(ref.name, model=model, tokenizer=tokenizer, loading=loading)
    check_depth(ref.name, read_shape(model), loading["unexpected_keys"])
    # blocks move what they are given themselves
    remove_hook_from_submodules(model)
    if ref.four_bit and whole:
        quantize_projections(model)
    if not others:
        model.to(device)  # pyright: ignore[reportArgumentType]
    resident = build_resident(
        ref,
        model=model,
        tokenizer=tokenizer,
        limit_gb=limit_gb,
        parts=parts.ranges,
        reproducible=reproducible,
    )
    resident.sha256 = sha256
    return resident


@dataclass(frozen=True, slots=True)
class _Parts:
    """Where a base's blocks go."""

    ranges: tuple[range, ...] = ()
    #: Of each block, by name and device.
    names: tuple[str, ...] = ()
    devices: tuple[torch.device, ...] = ()


def _choose_parts(
    ref: BaseModelRef, config: Any, devices: Sequence[torch.device], *, limit_gb: float
) -> _Parts:
    if len(devices) == 1:
        return _Parts()
    shape = read_shape(build_on_meta(deepcopy(config)))
    if shape.layers < len(devices):
        raise UserFault(
            f"The base model {ref.name!r} has {shape.layers} blocks, and this node is a group of "
            f"{len(devices)} devices. Use fewer devices."
        )
    profile = DeviceProfile(devices[0].type, _dtype(ref, devices[0]).itemsize)
    cuts = choose_cuts(
        shape,
        profile,
        parts=len(devices),
        limit_gb=limit_gb / len(devices),
        four_bit=ref.four_bit,
    )
    ends = list(accumulate(cuts))
    ranges = tuple(range(end - size, end) for end, size in zip(ends, cuts, strict=True))
    return _Parts(
        ranges,
        tuple(shape.block.format(number) for part in ranges for number in part),
        tuple(device for part, device in zip(ranges, devices, strict=True) for _ in part),
    )


def _measure_parts(
    model: PackedModel, parts: Sequence[range], *, beside_bytes: float
) -> list[BasePart]:
    """What lies on each device: its blocks, what is beside them, and so many bytes besides.

    Embeddings that are tied to the output layer are there twice where that is on another device.
    """
    blocks = find_blocks(model.backbone)[1]
    places: dict[int, int] = {}
    if len(model.parts) > 1:
        ending = [p for module in list_ending(model) for p in module.parameters(recurse=False)]
        places = {id(p): len(parts) - 1 for p in ending}
    for at, part in enumerate(parts):
        places |= {id(p): at for number in part for p in blocks[number].parameters()}
    held: list[dict[int, int]] = [{} for _ in parts]
    for p in model.model.parameters():
        # the same weights under two names are there once
        held[places.get(id(p), 0)][p.data_ptr() or id(p)] = p.numel() * p.element_size()
    return [
        BasePart(len(part), (sum(own.values()) + beside_bytes) / GB)
        for part, own in zip(parts, held, strict=True)
    ]


def _find_directory(source: str, revision: str | None) -> Path:
    """Where a loaded model's files are: its own directory, or that of its download."""
    if Path(source).is_dir():
        return Path(source)
    found = try_to_load_from_cache(source, "config.json", revision=revision)
    if not isinstance(found, str):
        raise SystemFault(f"The files of {source!r} are not in this machine's cache.")
    return Path(found).parent


def _describe_loading(ref: BaseModelRef, error: Exception) -> str:
    if _OWN_CODE in str(error):
        return (
            f"The base model {ref.name!r} from {ref.source!r} asks to run code of its own, which "
            "no node does. Choose a model that transformers knows by itself."
        )
    reason = " ".join(str(error).split()).rstrip(". ")
    advice = "Check where the model is said to be, and this machine's network."
    if "gated" in reason:
        advice = "Accept its terms on the hub, and set HF_TOKEN where the node runs."
    elif isinstance(error, SafetensorError):
        advice = "A file of its weights is cut or damaged: download it again."
    elif isinstance(error, StrictDataclassError):
        advice = "Its config.json cannot be right: download it again, or choose another model."
    return f"The base model {ref.name!r} cannot be loaded from {ref.source!r}: {reason}. {advice}"


def _describe_other_base(ref: BaseModelRef) -> str:
    if is_bundled(ref.source):
        return (
            f"The base model {ref.name!r} that comes with this release is not the one that the "
            "zone was opened with. Install that release, or ask for a zone that was opened since."
        )
    return (
        f"The base model {ref.name!r} from {ref.source!r} has other files than those that the zone "
        "is pinned to. Put those there, or open a zone that names their revision."
    )


def build_resident(
    ref: BaseModelRef,
    *,
    model: Any,
    tokenizer: Any,
    limit_gb: float,
    parts: tuple[range, ...] = (),
    reproducible: bool = False,
) -> ResidentBase:
    """Make a loaded model resident.

    Parameters
    ----------
    parts : tuple of range
        The blocks on each device of a group.

    Raises
    ------
    UserFault
        As ``choose_model``.
    """
    packed = choose_model(ref.name, model)
    if parts:
        divide_passes(packed, parts)
    # each device unpacks weights of its own
    unpacking = count_unpacking_bytes(packed.shape) if ref.four_bit else 0
    whole = (range(len(packed.blocks)),)
    held = _measure_parts(packed, parts or whole, beside_bytes=unpacking)
    trainer = build_plain_trainer(packed) if reproducible else build_tuned_trainer(packed)
    profile = DeviceProfile(packed.device.type, packed.model.dtype.itemsize)
    described = describe_model(model.config)
    shape = replace(packed.shape, kept_share=described.kept_share)
    plan = MemoryPlan(
        shape,
        profile,
        base_gb=sum(part.base_gb for part in held),
        limit_gb=limit_gb,
        host_gb=find_host_gb(),
        parts=tuple(held) if parts else (),
    )
    adapters = AnswerAdapters(packed, limit_bytes=plan.answer_adapters_gb * GB)
    threads = 1 if reproducible else None
    stops = find_stop_tokens(packed, tokenizer)
    grammars = Grammars(tokenizer, stops=stops, vocabulary=packed.shape.vocab_size)
    return ResidentBase(ref, tokenizer, packed, trainer, plan, adapters, grammars, threads=threads)


def resolve_model_source(source: str) -> str:
    """The directory or hub id behind ``BaseModelRef.source``.

    Raises
    ------
    SystemFault
        When there is no such bundled model.
    """
    if not is_bundled(source):
        return source
    try:
        return str(find_bundled_path(source))
    except LookupError as error:
        raise SystemFault(str(error)) from error


def _dtype(ref: BaseModelRef, device: torch.device) -> torch.dtype:
    if ref.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if ref.dtype not in dtypes:
        raise UserFault(f"dtype must be auto, float32 or bfloat16, not {ref.dtype!r}.")
    return dtypes[ref.dtype]
