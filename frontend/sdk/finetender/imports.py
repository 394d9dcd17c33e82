"""Configurations of other trainers, read as the settings of a job.

TRL, Axolotl, Unsloth and LLaMA-Factory call the same things by few names, none of which means
another thing in one of the others, so one table reads all four. What has no place in a job is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from finetender.errors import UsageError

#: Our settings by the others' names.
_SETTINGS: Mapping[str, str] = {
    "r": "adapter.rank",
    "lora_r": "adapter.rank",
    "lora_rank": "adapter.rank",
    "lora_alpha": "adapter.alpha",
    "lora_dropout": "adapter.dropout",
    "lora_target": "adapter.target_modules",
    "lora_target_modules": "adapter.target_modules",
    "target_modules": "adapter.target_modules",
    "use_rslora": "adapter.rslora",
    "peft_use_rslora": "adapter.rslora",
    "use_dora": "adapter.dora",
    "peft_use_dora": "adapter.dora",
    "learning_rate": "training.learning_rate",
    "num_epochs": "training.epochs",
    "num_train_epochs": "training.epochs",
    "lr_scheduler": "training.schedule",
    "lr_scheduler_type": "training.schedule",
    "warmup_ratio": "training.warmup_share",
    "weight_decay": "training.weight_decay",
    "max_grad_norm": "training.max_grad_norm",
    "sequence_len": "training.sequence_length",
    "max_seq_length": "training.sequence_length",
    "max_length": "training.sequence_length",
    "cutoff_len": "training.sequence_length",
    "seed": "training.seed",
    "random_state": "training.seed",
    "val_size": "training.validation_share",
    "val_set_size": "training.validation_share",
    "neftune_noise_alpha": "training.neftune_alpha",
    "early_stopping_patience": "training.early_stopping",
    "beta": "training.dpo_beta",
    "dpo_beta": "training.dpo_beta",
    "pref_beta": "training.dpo_beta",
}
_BATCH = ("per_device_train_batch_size", "micro_batch_size")
_ACCUMULATED = "gradient_accumulation_steps"
#: The base model: a zone has one, and is named by it.
_BASE = ("base_model", "model_name_or_path", "model_name", "model")
_DATA = ("dataset", "dataset_name", "datasets")
#: What the market does in any case, or what is no setting of what is learnt.
_SAYS_NOTHING = frozenset(
    {
        *("adapter", "use_peft", "finetuning_type", "stage", "do_train", "output_dir"),
        *("bf16", "fp16", "tf32", "gradient_checkpointing", "use_gradient_checkpointing"),
        *("flash_attention", "attn_implementation", "sample_packing", "packing"),
        *("overwrite_output_dir", "logging_steps", "save_steps", "save_strategy", "report_to"),
        *("plot_loss", "lora_target_linear", "trust_remote_code"),
    }
)
_SCHEDULES = ("linear", "cosine", "constant")


@dataclass(frozen=True, slots=True)
class ImportedJob:
    """What a configuration says of a job."""

    #: As in a job's file; without a price and a deadline, which no trainer has.
    job: Mapping[str, Any]
    #: A sentence for each thing that could not be taken.
    left_out: tuple[str, ...]


def import_settings(config: Mapping[str, Any]) -> ImportedJob:
    """Read a configuration of TRL, Axolotl, Unsloth or LLaMA-Factory.

    Raises
    ------
    UsageError
        It names nothing that any of them has.
    """
    flat = _flatten(config)
    job: dict[str, Any] = {}
    left_out: list[str] = []
    for name, value in flat.items():
        if value is None or name in _SAYS_NOTHING or name in (*_BATCH, _ACCUMULATED):
            continue
        if name in _BASE:
            job["zone"] = value
        elif name in _DATA:
            _take_data(job, value, left_out)
        elif name in _SETTINGS:
            group, _, setting = _SETTINGS[name].partition(".")
            try:
                job.setdefault(group, {})[setting] = _READ.get(setting, _keep)(value)
            except ValueError as error:
                left_out.append(f"{name} is {value!r}: {error}")
        else:
            left_out.append(f"{name} has no place in a job.")
    rows = [flat[name] for name in _BATCH if flat.get(name)]
    if rows:
        job.setdefault("training", {})["batch_size"] = rows[0] * (flat.get(_ACCUMULATED) or 1)
    if flat.get("lora_target_linear") and "target_modules" not in job.get("adapter", {}):
        job.setdefault("adapter", {})["target_modules"] = "all-linear"
    if not {"adapter", "training"} & set(job):
        raise UsageError("This is no configuration of TRL, Axolotl, Unsloth or LLaMA-Factory.")
    return ImportedJob(job, tuple(left_out))


def _flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """Members of groups as members of the whole: Unsloth has ``lora`` and ``training``."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            found |= _flatten(cast("dict[str, Any]", value))
        else:
            found[name] = value
    return found


def _take_data(job: dict[str, Any], value: Any, left_out: list[str]) -> None:
    """One file or name; the market reads files and its own data sets."""
    if isinstance(value, list):
        listed = cast("list[Any]", value)
        value = listed[0] if len(listed) == 1 else None
    if isinstance(value, dict):
        value = cast("dict[str, Any]", value).get("path")
    if isinstance(value, str):
        job["data"] = value
    else:
        left_out.append("A job has one file of rows. Join them, and name it as data.")


def _keep(value: Any) -> Any:
    return value


def _read_targets(value: Any) -> Any:
    if value in ("all", "all-linear"):
        return "all-linear"
    return [name.strip() for name in value.split(",")] if isinstance(value, str) else value


def _read_schedule(value: Any) -> str:
    known = str(value).removesuffix("_with_warmup")
    if known not in _SCHEDULES:
        raise ValueError(f"there are {', '.join(_SCHEDULES)}.")
    return known


def _read_whole(value: Any) -> int:
    if value != int(value):
        raise ValueError("a job has whole epochs.")
    return int(value)


def _read_share(value: Any) -> float:
    if not 0 <= float(value) < 1:
        raise ValueError("the market holds out a share, and no number of rows.")
    return float(value)


_READ: Mapping[str, Callable[[Any], Any]] = {
    "target_modules": _read_targets,
    "schedule": _read_schedule,
    "epochs": _read_whole,
    "validation_share": _read_share,
}
