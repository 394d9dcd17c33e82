"""A frozen base model that reads packed streams and carries many adapters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

from workers.protocol.adapter_layout import FLOAT_BYTES
from workers.protocol.adapter_names import MAGNITUDE, PROMPT
from workers.protocol.job_bytes import check_targets
from workers.protocol.job_settings import SettingError
from workers.protocol.job_spec import AdapterKind, AdapterSpec
from workers.protocol.model_shape import Projection
from workers.training import attention, dropout, heads
from workers.training.adapter_products import DENSE_RANK_LIMIT
from workers.training.adapter_stack import make_parameter
from workers.training.architectures import (
    find_backbone,
    name_targets,
    read_context_length,
    read_shape,
)
from workers.training.expert_adapters import ExpertAdapters, adapt_experts
from workers.training.faults import UserFault, is_out_of_memory, measure_free_bytes, refuse_adapter
from workers.training.frozen_weights import measure_lengths
from workers.training.loss import compute_token_nll
from workers.training.multi_lora import (
    Form,
    MultiLoRALinear,
    Stream,
    draw_initial_down,
    draw_initial_prompt,
)
from workers.training.own_head import OwnHead
from workers.training.packing import Pack
from workers.training.recomputing import BlockCalls, wrap_blocks

NamedTensor = tuple[str, torch.Tensor, torch.Tensor]


class PackedModel:
    """One resident base. Not thread-safe: one loop owns it.

    The base stays in evaluation mode, so its own dropout is off and its numbers are the
    same for every job; only adapters drop out.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Its projections are wrapped in place, on demand.
    """

    #: What ``transformers`` calls for attention.
    attention = attention.PACKED_ATTENTION
    #: Whether a pass may hold rows of several jobs.
    is_packed = True

    def __init__(self, model: PreTrainedModel, *, checkpoint_layers: bool = False) -> None:
        self.shape = read_shape(model)
        self.model = model
        model.requires_grad_(False)
        model.eval()
        model.set_attn_implementation(self.attention)
        self.config: Any = model.config.get_text_config()
        self.backbone = find_backbone(model)
        self.stream = Stream()
        self.layers: dict[str, MultiLoRALinear | ExpertAdapters] = {}
        #: Per job, what is not stacked: its soft prompt or classification head.
        self._loose: dict[str, dict[str, nn.Parameter]] = {}
        #: What ``tensors`` gives, until a job comes or goes and stacks may move.
        self._views: dict[str, tuple[NamedTensor, ...]] = {}
        #: Names of the adapters that train, and of those that answer questions.
        self.trained: set[str] = set()
        self.answering: set[str] = set()
        #: Tokens a sequence may have.
        self.context_length = read_context_length(self.config)
        #: Recompute each layer in the backward pass instead of keeping its activations.
        self.checkpoint_layers = checkpoint_layers
        #: Keep what goes into them in the host's memory; see ``recomputing``.
        self.spills = False
        #: The model's own output layer, where that does more than multiply.
        self.own_head: OwnHead | None = None
        names = [part.name for part in self.shape.list_projections()]
        self._projections = {name: model.get_submodule(name) for name in names}
        #: While a pass runs part by part, what stands in the place of the blocks.
        self.calls: BlockCalls | None = None
        self.blocks = wrap_blocks(self)
        #: The blocks by parts of a pass, each on one device; a single part where passes are whole.
        self.parts: tuple[range, ...] = (range(len(self.blocks)),)
        #: Where the last norm and the output layer are.
        self.ending_device = self.device

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    def find_adapted(self, adapter: AdapterSpec) -> tuple[Projection, ...]:
        """What an adapter sits beside; raises what ``check_targets`` does as a ``UserFault``."""
        try:
            return check_targets(self.shape, adapter)
        except SettingError as error:
            raise UserFault(f"{error.sentence}.") from None

    def name_targets(self, adapter: AdapterSpec) -> list[str]:
        """The endings by which PEFT finds the layers that an adapter sits beside."""
        layers = tuple(part.name for part in self.find_adapted(adapter) if part.experts == 1)
        return list(name_targets(self.model, layers))

    def list_experts(self, adapter: AdapterSpec) -> list[str]:
        """Full names of such tensors of experts."""
        return [part.name for part in self.find_adapted(adapter) if part.experts > 1]

    def list_shapes(self, adapter: AdapterSpec, *, labels: int = 0) -> dict[str, tuple[int, ...]]:
        """The tensors of an adapter by name, and their shapes; of experts, with one for each."""
        if adapter.kind is AdapterKind.SOFT_PROMPT:
            return {PROMPT: (adapter.virtual_tokens, self.shape.hidden_size)}
        shapes: dict[str, tuple[int, ...]] = {}
        for part in self.find_adapted(adapter):
            rows = (part.experts, adapter.rank) if part.experts > 1 else (adapter.rank,)
            shapes[f"{part.name}.lora_A"] = *rows, part.inputs
            shapes[f"{part.name}.lora_B"] = *rows, part.outputs
            if adapter.dora:
                shapes[f"{part.name}.{MAGNITUDE}"] = (part.outputs,)
        return shapes | (self.shape.list_head_shapes(labels=labels) if self.shape.encoder else {})

    def draw_initial_values(
        self, adapter: AdapterSpec, *, seed: int, labels: int = 0, tokenizer: Any = None
    ) -> dict[str, torch.Tensor]:
        """A fresh adapter by tensor name.

        LoRA starts with a random ``A`` and a zero ``B``; a soft prompt with embeddings of
        its initial text, or of random tokens where there is none (Lester et al. 2021, section 3.2).

        Parameters
        ----------
        labels : int
            Classes, for encoders.
        tokenizer
            Soft prompts only, to read their initial text.
        """
        values: dict[str, torch.Tensor] = {}
        if adapter.kind is AdapterKind.SOFT_PROMPT:
            embed: Any = self.model.get_input_embeddings()
            values[PROMPT] = draw_initial_prompt(embed, adapter, seed=seed, tokenizer=tokenizer)
        else:
            for name, shape in self.list_shapes(adapter).items():
                owner, _, part = name.rpartition(".")
                if part == "lora_A":
                    values[name] = draw_initial_down(name=owner, seed=seed, shape=shape)
                elif part == "lora_B":
                    values[name] = torch.zeros(shape)
                elif part == MAGNITUDE:
                    values[name] = measure_lengths(self._projections[owner]).cpu()
        if self.shape.encoder:
            values |= heads.draw_initial_head(
                self.shape,
                labels=labels,
                deviation=self.model.config.initializer_range,
                seed=seed,
            )
        return values

    def attach(
        self,
        job_id: str,
        adapter: AdapterSpec,
        values: dict[str, torch.Tensor],
        *,
        answers: bool = False,
    ) -> None:
        """Put an adapter in place, or leave everything as it was.

        Parameters
        ----------
        answers : bool
            It only answers questions: it gets no gradients, and passes use it where
            ``streaming`` says so.

        Raises
        ------
        SystemFault
            There is no memory for it; it says what was needed and what is free.
        """
        with self.all_or_nothing(job_id, values, answers=answers):
            self._attach(job_id, adapter, values, answers=answers)

    @contextmanager
    def all_or_nothing(
        self, job_id: str, values: Mapping[str, torch.Tensor], *, answers: bool = False
    ) -> Iterator[None]:
        """Take an adapter out again where anything of its coming fails; raises as ``attach``."""
        try:
            yield
        except BaseException as error:
            self.detach(job_id)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            if not isinstance(error, Exception) or not is_out_of_memory(error):
                raise
            count = sum(value.numel() for value in values.values())
            needed = count * self.dtype.itemsize if answers else 4 * count * FLOAT_BYTES
            raise refuse_adapter(needed, free=measure_free_bytes(self.device)) from error

    def _attach(
        self,
        job_id: str,
        adapter: AdapterSpec,
        values: Mapping[str, torch.Tensor],
        *,
        answers: bool,
    ) -> None:
        (self.answering if answers else self.trained).add(job_id)
        self._views.clear()
        for name in sorted(n.removesuffix(".lora_A") for n in values if n.endswith(".lora_A")):
            layer = self._layer(name)
            (layer.answering if answers else layer.trained).attach(
                job_id,
                rank=adapter.rank,
                scale=adapter.scale,
                A_RD=values[f"{name}.lora_A"],
                B_RO=values[f"{name}.lora_B"],
                magnitude_O=values.get(f"{name}.{MAGNITUDE}"),
                device=layer.device,
                dtype=self.dtype,
            )
        self._loose[job_id] = {
            name: make_parameter(value, self.device, trains=not answers)
            for name, value in values.items()
            if name.rpartition(".")[2] not in ("lora_A", "lora_B", MAGNITUDE)
        }

    @contextmanager
    def lend_prompts(self, prompts: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Let names that no job has stand for soft prompts, such as candidates to be scored.

        Parameters
        ----------
        prompts : mapping of str to float32[V, D]
        """
        lent = {
            name: {PROMPT: nn.Parameter(values.to(self.device, torch.float32), requires_grad=False)}
            for name, values in prompts.items()
        }
        self._loose |= lent
        try:
            yield
        finally:
            for name in lent:
                del self._loose[name]

    def detach(self, job_id: str) -> None:
        """Take a job's adapter out, whichever layers it is on."""
        for layer in self.layers.values():
            for stack in (layer.trained, layer.answering):
                if job_id in stack.slots:
                    stack.detach(job_id)
        self._loose.pop(job_id, None)
        self.trained.discard(job_id)
        self.answering.discard(job_id)
        self._views.clear()

    def tensors(self, job_id: str) -> tuple[NamedTensor, ...]:
        """``(name, values, gradient)`` of each of the job's tensors, as views."""
        if job_id not in self._views:
            self._views[job_id] = tuple(self._tensors(job_id))
        return self._views[job_id]

    def _tensors(self, job_id: str) -> Iterator[NamedTensor]:
        for name in sorted(self.layers):
            stack = self.layers[name].trained
            if job_id in stack.slots:
                for part, values, grad in stack.tensors(job_id):
                    yield f"{name}.{part}", values, grad
        for name, parameter in self._loose[job_id].items():
            assert parameter.grad is not None
            yield name, parameter.data, parameter.grad

    def hidden(self, pack: Pack) -> torch.Tensor:
        """Last hidden states, ``[T, D]``, where the pack is; call inside ``streaming(pack)``."""
        there, pack = pack.tokens_T.device, self.stream.move(pack, self.device)
        # roberta's positions start after the padding token's
        skipped = self.config.pad_token_id + 1 if self.config.model_type == "roberta" else 0
        inputs: dict[str, Any] = {"position_ids": (pack.positions_T + skipped)[None]}
        if (pack.virtual or pack.noise_T is not None) and self.stream.pack is not None:
            inputs |= self.describe_inputs(self.embed_pack(pack)[None], pack.tokens_T[None])
        else:
            inputs["input_ids"] = pack.tokens_T[None]
        if self.shape.encoder:
            inputs["token_type_ids"] = torch.zeros_like(pack.tokens_T)[None]
        else:
            inputs["use_cache"] = False
        return self.backbone(pack=pack, **inputs).last_hidden_state[0].to(there)

    def describe_inputs(
        self, embeddings_SLD: torch.Tensor, tokens_SL: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """What the backbone is called with in the place of tokens."""
        inputs = {"inputs_embeds": embeddings_SLD}
        if getattr(self.config, "hidden_size_per_layer_input", None):
            # Gemma's blocks have embeddings of their own, which follow from the tokens alone
            embed: Any = self.backbone.get_per_layer_inputs
            inputs["per_layer_inputs"] = embed(tokens_SL)
        return inputs

    def classify(self, job_id: str, first_SD: torch.Tensor) -> torch.Tensor:
        """An encoder job's logits, ``[S, labels]``, from first hidden states."""
        model_type = self.config.model_type
        return heads.classify(model_type, self.backbone, self._loose[job_id], first_SD)

    def streaming(
        self,
        pack: Pack,
        *,
        adapters: bool = True,
        form: Form | None = None,
        answers: bool = False,
        tables: dict[Any, Any] | None = None,
    ) -> AbstractContextManager[None]:
        """Forward and backward of a pack happen inside; ``adapters=False`` is the bare base.

        Parameters
        ----------
        answers : bool
            The adapters are those that answer questions.
        tables : dict, optional
            Those of an earlier part of the same pass.
        """
        of = pack if adapters else None
        return self.stream.passing(of, form or self.choose_form(), answers=answers, tables=tables)

    @property
    def head(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The frozen output embeddings and their bias."""
        layer = self.model.get_output_embeddings()
        assert isinstance(layer, nn.Linear)
        return layer.weight, layer.bias

    def compute_logits(self, hidden_MD: torch.Tensor) -> torch.Tensor:
        """``float[M, V]``, of few tokens: all of them are there at once."""
        hidden_MD = hidden_MD.to(self.ending_device)
        if self.own_head is not None:
            return self.own_head.compute_logits(hidden_MD)
        weight_VD, bias_V = self.head
        return F.linear(hidden_MD, weight_VD, bias_V)

    def compute_nll(self, hidden_MD: torch.Tensor, targets_M: torch.Tensor) -> torch.Tensor:
        """Negative log-likelihood of each target, ``float32[M]``."""
        there, hidden_MD = hidden_MD.device, hidden_MD.to(self.ending_device)
        targets_M = targets_M.to(self.ending_device)
        if self.own_head is not None:
            return self.own_head.compute_nll(hidden_MD, targets_M).to(there)
        products = self.stream.products
        return compute_token_nll(hidden_MD, *self.head, targets_M, products=products).to(there)

    def embed_pack(self, pack: Pack) -> torch.Tensor:
        """``[T, D]``: what goes into the first block; call inside ``streaming(pack)``."""
        embeddings_TD = self.model.get_input_embeddings()(pack.tokens_T)
        if self.stream.pack is None:
            return embeddings_TD
        for job_id, places in pack.virtual.items():
            prompt_VD = self._loose[job_id][PROMPT].to(embeddings_TD.dtype)
            repeats = len(places) // len(prompt_VD)
            embeddings_TD = embeddings_TD.index_copy(0, places, prompt_VD.repeat(repeats, 1))
        if pack.noise_T is None or pack.dropout_keys_T is None:
            return embeddings_TD
        return dropout.add_noise(embeddings_TD, pack.dropout_keys_T, pack.noise_T)

    def choose_form(self) -> Form:
        """The adapters' form for this device and what is on it."""
        if self.device.type != "cuda":
            return "segments"
        layers = [one for one in self.layers.values() if isinstance(one, MultiLoRALinear)]
        stacked = max((layer.stack.rows for layer in layers), default=0)
        return "grouped" if stacked > DENSE_RANK_LIMIT else "dense"

    def _layer(self, name: str) -> MultiLoRALinear | ExpertAdapters:
        owner, _, weight = name.rpartition(".")
        if name not in self.layers and name not in self._projections:
            found = adapt_experts(self.model.get_submodule(owner), self.stream)
            self.layers |= {f"{owner}.{part}": one for part, one in found.items()}
        elif name not in self.layers:
            layer = MultiLoRALinear(self._projections[name], name=name, stream=self.stream)
            setattr(self.model.get_submodule(owner), weight, layer)
            self.layers[name] = layer
        return self.layers[name]
