"""The files of a finished adapter: what PEFT reads beside the weights, and the zip of them all.

The market writes all of them itself but the weights' values, so that no text that a node sent
reaches an owner.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import IO, Any

from workers.protocol.adapter_check import WEIGHTS_NAME
from workers.protocol.job_spec import AdapterKind, AdapterSpec, BaseModelRef
from workers.protocol.model_shape import ModelShape

CONFIG_NAME = "adapter_config.json"
#: A fixed date makes equal adapters equal zips.
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)


def name_base(source: str) -> str:
    """Give the name by which an owner has a base model: the hub's, or that of a folder beside."""
    is_folder = source.startswith(("bundled:", "/"))
    return PurePosixPath(source.removeprefix("bundled:")).name if is_folder else source


def build_peft_config(
    *,
    base_model: BaseModelRef,
    shape: ModelShape,
    adapter: AdapterSpec,
    target_modules: Sequence[str],
    target_parameters: Sequence[str] = (),
) -> dict[str, Any]:
    """Build what stands in ``adapter_config.json``.

    Parameters
    ----------
    target_modules
        Names of the projections, or endings of names by which PEFT finds these and nothing else.
    target_parameters
        Names of tensors of experts.
    """
    shared = {
        "base_model_name_or_path": name_base(base_model.source),
        "revision": base_model.revision,
        "inference_mode": True,
        "task_type": "SEQ_CLS" if shape.encoder else "CAUSAL_LM",
    }
    if adapter.kind is AdapterKind.SOFT_PROMPT:
        return shared | {
            "peft_type": "PROMPT_TUNING",
            # the learnt embeddings are in the file; PEFT must not look for the text again
            "prompt_tuning_init": "RANDOM",
            "num_virtual_tokens": adapter.virtual_tokens,
            "token_dim": shape.hidden_size,
            "num_transformer_submodules": 1,
            "num_attention_heads": shape.heads,
            "num_layers": shape.layers,
        }
    return shared | {
        "peft_type": "LORA",
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "lora_dropout": adapter.dropout,
        "use_rslora": adapter.rslora,
        "use_dora": adapter.dora,
        "target_modules": list(target_modules),
        "target_parameters": list(target_parameters) or None,
        "modules_to_save": ["classifier"] if shape.encoder else None,
        "fan_in_fan_out": shape.transposed,
        "bias": "none",
        "init_lora_weights": True,
    }


def write_adapter_zip(
    out: IO[bytes], *, texts: Mapping[str, bytes], weights: Iterable[bytes]
) -> None:
    """Write an adapter's files as one zip; weights do not compress, so nothing is compressed.

    Parameters
    ----------
    weights
        The safetensors file, piece by piece.

    Raises
    ------
    OSError
        Such as a full disk.
    """
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        files: dict[str, Iterable[bytes]] = {name: (text,) for name, text in texts.items()}
        for name, parts in (files | {WEIGHTS_NAME: weights}).items():
            entry = zipfile.ZipInfo(name, date_time=_ZIP_DATE)
            entry.external_attr = 0o644 << 16
            with archive.open(entry, "w", force_zip64=True) as file:
                for part in parts:
                    file.write(part)
