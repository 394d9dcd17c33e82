"""The settings of a job one by one: their names, values and words, for whoever writes them down.

Ranges and choices are those of ``job_settings``, defaults those of the specs; this file adds words.
"""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workers.protocol.job_settings import (
    LORA_RANGES,
    PREFERENCE_LOSSES,
    SCHEDULES,
    SOFT_PROMPT_RANGES,
    TRAINING_RANGES,
    NumberRange,
    SettingError,
)
from workers.protocol.job_spec import AdapterKind, AdapterSpec, TrainingSpec
from workers.protocol.wire import to_json

AUTO = "auto"
#: Names that other trainers use, which are taken as the market's own.
ALIASES: Mapping[str, Mapping[str, str]] = {
    "adapter": {"r": "rank", "lora_alpha": "alpha", "lora_dropout": "dropout"},
    "training": {
        "lr": "learning_rate",
        "num_epochs": "epochs",
        "max_seq_length": "sequence_length",
    },
}
_WORDS: Mapping[str, Mapping[str, str]] = {
    "adapter": {
        "kind": "What is learnt: low-rank matrices beside the weights, or virtual tokens.",
        "rank": "Rank of LoRA's matrices. auto: 16, or the largest that a node has memory for.",
        "alpha": "LoRA's product is multiplied by alpha / rank. auto: twice the rank.",
        "dropout": "Share of LoRA's inputs left out in training. auto: 0.05 below 1,000 rows.",
        "target_modules": "Projections that LoRA adapts, by name or the end of it; 'all-linear' "
        "and auto: all of attention and MLP.",
        "virtual_tokens": "Soft prompt only: its tokens. auto: 20.",
        "init_text": "Soft prompt only: the text that it begins as; empty: random tokens.",
        "rslora": "Multiply by alpha / sqrt(rank) (rsLoRA). auto: no, or as what it continues.",
        "dora": "Learn the length of each output's weights apart (DoRA). auto: no, or as what it "
        "continues.",
        "looks_up": "Soft prompt of an express request only: begin with a known prompt if one "
        "loses less on the rows.",
    },
    "training": {
        "epochs": "Times that each row is trained on. auto: 2 to 10, about 1,500 rows in all.",
        "batch_size": "Rows of one optimizer step. auto: 4 to 32, by the number of rows.",
        "learning_rate": "The highest of the schedule. auto: by batch size and the model's width.",
        "schedule": "How the learning rate falls after the warm-up.",
        "warmup_share": "Share of the steps in which the learning rate rises.",
        "weight_decay": "AdamW's decay of weights.",
        "max_grad_norm": "Longer gradients are cut to this length; 0: none is.",
        "sequence_length": "Tokens that a row may have; longer ones are cut. At most the zone's. "
        "auto: the longest row, in steps of 64.",
        "seed": "Of the order of rows, the first weights and dropout.",
        "validation_share": "Share of rows held out. auto: 0.1, or 0 where other rows are held "
        "out.",
        "eval_every_steps": "Steps between two evaluations; 0: about ten evaluations.",
        "preference_loss": "What preferences are learnt by.",
        "dpo_beta": "DPO's beta, or the weight of ORPO's odds.",
        "neftune_alpha": "Noise on the embeddings of training rows (NEFTune); 0: none.",
        "early_stopping": "Evaluations without a lower validation loss after which the job ends "
        "with its best weights; 0: never.",
        "target_loss": "Validation loss at which the job ends; 0: never.",
    },
}
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "kind": tuple(kind.value for kind in AdapterKind),
    "schedule": SCHEDULES,
    "preference_loss": PREFERENCE_LOSSES,
}
#: Settings that the market chooses by the data, the zone or the adapter that is continued.
_CHOSEN = frozenset(
    {
        *("rank", "alpha", "dropout", "target_modules", "virtual_tokens", "rslora", "dora"),
        *("epochs", "batch_size", "learning_rate", "sequence_length", "validation_share"),
    }
)
_SPECS: Mapping[str, type] = {"adapter": AdapterSpec, "training": TrainingSpec}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, as it is on sale."""

    name: str
    #: ``integer``, ``number``, ``boolean``, ``string`` or ``names``.
    kind: str
    words: str
    #: What it is where it is left out; ``auto``: the market chooses.
    default: Any
    allowed: NumberRange | None = None
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()


def list_settings(group: str) -> tuple[Setting, ...]:
    """List the settings of ``adapter`` or ``training``, in the order of the spec."""
    spec = _SPECS[group]
    hints = typing.get_type_hints(spec)
    ranges = TRAINING_RANGES if group == "training" else {**LORA_RANGES, **SOFT_PROMPT_RANGES}
    return tuple(
        Setting(
            name=field.name,
            kind=_KINDS.get(hints[field.name], "names" if field.default is None else "string"),
            words=_WORDS[group][field.name],
            default=AUTO if field.name in _CHOSEN else to_json(field.default),
            allowed=ranges.get(field.name),
            choices=_CHOICES.get(field.name, ()),
            aliases=tuple(alias for alias, name in ALIASES[group].items() if name == field.name),
        )
        for field in dataclasses.fields(spec)
    )


_KINDS: Mapping[Any, str] = {int: "integer", float: "number", bool: "boolean", str: "string"}


def name_settings(group: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Give settings by their own names, aliases replaced.

    Raises
    ------
    SettingError
        There is no such setting, or one is given under two names.
    """
    kinds = typing.get_type_hints(_SPECS[group])
    names = tuple(field.name for field in dataclasses.fields(_SPECS[group]))
    aliases = ALIASES[group]
    named: dict[str, Any] = {}
    for given, value in asked.items():
        name = aliases.get(given, given)
        if name not in names:
            near = difflib.get_close_matches(given.lower(), [*names, *aliases], n=1, cutoff=0.5)
            nearest = f"; the nearest is {aliases.get(near[0], near[0])}" if near else ""
            raise SettingError(
                f"{group}.{given}"[:100],
                f"There is no setting {group}.{given[:60]}{nearest}; there are {', '.join(names)}",
            )
        if name in named:
            raise SettingError(
                f"{group}.{name}", f"{group}.{name} is given under two names; give it once"
            )
        # JSON knows one kind of numbers: 8.0 is a whole one.
        is_whole = kinds[name] is int and isinstance(value, float) and value.is_integer()
        named[name] = int(value) if is_whole else value
    return named
