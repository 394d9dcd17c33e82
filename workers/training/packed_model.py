"""A frozen base model that reads packed streams and carries many adapters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from workers.training import attention
from workers.training.architectures import architecture_of, target_names
from workers.training.multi_lora import (
    DENSE_RANK_LIMIT,
    Form,
    MultiLoRALinear,
    Stream,
    features,
    initial_down,
)
from workers.training.packing import Pack


class PackedModel:
    """One resident base. Not thread-safe: one loop owns it.

    The base stays in evaluation mode, so its own dropout is off and its numbers are the
    same for every job; only adapters drop out.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Of a supported architecture; its projections are wrapped in place, on demand.
    """

    def __init__(self, model: PreTrainedModel, *, checkpoint_layers: bool = False) -> None:
        self.architecture = architecture_of(model.config)
        self.model = model
        model.requires_grad_(False)
        model.eval()
        model.set_attn_implementation(attention.PACKED_ATTENTION)
        self.backbone: nn.Module = model.base_model
        self.prefix = f"{model.base_model_prefix}." if model.base_model_prefix else ""
        self.stream = Stream()
        self.layers: dict[str, MultiLoRALinear] = {}
        #: Recompute each layer in the backward pass instead of keeping its activations.
        self.checkpoint_layers = checkpoint_layers
        self._projections = {
            self.prefix + name: module for name, module in self.backbone.named_modules()
        }
        self._wrap_blocks()

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def context_length(self) -> int:
        """Tokens a sequence may have, sliding windows included."""
        config = self.model.config
        limits = [config.max_position_embeddings]
        if config.model_type == "roberta":
            # its positions start after the padding token's
            limits[0] -= config.pad_token_id + 1
        window = getattr(config, "sliding_window", None)
        if window and getattr(config, "use_sliding_window", True):
            limits.append(window)
        return min(limits)

    def target_names(self, targets: tuple[str, ...] | None) -> tuple[str, ...]:
        """Full names of the layers an adapter sits beside; ``None``: the architecture's all."""
        return target_names(self._projections.items(), targets or self.architecture.target_modules)

    def layer_features(self, name: str) -> tuple[int, int]:
        return features(self._projections[name])

    def attach(
        self,
        job_id: str,
        *,
        names: tuple[str, ...],
        rank: int,
        alpha: float,
        values: dict[str, tuple[torch.Tensor, torch.Tensor]],
    ) -> None:
        """Put a job's adapter beside each named layer."""
        for name in names:
            A_RD, B_RO = values[name]
            self._layer(name).attach(job_id, rank=rank, scale=alpha / rank, A_RD=A_RD, B_RO=B_RO)

    def detach(self, job_id: str) -> None:
        """Take a job's adapter out, whichever layers it is on."""
        for layer in self.layers.values():
            if job_id in layer.slots:
                layer.detach(job_id)

    def initial_values(
        self, names: tuple[str, ...], *, rank: int, seed: int
    ) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """A fresh adapter: random ``A``, zero ``B``."""
        return {
            name: (
                initial_down(name=name, seed=seed, rank=rank, width=self.layer_features(name)[0]),
                torch.zeros(rank, self.layer_features(name)[1]),
            )
            for name in names
        }

    def tensors(self, job_id: str) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """``(name, values, gradient)`` of each of the job's matrices, as views."""
        for name in sorted(self.layers):
            layer = self.layers[name]
            if job_id in layer.slots:
                for letter, (values, grad) in zip("AB", layer.tensors(job_id), strict=True):
                    yield f"{name}.lora_{letter}", values, grad

    def hidden(self, pack: Pack, embeddings_TD: torch.Tensor | None = None) -> torch.Tensor:
        """Last hidden states, ``[T, D]``; call inside ``streaming(pack)``."""
        inputs: dict[str, Any] = {"position_ids": self._positions(pack)[None]}
        if embeddings_TD is None:
            inputs["input_ids"] = pack.tokens_T[None]
        else:
            inputs["inputs_embeds"] = embeddings_TD[None]
        if self.architecture.encoder:
            inputs["token_type_ids"] = torch.zeros_like(pack.tokens_T)[None]
        else:
            inputs["use_cache"] = False
        return self.backbone(pack=pack, **inputs).last_hidden_state[0]

    @contextmanager
    def streaming(self, pack: Pack, *, adapters: bool = True) -> Iterator[None]:
        """Forward and backward of a pack happen inside; ``adapters=False`` is the bare base."""
        self.stream.pack = pack if adapters else None
        self.stream.form = self._form()
        try:
            yield
        finally:
            self.stream.pack = None

    @property
    def head(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The frozen output embeddings and their bias."""
        layer = self.model.get_output_embeddings()
        assert isinstance(layer, nn.Linear)
        return layer.weight, layer.bias

    def embed(self, tokens_T: torch.Tensor) -> torch.Tensor:
        """The frozen input embeddings of tokens, ``[T, D]``."""
        return self.model.get_input_embeddings()(tokens_T)

    def _positions(self, pack: Pack) -> torch.Tensor:
        if self.model.config.model_type == "roberta":
            return pack.positions_T + self.model.config.pad_token_id + 1
        return pack.positions_T

    def _form(self) -> Form:
        if self.device.type != "cuda":
            return "segments"
        stacked = max(
            (
                layer.A_NRD.shape[0] * layer.A_NRD.shape[1]
                for layer in self.layers.values()
                if layer.A_NRD is not None
            ),
            default=0,
        )
        # grouped kernels exist for bfloat16 only
        if stacked > DENSE_RANK_LIMIT and self.dtype == torch.bfloat16:
            return "grouped"
        return "dense"

    def _layer(self, name: str) -> MultiLoRALinear:
        if name not in self.layers:
            layer = MultiLoRALinear(self._projections[name], name=name, stream=self.stream)
            parent_name, _, child = name.removeprefix(self.prefix).rpartition(".")
            setattr(self.backbone.get_submodule(parent_name), child, layer)
            self.layers[name] = layer
        return self.layers[name]

    def _wrap_blocks(self) -> None:
        """Make each transformer block recomputable; decided anew at each call."""
        blocks = max(
            (m for m in self.backbone.modules() if isinstance(m, nn.ModuleList)),
            key=lambda blocks: sum(p.numel() for p in blocks.parameters()),
        )
        for block in blocks:
            plain = block.forward

            def forward(*args: Any, _plain: Any = plain, **kwargs: Any) -> Any:
                if self.checkpoint_layers and torch.is_grad_enabled():
                    return checkpoint(
                        _plain, *args, use_reentrant=False, preserve_rng_state=False, **kwargs
                    )
                return _plain(*args, **kwargs)

            block.forward = forward
