"""Configurations of other trainers, read as the settings of a job.

TRL, Axolotl, Unsloth and LLaMA-Factory call the same things by few names, none of which means
another thing in one of the others, so one table reads all four. What has no place in a job is said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
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
#: A part and a configuration of a data set on a hub.
_SPLITS = ("dataset_train_split", "dataset_split", "split")
_CONFIGURATIONS = ("dataset_config", "dataset_config_name")
_ON_HUB = re.compile(r"[\w.-]+/[\w.-]+")
#: Endings of files of rows; an id of a hub has none of them.
_ROWS_ENDINGS = (".jsonl", ".json", ".csv", ".txt", ".parquet")
#: What Unsloth calls its copies of a model in fewer bits, which are trained from as from it.
_COPY = re.compile(r"unsloth/(.+?)(-unsloth)?(-bnb-4bit)?", re.IGNORECASE)
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


def import_settings(
    config: Mapping[str, Any], *, zones: Mapping[str, str] | None = None
) -> ImportedJob:
    """Read a configuration of TRL, Axolotl, Unsloth or LLaMA-Factory.

    Parameters
    ----------
    config
        As its file says it.
    zones
        Zones of the market by their base model's id on the hub; ``None``: they are not known, so
        that no base model is taken.

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
            zone = _find_zone(str(value), zones or {})
            if zone is None:
                left_out.append(_word_unknown_model(name, value, zones))
            else:
                job["zone"] = zone
        elif name in _DATA:
            _take_data(job, name, value, flat, left_out)
        elif name in (*_SPLITS, *_CONFIGURATIONS):
            continue
        elif name in _SETTINGS:
            group, _, setting = _SETTINGS[name].partition(".")
            try:
                job.setdefault(group, {})[setting] = _READ.get(setting, _keep)(value)
            except ValueError as error:
                left_out.append(f"{name} is {value!r}: {error}")
        else:
            left_out.append(f"{name} has no place in a job.")
    _take_batch(job, flat, left_out)
    if flat.get("lora_target_linear") and "target_modules" not in job.get("adapter", {}):
        job.setdefault("adapter", {})["target_modules"] = "all-linear"
    if not {"adapter", "training"} & set(job):
        raise UsageError("This is no configuration of TRL, Axolotl, Unsloth or LLaMA-Factory.")
    return ImportedJob(job, tuple(left_out))


def _take_batch(job: dict[str, Any], flat: Mapping[str, Any], left_out: list[str]) -> None:
    """Rows of a step: those at once, times how often they are added up."""
    name = next((name for name in _BATCH if flat.get(name)), None)
    if name is None:
        return
    rows, times = flat[name], flat.get(_ACCUMULATED) or 1
    if not (_is_whole(rows) and _is_whole(times)):
        left_out.append(f"{name} is {rows!r}, {times!r} times: a job has whole rows.")
        return
    job.setdefault("training", {})["batch_size"] = int(rows) * int(times)


def _is_whole(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def _flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """Members of groups as members of the whole: Unsloth has ``lora`` and ``training``."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            found |= _flatten(cast("dict[str, Any]", value))
        else:
            found[name] = value
    return found


def _find_zone(model: str, zones: Mapping[str, str]) -> str | None:
    """The zone with a base model, by its id on the hub, by Unsloth's name for it or by its own."""
    by_id = {base.lower(): zone for base, zone in zones.items()}
    found = by_id.get(model.lower())
    if found is None and (copy := _COPY.fullmatch(model)) is not None:
        same = [zone for base, zone in by_id.items() if base.endswith(f"/{copy[1].lower()}")]
        found = same[0] if len(same) == 1 else None
    return model if found is None and model in zones.values() else found


def _word_unknown_model(name: str, value: Any, zones: Mapping[str, str] | None) -> str:
    if zones is None:
        return f"{name} is {value!r}: sign in (finetender login) to have its zone found."
    there = ", ".join(f"{zone} ({base})" for base, zone in zones.items()) or "none"
    return f"{name} is {value!r}, which no zone of this market trains. Choose one of: {there}."


def _take_data(
    job: dict[str, Any], name: str, value: Any, flat: Mapping[str, Any], left_out: list[str]
) -> None:
    """One file, address or set of a hub; the market reads files and its own data sets."""
    if isinstance(value, list):
        listed = cast("list[Any]", value)
        value = listed[0] if len(listed) == 1 else None
    own: Mapping[str, Any] = {}
    if isinstance(value, dict):
        own = cast("dict[str, Any]", value)
        value = own.get("path")
    if not isinstance(value, str):
        left_out.append("A job has one file of rows. Join them, and name it as data.")
        return
    if "://" in value or value.lower().endswith(_ROWS_ENDINGS) or _is_file(value):
        job["data"] = value
        return
    if not _ON_HUB.fullmatch(value):
        left_out.append(
            f"{name} is {value!r}, which is neither a file of rows nor OWNER/SET of a hub. Name "
            "the file, or hf://OWNER/SET, as data."
        )
        return
    split = own.get("split") or next((flat[of] for of in _SPLITS if flat.get(of)), None)
    chosen = own.get("name") or next((flat[of] for of in _CONFIGURATIONS if flat.get(of)), None)
    if chosen not in (None, "default") or (split and not re.fullmatch(r"[\w.-]+", str(split))):
        left_out.append(
            f"{name} is a part of {value!r} that has no address. Name the file of rows as data, "
            f"as hf://datasets/{value}/PATH."
        )
        return
    job["data"] = f"hf://{value}" + (f"/{split}" if split else "")


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except OSError:
        # A name that is too long for any file.
        return False


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
    if not _is_whole(value):
        raise ValueError("a job has whole epochs.")
    return int(value)


def _read_share(value: Any) -> float:
    if isinstance(value, bool) or not (isinstance(value, int | float) and 0 <= value < 1):
        raise ValueError("the market holds out a share, and no number of rows.")
    return float(value)


_READ: Mapping[str, Callable[[Any], Any]] = {
    "target_modules": _read_targets,
    "schedule": _read_schedule,
    "epochs": _read_whole,
    "validation_share": _read_share,
}
